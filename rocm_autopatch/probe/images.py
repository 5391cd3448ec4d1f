"""Write what was found into an images file. Only the row of the image is changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from rocm_autopatch.image import reference
from rocm_autopatch.policy import PolicyError, Problem, document, load, schema, select
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.problem import REMARK
from rocm_autopatch.probe import culprits, variables
from rocm_autopatch.probe.table import PlaceProbe
from rocm_autopatch.support import files, masking

_EMPTY = "version: 1\nimages: []\n"
# The part of a description that an earlier probe wrote, or that says that there was none.
_PROVEN = re.compile(r"\s*\bProven \d{4}-.*?\.(?=\s|$)", re.DOTALL)
_PROBED = re.compile(r"\s*\b(?:Probed \d|Not probed yet).*", re.DOTALL)


def check_images_file(file: Path) -> None:
    """Raise PolicyError if *file* exists and is not an images file, or can't be written."""
    if file.exists():
        load.images(file, REMARK)
    if not file.parent.is_dir():
        raise _images_error(file, f"there is no directory {file.parent}")


def record_probe(file: Path, found: PlaceProbe, not_read: Collection[str] = ()) -> str:
    """Add the image's row to *file*, or update it. Returns what was done. Raises PolicyError.

    *not_read* are variables that nothing reads: those of the image are named in its description.
    All other bytes of the file stay the same. A row keeps its policy, entries and issues.
    """
    facts = {name: str(fact["value"]) for name, fact in found.report.get("facts", {}).items()}

    def fields(own: Policy | None, general: list[Policy]) -> ProbedFields:
        return ProbedFields(found, own, general, not_read)

    return _record_row(file, found.image, facts, fields)


def record_proof(file: Path, evidence: Mapping[str, Any]) -> str:
    """The same with what a battery has proven: a sentence in the description, and an issue for each
    fault. *evidence* is the document of an evidence file."""
    place = evidence["place"]
    return _record_row(
        file, place.get("image", ""), place, lambda own, general: ProvenFields(evidence, own)
    )


def _record_row(
    file: Path,
    name: str,
    facts: Mapping[str, str],
    make: Callable[[Policy | None, list[Policy]], RowFields],
) -> str:
    if not name:
        raise _images_error(
            file, "not written: the image's name is unknown; give --image REPOSITORY:TAG"
        )
    try:
        image = reference.parse_reference(name)
    except ValueError as error:
        raise _images_error(file, f"not written: {error}") from None
    names = {name, image.short, f"{image.name}:{image.tag}"}
    data = file.read_bytes() if file.exists() else _EMPTY.encode()
    before = _read_rows(file, data)
    own = next((row for row in before if row.image in names), None)
    general = [row for row in select.records(before, facts) if row is not own]
    # PyYAML does not count a byte order mark in its positions.
    mark = "\ufeff" if data.startswith(b"\xef\xbb\xbf") else ""
    text = data.decode("utf-8-sig")
    fields = make(own, general)
    new = _edit_text(text, own.image if own else "", image.short, fields)
    if "\r\n" in text:
        new = re.sub(r"(?<!\r)\n", "\r\n", new)
    done = (mark + new).encode()
    after = _read_rows(file, done)
    if [row for row in before if row is not own] != [r for r in after if r.image not in names]:
        raise _images_error(file, "not written: another row would have changed")
    withheld = ", ".join(fields.withheld)
    why = "not recorded, because they are not in our list or look secret"
    rest = f"; {why}: {withheld}" if withheld else ""
    if done == data:
        return f"{file}: {image.short} is up to date{rest}"
    _write_images(file, done)
    return f"{file}: {image.short} {'updated' if own else 'added'}{rest}"


def _read_rows(file: Path, data: bytes) -> tuple[Policy, ...]:
    rows = schema.read_images(document.parse(data, str(file)), str(file))
    reading = load.Reading(REMARK)
    for row in rows:
        reading.base(row)
    reading.finish()
    return rows


class RowFields:
    """What goes into a row. *own* is the row as it is so far.

    ``sets`` is None if the variables of the row stay as they are. ``withheld`` are variables that
    are not recorded.
    """

    source = ""

    def __init__(self, own: Policy | None) -> None:
        self.own = own
        self.sets: dict[str, dict[str, str]] | None = None
        self.withheld: list[str] = []

    def description(self) -> str:
        """The part that a person wrote, and what was found."""
        raise NotImplementedError

    def wrong(self) -> Iterator[str]:
        """What is wrong here besides the variables."""
        raise NotImplementedError

    def issues(self) -> list[dict[str, str]]:
        """What is wrong here, and not in the row yet."""
        known = {issue.text for issue in self.own.known_issues} if self.own else set()
        return [{"issue": t, "source": self.source} for t in self.wrong() if t not in known]

    def row(self, image: str) -> dict[str, object]:
        """All of this as a new row."""
        row: dict[str, object] = {"image": image, "description": self.description()}
        row.update({"sets": self.sets} if self.sets else {})
        issues = self.issues()
        row.update({"known_issues": issues} if issues else {})
        return row


