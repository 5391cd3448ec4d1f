"""Built in, frozen, in C.

hooks: _lsprof __hello__? xxsubtype?
"""

import sys
from importlib.util import find_spec

if find_spec("xxsubtype"):
    import xxsubtype

    print(xxsubtype.__spec__, xxsubtype.__loader__, "exec_module" in vars(xxsubtype.__loader__))
import __hello__

print(__hello__.__spec__, __hello__.__loader__)
spec, other = find_spec("_lsprof"), find_spec("_lsprof")
print(spec == other, vars(spec.loader), spec)
import _lsprof

print(_lsprof.__spec__ == spec, vars(_lsprof.__loader__), type(_lsprof.__loader__).__name__)
import cProfile

cProfile.Profile().runcall(len, "")
