"""All purged that came since.

hooks: target target.inner alone
"""

import sys

import alone
import target.inner

for name in set(sys.modules) - set(sys.builtin_module_names) - {"__main__", "importlib"}:
    if not name.startswith(("_frozen", "importlib", "encodings", "codecs", "io", "abc", "memory")):
        del sys.modules[name]
import alone
import target.inner

print(target.VALUE, alone.VALUE)