class ProvenFields(RowFields):
    """What a battery has proven, in an evidence document."""

    source = "rocm-autopatch prove"

    def __init__(self, evidence: Mapping[str, Any], own: Policy | None) -> None:
        super().__init__(own)
        self.evidence = evidence

    def description(self) -> str:
        """What a probe said stays last: the next probe writes that anew."""
        before = _PROVEN.sub("", self.own.description).strip() if self.own else ""
        probed = _PROBED.search(before)
        kept = before[: probed.start()] if probed else before
        place, day = self.evidence["place"], self.evidence["made"].partition("T")[0]
        sound = [name for name, said in self.evidence["subjects"].items() if said["sound"]]
        text = f"Proven {day} on {place['device']}, driver {place['driver']}, torch "
        text += f"{place['torch']}, triton {place['triton']}: {', '.join(sound) or 'nothing'}."
        return f"{kept} {text}{probed[0] if probed else ''}".strip()

    def wrong(self) -> Iterator[str]:
        place = self.evidence["place"]
        for name, said in self.evidence["subjects"].items():
            for fault in said.get("faults", ()):
                yield (
                    f"{name} in {fault['trial']}: {fault['status']} ({fault['start']} start, "
                    f"{place['device']}, driver {place['driver']}, torch {place['torch']})"
                )


class ProbedFields(RowFields):
    """What a probe found. *general* are the less specific rows that apply to this place, and
    *not_read* variables that nothing reads."""

    source = "rocm-autopatch probe"

    def __init__(
        self,
        found: PlaceProbe,
        own: Policy | None,
        general: list[Policy],
        not_read: Collection[str] = (),
    ) -> None:
        super().__init__(own)
        self.date = time.strftime("%Y-%m-%d")
        self.found = found
        stated = {setting.name: setting.value for row in general for setting in row.sets}
        given = {s.name: (s.value, s.why) for s in own.sets} if own else {}
        self.sets = {}
        set_here: dict[str, str | None] = {}
        for row in found.variables:
            foreign = row.name in culprits.written_variables(found.findings.reading)
            value = row.without
            # A text that is not Unicode can't be written.
            if not (isinstance(value, str) and value.isprintable()):
                continue
            if foreign or row.who == "a user's":
                continue
            # Other people may read the file, so only known and plain values are recorded.
            if not variables.is_known(row.name) or masking.MASK in value:
                self.withheld.append(row.name)
                set_here[row.name] = None
                continue
            set_here[row.name] = value
            if stated.get(row.name) == value:
                continue
            said, why = given.get(row.name, (None, ""))
            why = why if said == value and why else f"Probed {self.date}."
            self.sets[row.name] = {"value": value, "why": why}
        self.unset = [name for name in stated if name not in set_here]
        self.not_read = [
            name for name, one in set_here.items() if one is not None and name in not_read
        ]

    def description(self) -> str:
        """The part that a person wrote, and what was probed."""
        kept = _PROBED.sub("", self.own.description).strip() if self.own else ""
        torch = self.found.torch.get("version") or "no torch"
        python = self.found.findings.reading.found.get("python", "")
        text = f"Probed {self.date} with torch {torch} and Python {python}"
        rows = [row for row in self.found.config if row.culprit]
        if rows:
            keys = ", ".join(row.name for row in rows)
            text += f"; differs from what torch ships: {keys}"
        if self.unset:
            text += f"; does not set {', '.join(self.unset)}"
        if self.not_read:
            text += f"; nothing that is installed reads {', '.join(self.not_read)}"
        return f"{kept} {text}.".strip()

    def wrong(self) -> Iterator[str]:
        for row in self.found.config:
            culprit = row.culprit
            if culprit and culprit.kind != culprits.VARIABLE and row.verdict.dangerous:
                yield f"{row.name} is {row.without}, but torch ships {row.shipped}: {culprit}"
        for crash in self.found.findings.crashes:
            yield f"import {crash.module} fails: {crash.error} ({crash.culprit})"


