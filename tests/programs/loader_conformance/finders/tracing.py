"""Tracing.

hooks: alone
"""

import sys

calls = []


def trace(frame, event, argument):
    if "importlib" not in frame.f_code.co_filename:
        calls.append((event, frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name))


sys.settrace(trace)
import alone

sys.settrace(None)
print([call for call in calls if call[1] in ("alone.py", "program.py")])
