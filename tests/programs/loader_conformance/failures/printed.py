"""Printed."""

import traceback

for name in ("broken", "nested", "syntax", "missing", "stops", "interrupted", "absent"):
    try:
        __import__(name)
    except BaseException as error:
        traceback.print_exc()
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)], error.args)
        print(getattr(error, "name", None), getattr(error, "path", None))
