"""Namespace packages.

hooks: spread.part
"""

import importlib
import sys
from importlib.util import find_spec

print(find_spec("spread"), find_spec("spread").loader)
import spread

print(spread, spread.__path__, list(spread.__path__), spread.__spec__, type(spread.__loader__))
print(getattr(spread, "__file__", None), hasattr(spread.__loader__, "exec_module"))
import spread.part

print(spread.part.VALUE, spread.part.__spec__)
try:
    import spread.other
except ImportError as error:
    print(error)
sys.path.append("elsewhere")
import spread.other

print(spread.other.VALUE, len(spread.__path__))
importlib.reload(spread)
print(spread.part.VALUE, sorted(name for name in dir(spread) if name[0] != "_"))
