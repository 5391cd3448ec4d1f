"""Refused writes: who wrote to a pinned config value, on the record and once per key on stderr.

A pin works without this file. The file watches the one place through which every write to an entry
goes: on 2.4 and 2.5 the dict of values (config._PinnedValues), from 2.6 on the attribute
``user_override`` of the entry, and from 2.12 on the ContextVar in this attribute (pytorch#118387).
2.15 writes to the ContextVar without the module's ``__setattr__``. Reads do not use these places.
2.15 has keys that imply others, ahead of all that an entry has: of these, the same is watched.

A refused write is dropped, not stored under the pin. So what torch writes back when a ``patch``
ends is the pinned value or nothing, and is never taken for a write of the program.
"""

import sys
from contextvars import ContextVar

from rocm_autopatch import failure, startup
from rocm_autopatch.patches import callers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from types import FrameType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import ConfigEntry, OverrideVariable
    from rocm_autopatch.record.shapes import ConfigRow, RefusedWriter

MOST_WRITERS = 20
LONGEST_VALUE = 100
# A process writes no more lines than this, one for each key.
MOST_LINES = 5


class PinnedValue:
    """A pinned value, and the row of the record that lists who tried to change it."""

    def __init__(self, row: "ConfigRow", value: object) -> None:
        self.row = row
        self.value = value
        self.writers: dict[tuple[str, int], RefusedWriter] = {}
        row["refused"] = []

    def refuses(self, value: object) -> bool:
        """Whether a program's write is refused. A refused write is put on the record."""
        try:
            if value == self.value:
                return False
        except Exception as error:
            if failure.programs_own(error):
                raise
            # The value can't be compared.
        self.record_refusal(value)
        return True

    def record_refusal(self, value: object, source: str = "") -> None:
        """Put a refused write on the record. *source* is the key that was written, if another."""
        try:
            text = repr(value)[:LONGEST_VALUE]
            self._note("%s = %s" % (source, text) if source else text, source, *_writing_place())
        except Exception as error:
            if failure.programs_own(error):
                raise
            # The value can't be shown. The program must not see this error.

    def _note(self, text: str, source: str, file: str, line: int) -> None:
        if (file, line) not in self.writers and len(self.writers) >= MOST_WRITERS:
            self.row["refused_more"] = self.row.get("refused_more", 0) + 1
            return
        new: RefusedWriter = {"value": text, "file": file, "line": line, "count": 0}
        # Of several threads, setdefault lets one win. Without a lock, counts may come out too low.
        # With a lock, a fork could leave it held.
        writer = self.writers.setdefault((file, line), new)
        writer["value"] = text
        writer["count"] += 1
        if writer is not new:
            return
        self.row["refused"].append(new)
        key = self.row["name"]
        tried = "%s, which implies another %s" % (text, key) if source else "%s = %s" % (key, text)
        self._say(key, file, line, tried)

    def _say(self, key: str, file: str, line: int, tried: str) -> None:
        if key in _said or len(_said) >= MOST_LINES:
            return
        _said.append(key)
        last = len(_said) == MOST_LINES
        startup.say(
            "refused-" + key,
            "%s:%d tried to set %s, but policy %s pins it to %r; rocm_autopatch.status() "
            "lists each writer, ROCM_AUTOPATCH_KEEP=%s removes the pin%s"
            % (
                *(file, line, tried, self.row["layer"], self.value, key),
                "; no line is written for more keys" if last else "",
            ),
        )


class ImplyingValue:
    """A value of another key that implies a value against a pin, on torch 2.15 and later.

    Torch takes an implied value before all others. So writes of this value are refused.
    """

    def __init__(self, pin: PinnedValue, name: str, value: object) -> None:
        self.pin, self.name, self.value = pin, name, value

    def refuses(self, value: object) -> bool:
        """Whether a program's write is refused. A refused write is put on the pin's record."""
        if not is_same_value(value, self.value):
            return False
        self.pin.record_refusal(value, self.name)
        return True


def is_same_value(one: object, other: object) -> bool:
    """Whether two values are the same where torch looks for what a value implies: 1 is not True."""
    return type(one) is type(other) and bool(one == other)


# The keys that a line was written for in this process.
_said: "list[str]" = []


