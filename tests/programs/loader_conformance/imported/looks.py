import itertools
import sys

frame, seen = sys._getframe(), []
while frame:
    name = frame.f_globals.get("__name__")
    inside = "importlib" in frame.f_code.co_filename
    seen.append(
        (
            inside and "importlib",
            inside or frame.f_code.co_filename,
            name.replace("_frozen_importlib_external", "_frozen_importlib")
            .replace("importlib._bootstrap_external", "_frozen_importlib")
            .replace("importlib._bootstrap", "_frozen_importlib"),
        )
    )
    frame = frame.f_back
print([one for one, _ in itertools.groupby(seen)])
VALUE = 11
