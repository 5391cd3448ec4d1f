"""All that is ours purged.

hooks: alone? target? target.inner?
"""

import sys
from importlib.util import find_spec

for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import alone
import target

for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import target.inner

print(alone.VALUE, find_spec("made"), find_spec("warns"))
import json
