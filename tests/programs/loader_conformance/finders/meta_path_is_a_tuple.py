"""Meta_path is a tuple.

hooks: alone target made
armed: alone target made
"""

import sys

from memory import Finder, Plain, show

sys.meta_path = tuple(sys.meta_path)
import alone

sys.meta_path += (Finder(Plain(), ("extra", "made")),)
import extra
import made
import target

show(extra, made)
