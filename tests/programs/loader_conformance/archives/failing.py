"""Failing.

hooks: archived archived3
"""

import sys

from memory import show

sys.path.insert(0, "archive.zip")
import traceback

for _ in range(2):
    for name in ("archived3", "archived", "absent"):
        try:
            show(__import__(name))
        except Exception:
            traceback.print_exc()
    open("mended", "w").close()
