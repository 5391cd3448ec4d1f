"""An evidence file: read and checked, or written.

It is JSON, and a start obeys it as it obeys a policy: only root and this user may be able to change
it. docs/evidence.schema.json is made from the tables here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rocm_autopatch import _SITE, policy_dirs, trust
from rocm_autopatch.evidence.machine import REQUIRED
from rocm_autopatch.support import files

_FOLDER = "evidence"
# Where evidence of this machine is written.
SITE = Path(_SITE, _FOLDER)
VERSION = 1
_TIME = "%Y-%m-%dT%H:%M:%SZ"
BATTERIES = ("full", "quick", "partial")
# Each field of a file, and what it is.
FIELDS = {
    "version": int,
    "made": str,
    "by": str,
    "battery": str,
    "place": dict,
    "subjects": dict,
    "trials": list,
}
VERDICTS = ("sound", "gains")
# Of a subject that captures graphs: how many fresh processes were right. Older files lack it.
FRESH_STARTS = "fresh_starts"
# Each field of a row of ``trials``, and whether every row has it.
ROW = {
    "trial": (str, True),
    "subject": (str, True),
    "start": (str, True),
    "status": (str, True),
    "wave": (int, True),
    "reason": (str, False),
    "first": (float, False),
    "seconds": (float, False),
    "samples": (list, False),
    "peak": (int, False),
}
MADE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
MAX_BYTES = 16 << 20
_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "an object",
    list: "a list",
}


class EvidenceError(Exception):
    """An evidence file can't be used. Line and column are 0 unless its text is not JSON."""

    def __init__(self, file: str, message: str, line: int = 0, column: int = 0) -> None:
        place = f":{line}:{column}" if line else ""
        super().__init__(f"{file}{place}: {message}")
        self.message, self.line, self.column = message, line, column


@dataclass(frozen=True)
class EvidenceFile:
    """A file, and what it says. ``made`` is a time in UTC, so that texts compare as times do.

    By subject, ``subjects`` has ``sound`` and ``gains``, each true, false or None for not known,
    and figures, of which FRESH_STARTS counts (``defects``).
    """

    file: str
    made: str
    by: str
    battery: str
    place: Mapping[str, str]
    subjects: Mapping[str, Mapping[str, Any]]
    trials: list[dict[str, Any]]

    @property
    def label(self) -> str:
        """What the one line on stderr says of it: the device and the day."""
        return f"{self.place['device']} {self.made.partition('T')[0]}"


def site_paths() -> list[Path]:
    """The evidence files of all sites, general to specific."""
    return [
        path for site in policy_dirs.directories() for path in evidence_paths(Path(site, _FOLDER))
    ]


def evidence_paths(site: Path) -> list[Path]:
    """The evidence files of a directory. Raises nothing: what can't be read has none."""
    try:
        return sorted(path for path in site.iterdir() if path.name.endswith(".json"))
    except OSError:
        return []


def read_evidence(path: Path) -> EvidenceFile:
    """The evidence in a file. Raises EvidenceError, also if a start would not obey the file."""
    found, objection = look_at_evidence(path)
    if objection:
        raise EvidenceError(str(path), objection)
    return found


def look_at_evidence(path: Path) -> tuple[EvidenceFile, str | None]:
    """The evidence in a file, and why a start would not obey the file, None if it would.

    Raises EvidenceError.
    """
    name = str(path)
    try:
        data, objection = trust.look(name, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise EvidenceError(name, f"can't be read: {why}") from None
    if len(data) > MAX_BYTES:
        raise EvidenceError(name, f"larger than {MAX_BYTES} bytes")
    return parse_evidence(data, name), objection


def parse_evidence(data: bytes, name: str) -> EvidenceFile:
    """The evidence in *data*, called *name* in messages. Raises EvidenceError."""
    try:
        text = data.decode()
        document = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
        )
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}"
        raise EvidenceError(name, message, error.lineno, error.colno) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8: {error.reason} at byte {error.start}"
        raise EvidenceError(name, message) from None
    except RecursionError:
        raise EvidenceError(name, "nested too deeply") from None
    except ValueError as error:
        raise EvidenceError(name, str(error)) from None
    return check_document(document, name)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} is given twice")
        found[key] = value
    return found


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number that JSON has")


