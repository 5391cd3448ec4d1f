"""The kinds of setting that a patch may have under ``patches`` in a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Python waits no longer than some 292 years (threading.TIMEOUT_MAX).
LONGEST_DURATION = 1_000_000_000


class Unfit(ValueError):
    """A value that a setting can't have; the text says what is expected instead."""


@dataclass(frozen=True)
class Kind:
    """``expected``: what a message asks for. ``values``: what it may be besides a number of
    seconds, if ``seconds``. ``off``: the value that a patch that is turned off gives it, if any."""

    expected: str
    values: tuple[Any, ...]
    seconds: bool = True
    off: tuple[Any, ...] = ()

    def read(self, value: Any) -> Any:
        """The value as a plan has it. Raises Unfit."""
        # YAML 1.1 reads off without quotes as false.
        if value == "off" and False in self.values and self.seconds:
            return False
        if isinstance(value, (bool, type(None))):
            if any(value is one for one in self.values):
                return value
        elif self.seconds and isinstance(value, (int, float)) and 0 < value < math.inf:
            if value <= LONGEST_DURATION:
                return value
            raise Unfit(f"at most {LONGEST_DURATION} seconds")
        raise Unfit(self.expected)

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a value."""
        if not self.seconds:
            return {"type": "boolean"}
        duration = {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": LONGEST_DURATION,
            "description": "Seconds.",
        }
        other = {"enum": ["off", False]} if False in self.values else {"type": "null"}
        return {"anyOf": [duration, other]}


KINDS = {
    "seconds or off": Kind("a number of seconds above 0, or off", (False,), off=(False,)),
    "seconds or null": Kind("a number of seconds above 0, or null", (None,), off=(None,)),
    "switch": Kind("true or false", (True, False), seconds=False),
}
