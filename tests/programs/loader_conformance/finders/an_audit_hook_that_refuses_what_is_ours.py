"""An audit hook that refuses what is ours.

hooks: alone? target?
says: what is ours can't be opened
"""

import sys
from importlib.util import find_spec


def audit(event, arguments):
    if event in ("import", "open") and "rocm_autopatch" in str(arguments[0]):
        raise PermissionError("denied")


sys.addaudithook(audit)
import alone
import target

print(alone.VALUE, find_spec("broken"))