def _parse_integer(digits: str) -> int | float:
    # int() refuses thousands of digits, in words of its own.
    return int(digits) if len(digits) < 100 else float(digits)


def check_document(document: Any, name: str) -> EvidenceFile:
    """The evidence in a document, called *name* in messages. Raises EvidenceError."""

    def need(right: object, path: str, expected: str, found: Any) -> None:
        if not right:
            place = f"{path}: " if path else ""
            raise EvidenceError(name, f"{place}expected {expected}, found {_found_text(found)}")

    need(isinstance(document, dict), "", "an object", document)
    # First, because another version may have other fields.
    if "version" in document:
        version = document["version"]
        right = version == VERSION and not isinstance(version, bool)
        need(right, "version", f"{VERSION}, the format that this release reads", version)
    for field, kind in FIELDS.items():
        if field not in document:
            raise EvidenceError(name, f"{field} is missing")
        need(_is_of_type(document[field], kind), field, _KINDS[kind], document[field])
    made, battery = document["made"], document["battery"]
    need(_is_time(made), "made", "a time such as '2026-11-22T18:40:00Z'", made)
    # Else it would win over all that is found later. Clocks may differ.
    latest = (datetime.now(timezone.utc) + timedelta(days=1)).strftime(_TIME)
    need(made <= latest, "made", "a time that is not in the future", made)
    need(battery in BATTERIES, "battery", f"one of {', '.join(BATTERIES)}", battery)
    for key in REQUIRED:
        if key not in document["place"]:
            raise EvidenceError(name, f"place.{key} is missing")
    for key, value in document["place"].items():
        need(isinstance(value, str), f"place.{key}", "a text", value)
    for subject, said in document["subjects"].items():
        plain = subject.isprintable() and subject and " " not in subject
        need(plain, "subjects", "a name without blanks", subject)
        path = f"subjects.{subject}"
        need(isinstance(said, dict), path, "an object", said)
        for key in VERDICTS:
            if key not in said:
                raise EvidenceError(name, f"{path}.{key} is missing")
            verdict = said[key]
            is_one = verdict is None or isinstance(verdict, bool)
            need(is_one, f"{path}.{key}", "true, false or null", verdict)
        fresh = said.get(FRESH_STARTS, 0)
        right = _is_of_type(fresh, int) and fresh >= 0
        need(right, f"{path}.{FRESH_STARTS}", "a whole number, 0 or more", fresh)
        if said["gains"] and not said["sound"]:
            raise EvidenceError(name, f"{path}.gains: only what is sound can gain")
    for number, row in enumerate(document["trials"]):
        path = f"trials.{number}"
        need(isinstance(row, dict), path, "an object", row)
        for field, (kind, always) in ROW.items():
            if always and field not in row:
                raise EvidenceError(name, f"{path}.{field} is missing")
            if field in row:
                need(_is_of_type(row[field], kind), f"{path}.{field}", _KINDS[kind], row[field])
        for value in row.get("samples", ()):
            need(_is_of_type(value, float), f"{path}.samples", "numbers", value)
    return EvidenceFile(name, **{field: document[field] for field in FIELDS if field != "version"})


def _is_of_type(value: Any, kind: type) -> bool:
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, _TIME)
    except ValueError:
        return False
    return bool(MADE.fullmatch(text))


def _found_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _KINDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "..."


def write_evidence(path: Path, document: Mapping[str, Any]) -> None:
    """Write evidence, all of it or nothing: the same document always as the same bytes.

    Raises EvidenceError for a document that could not be read again, and OSError.
    """
    check_document(document, str(path))
    try:
        text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise EvidenceError(str(path), str(error)) from None
    files.write(path, f"{text}\n".encode())
