"""An error of another finder.

These tracebacks have two frames of ours (startup/hooks.py). Exceptions other than ImportError keep
importlib's frames.
"""

import sys
import traceback


class Fails:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            raise errors.pop()


def ours(file):
    return "<frozen importlib" in file or "rocm_autopatch" in file


errors = [KeyboardInterrupt("x"), SystemExit(3), RuntimeError("x"), OSError(2, "x"), KeyError("x")]
sys.meta_path.insert(len(sys.meta_path) - 1, Fails)
for _ in range(5):
    try:
        import target
    except BaseException as error:
        print(repr(error), repr(error.__context__), repr(error.__cause__))
        frames = traceback.extract_tb(error.__traceback__)
        print([frame for frame in frames if not ours(frame.filename)])
