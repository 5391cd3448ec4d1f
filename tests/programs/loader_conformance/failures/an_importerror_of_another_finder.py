"""An ImportError of another finder."""

import sys


class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            raise ImportError("refused: " + name, name=name)


sys.meta_path.insert(len(sys.meta_path) - 1, Refuses)
import traceback

try:
    import target
except ImportError as error:
    frames = traceback.extract_tb(error.__traceback__)
    print(repr(error), [frame for frame in frames if "rocm_autopatch" not in frame.filename])
