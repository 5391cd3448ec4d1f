"""Modules that replace and remove themselves: one that is not in sys.modules is not patched.

hooks: replaced removed? cycle.one cycle.two
"""

import replaced

print(type(replaced).__name__, replaced.VALUE)
try:
    import removed

    print(removed.VALUE)
except Exception as error:
    print(type(error), error)
import cycle.one

print(cycle.one.VALUE, cycle.two.VALUE)