def _writing_place() -> "tuple[str, int]":
    """The file and line that wrote, so that a reader can change it there.

    That is the first frame outside torch whose code is in a file. For ``mode=``, ``options=`` and
    ``config_patches=``, which torch writes while it compiles, it is the frame that called the
    model. A thread of torch itself, such as autograd's, has no frame outside torch. Then it is
    torch's frame.
    """
    inside = made = ("?", 0)
    for frame, in_torch in callers.frames(sys._getframe(1)):
        file, line = frame.f_code.co_filename, frame.f_lineno or 0
        if not in_torch:
            if made[1] and callers.of_library(file):
                return made  # doctest, timeit and code run what a user wrote.
            if not _is_made_by_exec(frame):
                return file, line
            made = made if made[1] else (file, line)
        elif not inside[1] and not file.endswith("_config_module.py"):
            inside = file, line
    return made if made[1] else inside


def _is_made_by_exec(frame: "FrameType") -> bool:
    """Whether a program made this code from a string. Its reader finds the caller of ``exec``.

    ``python -c``, an interactive interpreter and a notebook have no file either. They run what the
    user typed, in a ``__main__`` without ``__file__``.
    """
    main = getattr(sys.modules.get("__main__"), "__dict__", {})
    typed = frame.f_globals is main and "__file__" not in main
    return frame.f_code.co_filename.startswith("<") and not typed


def watch_writes(entry: "ConfigEntry", pin: PinnedValue) -> None:
    """Notice the writes to a pinned entry, on torch 2.6 and later."""
    unset = type(entry).env_value_default
    # What a program wrote before the pin is removed, too. A patch that ends would write it back.
    if isinstance(entry.user_override, (ContextVar, _Override)):
        entry.user_override.set(unset)
        entry.user_override = _Override(entry.user_override, pin, unset)
    else:
        entry.user_override = unset
        entry.__class__ = _watched(type(entry), pin, unset)


def watch_implying(entry: "ConfigEntry", implying: ImplyingValue) -> None:
    """Refuse the value of an entry that implies a value against a pin of another one."""
    unset = type(entry).env_value_default
    entry.user_override = _ImplyingOverride(entry.user_override, implying, unset)


def pin_against(entry: "ConfigEntry", value: object) -> "Optional[str]":
    """Which pin of another key refuses *value* for an entry, as text, None if none does."""
    override = getattr(entry, "user_override", None)
    while isinstance(override, _Override):
        if isinstance(override, _ImplyingOverride) and is_same_value(value, override.pin.value):
            row = override.pin.pin.row
            return "%r implies another %s, which policy %s pins" % (
                value,
                row["name"],
                row["layer"],
            )
        override = override.variable
    return None


class _Override:
    """Replaces the ContextVar of a pinned entry, on torch 2.12 and later.

    Everything but ``set`` is the variable's own, also the tokens: 2.15 resets by them.
    """

    __slots__ = ("get", "name", "pin", "reset", "unset", "variable")

    def __init__(
        self, variable: "OverrideVariable", pin: "PinnedValue | ImplyingValue", unset: object
    ) -> None:
        self.variable, self.pin, self.unset = variable, pin, unset
        self.get, self.reset, self.name = variable.get, variable.reset, variable.name

    def set(self, value: object) -> "Token[object]":
        if value is not self.unset and self.pin.refuses(value):
            value = self.unset
        return self.variable.set(value)

    def __reduce_ex__(self, protocol: "Any") -> "Any":
        # A ContextVar can't be pickled or deep-copied. So this raises the same error.
        return self.variable.__reduce_ex__(protocol)


class _ImplyingOverride(_Override):
    """The same for a value that is against a pin: other threads may have written it before."""

    __slots__ = ()
    pin: ImplyingValue

    def __init__(self, variable: "OverrideVariable", pin: ImplyingValue, unset: object) -> None:
        super().__init__(variable, pin, unset)
        self.get = self._read

    def _read(self) -> object:
        value = self.variable.get()
        return self.unset if is_same_value(value, self.pin.value) else value


def _watched(plain: "Any", pin: PinnedValue, unset: object) -> "Any":
    """The class for one pinned entry, on torch 2.6 to 2.11, where an override is an attribute."""

    class Watched(plain):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            if name == "user_override" and value is not unset and pin.refuses(value):
                value = unset
            super().__setattr__(name, value)

        def __reduce_ex__(self, protocol: "Any") -> "Any":
            # Copies and pickles have torch's own class: they are pinned but not watched. Protocols
            # after 1 refuse to make an object of another class than its own.
            copy = object.__new__(plain)
            copy.__dict__.update(self.__dict__)
            return copy.__reduce_ex__(1)

    return Watched
