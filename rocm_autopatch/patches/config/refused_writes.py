"""Refused writes: who wrote to a pinned config value, on the record and once on stderr.

A pin holds without this file. It watches the one place of each torch where every write to an entry
has to pass: the dict of values on 2.4 and 2.5 (config._PinnedValues), from 2.6 on the attribute
``user_override`` of the entry, and from 2.12 on the ContextVar that is kept there (pytorch#118387),
which 2.15 writes past the module's ``__setattr__``. Reads pass none of what is put there.

A refused write is dropped, not kept beneath the pin. So what torch writes back when a ``patch``
ends is the pinned value or nothing, and never looks like a write of the program's own.
"""

import os
import sys
from contextvars import ContextVar

from rocm_autopatch import failure, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from typing import Any

MOST_WRITERS = 20
LONGEST_VALUE = 100
# Packages whose frames stand between a write and whoever wrote or started the thread.
PLUMBING = (
    *("concurrent", "contextlib", "functools", "multiprocessing", "rocm_autopatch", "runpy"),
    *("threading", "unittest"),
)
# importlib and runpy, our import hook's frame that goes by their name, and torch.fx.
NO_FILES = ("<frozen ", "<eval_with_key>")


class Pin:
    """A pinned value, and the row of the record that lists who wrote another one."""

    def __init__(self, row: "dict[str, Any]", value: "Any") -> None:
        self.row = row
        self.value = value
        self.writers: dict[tuple[str, int], dict[str, Any]] = {}
        row["refused"] = []

    def refuses(self, value: "Any") -> bool:
        """Whether a program's write is refused; if so, it is on the record."""
        try:
            if value == self.value:
                return False
            self._note(value, *_writer())
        except Exception as error:
            if failure.programs_own(error):
                raise
            # A value that can't be compared or shown: the program must not see that.
        return True

    def _note(self, value: "Any", file: str, line: int) -> None:
        if (file, line) not in self.writers and len(self.writers) >= MOST_WRITERS:
            self.row["refused_more"] = self.row.get("refused_more", 0) + 1
            return
        text = repr(value)[:LONGEST_VALUE]
        new = {"value": text, "file": file, "line": line, "count": 0}
        # setdefault decides between threads. Counts that race may come out low: a lock would be
        # one more that a fork can leave held.
        writer = self.writers.setdefault((file, line), new)
        writer["value"] = text
        writer["count"] += 1
        if writer is not new:
            return
        self.row["refused"].append(new)
        startup.say(
            "refused",
            "%s:%d wrote %s = %s: pinned to %r by policy %s; rocm_autopatch.status() lists each "
            "writer, ROCM_AUTOPATCH_KEEP=%s lets them write"
            % (file, line, self.row["name"], text, self.value, self.row["layer"], self.row["name"]),
        )


def _writer() -> "tuple[str, int]":
    """The file and line that wrote, for whoever wants to change it there.

    That is the first frame outside torch: for ``mode=``, ``options=`` and ``config_patches=``,
    which torch writes while it compiles, the one that called the model. A thread of torch's own,
    such as autograd's, has none; there it is torch's frame.
    """
    root = os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep
    inside = ("?", 0)
    frame = sys._getframe(1)
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno or 0
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in PLUMBING and not file.startswith(NO_FILES):
            if not file.startswith(root):
                return file, line
            # By file: torch's compile workers run as __main__.
            if not inside[1] and not file.endswith("_config_module.py"):
                inside = file, line
        frame = frame.f_back  # type: ignore[assignment]
    return inside


def watch(entry: "Any", pin: Pin) -> None:
    """Notice the writes to a pinned entry, on torch 2.6 and later."""
    unset = type(entry).env_value_default
    # What a program wrote before the pin goes too, or a patch that ends would write it again.
    if isinstance(entry.user_override, (ContextVar, _Override)):
        entry.user_override.set(unset)
        entry.user_override = _Override(entry.user_override, pin, unset)
    else:
        entry.user_override = unset
        entry.__class__ = _watched(type(entry), pin, unset)


class _Override:
    """In place of the ContextVar of a pinned entry, on torch 2.12 and later.

    All but ``set`` is the variable's own, tokens included: 2.15 resets by them.
    """

    __slots__ = ("get", "name", "pin", "reset", "unset", "variable")

    def __init__(self, variable: "Any", pin: Pin, unset: object) -> None:
        self.variable, self.pin, self.unset = variable, pin, unset
        self.get, self.reset, self.name = variable.get, variable.reset, variable.name

    def set(self, value: "Any") -> "Token[Any]":
        if value is not self.unset and self.pin.refuses(value):
            value = self.unset
        token: Token[Any] = self.variable.set(value)
        return token

    def __reduce_ex__(self, protocol: "Any") -> "Any":
        # A ContextVar can be neither pickled nor copied deeply: the same error, then.
        return self.variable.__reduce_ex__(protocol)


def _watched(plain: "Any", pin: Pin, unset: object) -> "Any":
    """The class for one pinned entry, on torch 2.6 to 2.11, where an override is an attribute."""

    class Watched(plain):  # type: ignore[misc]
        def __setattr__(self, name: str, value: "Any") -> None:
            if name == "user_override" and value is not unset and pin.refuses(value):
                value = unset
            super().__setattr__(name, value)

        def __reduce_ex__(self, protocol: "Any") -> "Any":
            # Copies and pickles are torch's own: pinned, not watched. Later protocols than 1 refuse
            # to make another class than an object's own.
            copy = object.__new__(plain)
            copy.__dict__.update(self.__dict__)
            return copy.__reduce_ex__(1)

    return Watched
