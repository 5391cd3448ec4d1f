"""How often it is asked.

hooks: target target.inner alone spread.part
"""

import sys
from importlib.util import find_spec

calls = []


class Counts:
    @staticmethod
    def find_spec(*arguments, **named):
        calls.append((arguments[0], len(arguments), sorted(named)))


sys.meta_path.insert(len(sys.meta_path) - 1, Counts)
import alone
import spread.part
import target.inner

find_spec("broken")
for call in calls:
    if not call[0].startswith("rocm_autopatch"):
        print(call)
