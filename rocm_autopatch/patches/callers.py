"""Which line of a program something comes from, read from the stack."""

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType
    from typing import Optional

# Frames of these packages only pass a call on.
PLUMBING = (
    *("concurrent", "contextlib", "functools", "multiprocessing", "rocm_autopatch", "runpy"),
    *("threading", "unittest"),
)
# Frames of importlib and runpy, of our import hook (which has importlib's name), and of torch.fx.
NO_FILES = ("<frozen ", "<eval_with_key>")
PACKAGES = "/(?:site|dist)-packages/"
# Files of packages and of the standard library, of this machine or of another one.
INSTALLED = re.compile(PACKAGES + r"|/lib(?:64)?/python3\.\d+/")
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def frames(frame: "Optional[FrameType]") -> "Iterator[tuple[FrameType, bool]]":
    """The frames from *frame* outward, without PLUMBING, and whether each one is torch's.

    By file and not by module: torch's compile workers run as ``__main__``.
    """
    root = os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep
    while frame is not None:
        file = frame.f_code.co_filename
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in PLUMBING and not file.startswith(NO_FILES):
            yield frame, file.startswith(root)
        frame = frame.f_back


def caller(frame: "Optional[FrameType]", code: "CodeType") -> str:
    """The program's "FILE:LINE" that led to a call of *code*, if *code* is an installed package's.

    That is the first frame that is of no installed package; if there is none, the first outside
    torch. The functions of a program itself need no caller: the result is "".
    """
    found = ""
    if not INSTALLED.search(code.co_filename):
        return found
    for one, in_torch in frames(frame):
        if in_torch or one.f_code is code:
            continue
        place = "%s:%d" % (one.f_code.co_filename, one.f_lineno or 0)
        if not INSTALLED.search(one.f_code.co_filename):
            return place
        found = found or place
    return found


def of_library(file: str) -> bool:
    """Whether a file is of this Python's standard library."""
    return file.startswith("<frozen ") or (
        file.startswith(_LIBRARY) and not re.search(PACKAGES, file)
    )


def function(code: "CodeType", values: "Mapping[str, object]") -> str:
    """The name of a function with the class of its model, if it is a method of one.

    A framework gives one wrapper to the ``forward`` of all its models (transformers'
    ``utils/generic.py``), so the function's own name says little. *values* are its variables.
    """
    first = values.get(code.co_varnames[0]) if code.co_argcount else None
    base = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    # By the class alone, and by identity: the object's __class__ and == of a class may be anything.
    if base is not None and any(one is base for one in type(first).__mro__):
        return "%s.%s" % (type(first).__name__, code.co_name)
    return code.co_name