def _edit_text(text: str, own: str, image: str, fields: RowFields) -> str:
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    rows = next(value for key, value in root.value if key.value == "images")
    if rows.flow_style:
        # A list in one line has no place for a row of several lines: it is written as a block.
        listed = [_node_data(row) for row in rows.value]
        at = next((i for i, row in enumerate(listed) if own and row.get("image") == own), None)
        if at is None:
            listed.append(fields.row(image))
        else:
            listed[at] = _merged_row(listed[at], fields)
        return _replace_parts(
            text, [(rows.start_mark.index, _end_of_node(rows), "\n" + _dump_data(listed, 2))]
        )
    row = next((row for row in rows.value if own and _scalar_of(row, "image") == own), None)
    if row is None:
        column = rows.start_mark.column
        at = _line_end(text, _end_of_node(rows.value[-1]))
        new = _dump_data([fields.row(image)], column)
        return _replace_parts(text, [(at, at, f"\n\n{new}")])
    column = row.start_mark.column
    if row.flow_style:
        new = _dump_data(_merged_row(_node_data(row), fields), column).lstrip()
        return _replace_parts(text, [(row.start_mark.index, _end_of_node(row), new)])
    return _replace_parts(text, list(_row_changes(text, row, column, fields)))


def _row_changes(
    text: str, row: Any, column: int, fields: RowFields
) -> Iterator[tuple[int, int, str]]:
    """The changes to a row in block style: start, end and new text of each."""
    has = {key.value: (key, value) for key, value in row.value}
    wanted: dict[str, Any] = {"description": fields.description()}
    if fields.sets is not None and (fields.sets or "sets" in has):
        wanted["sets"] = fields.sets
    last = _line_end(text, _end_of_node(row))
    for name, value in wanted.items():
        if name not in has:
            yield last, last, "\n" + _dump_data({name: value}, column)
        elif _node_data(has[name][1]) != value and not (
            name == "sets" and _same_sets(has[name], value)
        ):
            key, old = has[name]
            new = _dump_data({name: value}, column).lstrip()
            yield key.start_mark.index, _end_of_node(old), new
    issues = fields.issues()
    if not issues:
        return
    if "known_issues" not in has:
        yield last, last, "\n" + _dump_data({"known_issues": issues}, column)
        return
    key, old = has["known_issues"]
    if isinstance(old, yaml.SequenceNode) and not old.flow_style and old.value:
        at = _line_end(text, _end_of_node(old))
        yield at, at, "\n" + _dump_data(issues, old.start_mark.column)
        return
    data = _node_data(old)
    listed = [data] if isinstance(data, str) else list(data or ())
    new = _dump_data({"known_issues": [*listed, *issues]}, column).lstrip()
    yield key.start_mark.index, _end_of_node(old), new


def _same_sets(pair: tuple[Any, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a row sets the same values, also if it is written in another form."""
    data = _node_data(pair[1]) or {}
    plain = {k: v["value"] if isinstance(v, dict) else v for k, v in data.items()}
    return plain == {name: one["value"] for name, one in wanted.items()}


def _merged_row(row: Mapping[str, Any], fields: RowFields) -> dict[str, object]:
    merged: dict[str, object] = {**row, "description": fields.description()}
    if fields.sets is not None:
        merged.pop("sets", None)
        merged.update({"sets": fields.sets} if fields.sets else {})
    issues = fields.issues()
    if issues:
        known = row.get("known_issues") or []
        merged["known_issues"] = [*([known] if isinstance(known, str) else known), *issues]
    return merged


def _scalar_of(row: Any, name: str) -> str:
    return next((str(value.value) for key, value in row.value if key.value == name), "")


def _node_data(node: Any) -> Any:
    loader: Any = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _end_of_node(node: Any) -> int:
    """Where a node's text ends. For PyYAML, a block ends only where the next node begins."""
    if not isinstance(node, yaml.ScalarNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end_of_node(last[1] if isinstance(node, yaml.MappingNode) else last)
    end: int = node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        buffer = node.end_mark.buffer
        while buffer and end and buffer[end - 1].isspace():
            end -= 1
    return end


def _line_end(text: str, index: int) -> int:
    """The end of the line, after a comment that follows the value."""
    found = text.find("\n", index)
    end = len(text) if found < 0 else found
    return end - 1 if end > index and text[end - 1] == "\r" else end


def _dump_data(data: object, column: int) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10**6)
    return indent(text.rstrip("\n"), " " * column)


def _replace_parts(text: str, changes: list[tuple[int, int, str]]) -> str:
    # The sort is stable: changes at one place keep their order.
    for start, end, new in sorted(changes, key=lambda change: change[0])[::-1]:
        text = text[:start] + new + text[end:]
    return text if text.endswith("\n") else text + "\n"


def _write_images(file: Path, data: bytes) -> None:
    try:
        files.write(file, data, file.stat().st_mode & 0o777 if file.exists() else 0o644)
    except OSError as error:
        raise _images_error(file, f"can't be written: {error.strerror}") from error


def _images_error(file: Path, message: str) -> PolicyError:
    return PolicyError([Problem(str(file), 0, 0, "", message)])
