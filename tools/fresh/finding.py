"""What a check of freshness hands back, and the differences that were accepted."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Path(__file__).with_name("known.yaml")
# The kind of a finding about an accepted difference that is no longer there.
ACCEPTED_GONE = "accepted-gone"


@dataclass(frozen=True)
class Finding:
    """Something that we say and that is no longer so.

    ``kind`` is the name of the check. ``subject`` begins with the source that was looked at, such
    as vllm or ROCm/TheRock, and a blank. ``said`` is what we say, and ``where`` is the file and
    line below our root. ``now`` is what is so now, and ``seen`` is the place in the source.
    ``todo`` is what to do.
    """

    kind: str
    subject: str
    said: str
    where: str
    now: str
    seen: str
    todo: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.subject}: we say {self.said} ({self.where}); "
            f"now {self.now} ({self.seen}); to do: {self.todo}"
        )


@dataclass
class Findings:
    """The findings of a run. ``looked`` has the kinds and sources that were looked at."""

    rows: list[Finding] = field(default_factory=list)
    looked: set[tuple[str, str]] = field(default_factory=set)

    def look(self, kind: str, source: str, found: Iterable[Finding]) -> None:
        """Take the findings of a check of one source."""
        self.looked.add((kind, source))
        self.rows += found

    def judge(self, accepted: Iterable[Mapping[str, Any]]) -> tuple[list[Finding], int]:
        """The findings that no accepted difference covers, then accepted ones that are gone; and
        how many are covered.

        An accepted difference has ``kind``, ``subjects`` (with ``*`` and ``?``), ``reason`` and
        ``line``. It is gone if its check ran and found no such subject.
        """
        left = list(dict.fromkeys(self.rows))
        before = len(left)
        gone: list[Finding] = []
        for row in accepted:
            for subject in row["subjects"]:
                covered = [
                    one
                    for one in self.rows
                    if one.kind == row["kind"] and fnmatch.fnmatchcase(one.subject, subject)
                ]
                source = subject.partition(" ")[0]
                if covered:
                    left = [one for one in left if one not in covered]
                elif (row["kind"], source) in self.looked:
                    gone.append(_gone(row, subject, source))
        return left + gone, before - len(left)


def _gone(row: Mapping[str, Any], subject: str, source: str) -> Finding:
    return Finding(
        ACCEPTED_GONE,
        subject,
        f"that {row['kind']} is accepted here",
        f"tools/fresh/known.yaml:{row['line']}",
        "nothing of the kind is found",
        source,
        "take the subject out",
    )


def read_known(file: Path = KNOWN) -> dict[str, Any]:
    """The data file. Each accepted difference gets the ``line`` that it begins in.

    Raises OSError, yaml.YAMLError, and ValueError for one without a kind, subjects or a reason.
    """
    text = file.read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = [
        row.start_mark.line + 1
        for key, value in (node.value if node else [])
        if key.value == "accepted"
        for row in value.value
    ]
    for row, line in zip(data["accepted"], lines):
        if not all(row.get(key) for key in ("kind", "subjects", "reason")):
            raise ValueError(
                f"{file}:{line}: an accepted difference lacks kind, subjects or reason"
            )
        row["line"] = line
    return data


def line_of(file: Path, *texts: str) -> str:
    """The place of the first line of our *file* that has the first of the *texts* that any line
    has, as ``file:line``; the file alone if none has one."""
    shown = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    for text in texts:
        for number, line in enumerate(lines, 1):
            if text in line:
                return f"{shown}:{number}"
    return shown
