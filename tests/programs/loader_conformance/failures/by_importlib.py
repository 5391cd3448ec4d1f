"""By importlib.

Only an import statement removes importlib's frames from a traceback. Here they are shown, and their
number does not matter.
"""

import importlib
import traceback

for _ in range(2):
    try:
        importlib.import_module("broken")
    except RuntimeError as error:
        for frame in traceback.extract_tb(error.__traceback__):
            if "<frozen importlib" not in frame.filename:
                print(frame, frame.line)
