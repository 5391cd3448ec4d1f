"""Meta_path turned round.

hooks: alone? _lsprof? target
"""

import sys

sys.meta_path.reverse()
import _lsprof

import alone

sys.meta_path.reverse()
import target

print(alone.VALUE)
