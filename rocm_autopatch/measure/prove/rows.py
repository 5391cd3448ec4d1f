"""How a trial ended in one start, and what is kept of it: a row of the evidence file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound="TrialOutcome")


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended. What is None or empty is not known, and a document has no key for it.

    ``status`` is one of those of the package, ``reason`` why it is not ENDED, with the
    ``last_lines`` of the output. ``first`` are the seconds of the first call, ``seconds`` those of
    all. ``calls`` were compared with eager mode. ``samples`` are the seconds of later calls, and
    ``peak`` the most memory that was reserved meanwhile, in bytes.
    """

    trial: str = ""
    status: str = ""
    reason: str = ""
    last_lines: tuple[str, ...] = ()
    first: float | None = None
    seconds: float | None = None
    calls: int | None = None
    samples: tuple[float, ...] = ()
    peak: int | None = None

    @classmethod
    def read(cls: type[Kind], document: Mapping[str, Any]) -> Kind:
        """What a document says. A key that is unknown here says nothing."""
        known = {one.name for one in fields(cls)}
        found = {name: value for name, value in document.items() if name in known}
        for name in ("last_lines", "samples"):
            if name in found:
                found[name] = tuple(found[name])
        return cls(**found)

    def document(self) -> dict[str, object]:
        """The outcome as JSON has it."""
        return dict(self._known_fields())

    def _known_fields(self) -> Iterator[tuple[str, object]]:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value not in ("", ()):
                yield one.name, list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class TrialRow(TrialOutcome):
    """How a trial of a *subject* ended in a *start*, COLD, WARM or FRESH, of a *wave*.

    ``beside_others`` is what came of it beside other starts, if it was repeated alone. ``over`` is
    when it crashed, in seconds since the battery began. Of fresh starts, ``starts`` is how many
    there were, and ``right`` how many were right.
    """

    subject: str = ""
    start: str = ""
    wave: int = 0
    beside_others: str = ""
    over: float | None = None
    starts: int | None = None
    right: int | None = None

    @property
    def unit(self) -> tuple[str, str]:
        """The trial and the subject."""
        return self.trial, self.subject
