"""What ``probe --readers`` and ``explain NAME --readers`` print. No command of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rocm_autopatch.cli import style
from rocm_autopatch.probe import readers
from rocm_autopatch.probe.readers import (
    ELSEWHERE,
    NOT_READ,
    PERHAPS,
    READ,
    UNKNOWN,
    ReadersReport,
    VariableMention,
    VariableReaders,
)
from rocm_autopatch.support.text import counted, duration, wrapped

_TITLES = {
    NOT_READ: "Nothing reads",
    UNKNOWN: "Not known",
    PERHAPS: "Perhaps read: no code was seen that reads it",
    READ: "Read",
}
# Of each kind of place, so many are shown.
_SHOWN = 4


def find_readers(names: Sequence[str], environment: Mapping[str, str]) -> ReadersReport:
    """Look in what this interpreter can import, and in libraries and scripts beside it."""
    return readers.find_readers(names, environment, sys.path)


def is_read(looked: ReadersReport) -> bool:
    """Whether a file reads each of the variables."""
    return all(one.state == READ for one in looked.told)


def readers_data(looked: ReadersReport) -> dict[str, Any]:
    """The answers as plain data."""
    return {
        "variables": [_reader_row(one) for one in looked.told],
        "not_read": looked.not_read,
        "files": looked.files,
        "groups": looked.groups,
        "seconds": round(looked.seconds, 3),
        "kept": looked.kept,
        "notes": looked.notes,
    }


def _reader_row(told: VariableReaders) -> dict[str, Any]:
    verdict = told.verdict
    return {
        "name": told.name,
        "state": told.state,
        "whose": told.whose,
        **{
            key: [asdict(row) for row in getattr(told, key)]
            for key in ("read_by", "named_by", "set_by", "said_by")
        },
        "near": told.near,
        "same": told.same,
        "verdict": verdict.verdict if verdict else "",
        "why": verdict.why if verdict else told.why,
        "source": verdict.source if verdict else "",
    }


def reader_lines(looked: ReadersReport) -> Iterator[str]:
    """The answers for people: what nothing reads comes first."""
    for state, title in _TITLES.items():
        rows = [one for one in looked.told if one.state == state]
        if rows:
            yield title
        for one in rows:
            yield from _variable_lines(one)
    others = [one.name for one in looked.told if one.state == ELSEWHERE]
    if others:
        yield "Of families that are not known here, so that another program may read them"
        yield from wrapped(", ".join(others), "  ", "  ")
    if looked.notes:
        yield ""
        yield "Notes"
    for text in looked.notes:
        yield from wrapped(text, "  ", "    ")
    yield ""
    if looked.surroundings:
        few = counted(looked.surroundings, "variable")
        yield f"not listed: {few} of shells, logins, orchestrators and rocm_autopatch"
    yield from wrapped(
        f"looked at {counted(looked.files, 'file')} of {counted(looked.groups, 'distribution')} "
        f"and directories in {duration(looked.seconds)}",
        "",
        "  ",
    )
    unread = looked.not_read
    if unread:
        yield from wrapped(
            f"{counted(len(unread), 'variable')} that nothing reads: {', '.join(unread)}", "", "  "
        )


def _variable_lines(told: VariableReaders) -> Iterator[str]:
    whose = f" ({told.whose})" if told.whose else ""
    verdict = f"  {style.colour_word(told.verdict.verdict)}" if told.verdict else ""
    yield f"  {told.name}{whose}{verdict}"
    yield from _reading_places("read by", told.read_by)
    if told.state != READ:
        yield from _reading_places("named by", told.named_by)
        yield from _reading_places("set by", told.set_by)
        yield from _reading_places("spoken of in", told.said_by)
        # The reader of a family builds its names.
        if not (told.named_by or told.set_by or told.said_by or told.why):
            yield "      no file that was looked at has this name"
    if told.near:
        yield f"      did you mean {' or '.join(told.near)}?"
    for text in [told.why, *told.same]:
        if text:
            yield from wrapped(text, "      ", "        ")
    if told.verdict:
        source = f" ({told.verdict.source})" if told.verdict.source else ""
        yield from wrapped(told.verdict.why.rstrip(".") + source, "      ", "        ")


def _reading_places(title: str, rows: Sequence[VariableMention]) -> Iterator[str]:
    if not rows:
        return
    by: dict[str, list[str]] = {}
    for row in rows[:_SHOWN]:
        by.setdefault(row.distribution, []).append(str(row))
    # A file of a directory has its whole path.
    shown = "; ".join(
        ", ".join(places) if places[0].startswith("/") else f"{name}: {', '.join(places)}"
        for name, places in by.items()
    )
    more = f"; {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    yield from wrapped(f"{title} {shown}{more}", "      ", "        ")
