"""Meta_path is another list.

hooks: alone target made
armed: alone target made
"""

import sys

from memory import Finder, Plain, show


class Mine(list):
    def __init__(self, *arguments):
        super().__init__(*arguments)


sys.meta_path = mine = Mine(sys.meta_path)
import alone

print(alone.VALUE)
sys.meta_path.append(Finder(Plain(), ("extra", "made")))
import extra
import made
import target

show(extra, made)
print(isinstance(sys.meta_path, list))
