"""Meta_path emptied.

hooks: alone target
"""

import sys

saved = sys.meta_path[:]
del sys.meta_path[:]
for name in ("alone", "absent"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
sys.meta_path[:] = saved
import alone

print(alone.VALUE)
sys.meta_path.clear()
sys.meta_path = saved
import target

saved = None
sys.meta_path = None
try:
    import json
except ImportError as error:
    print(error)
