"""Meta_path copied.

hooks: alone target? warns?
"""

import copy
import sys

for make in (copy.copy, copy.deepcopy, list):
    sys.meta_path = make(sys.meta_path)
    print(__import__({copy.copy: "alone", copy.deepcopy: "target", list: "warns"}[make]).VALUE)
