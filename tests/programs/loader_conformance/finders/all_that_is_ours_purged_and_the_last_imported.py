"""All that is ours purged, and the last imported.

hooks: alone?
armed: alone
"""

import sys

for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import json

import alone

print(alone.VALUE, json.__name__)
