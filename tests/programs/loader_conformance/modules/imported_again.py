"""Imported again.

hooks: target target.inner
"""

import sys

import target
import target.inner

for _ in range(3):
    before = sys.modules.pop("target"), sys.modules.pop("target.inner")
    import target.inner

    print(target is before[0], target.inner.VALUE, vars(target.__loader__))
