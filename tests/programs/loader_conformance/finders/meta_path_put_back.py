"""Meta_path put back.

hooks: alone target
armed: alone target
"""

import sys

saved = sys.meta_path[:]
import alone

sys.meta_path[:] = saved
import target

sys.meta_path = saved
import json

print(alone.VALUE, target.VALUE, json.__name__)
