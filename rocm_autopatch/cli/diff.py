"""``rocm-autopatch diff``: what differs between two machines, and what of it is in the digest."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.cli import options
from rocm_autopatch.cli.command import Command, CommandResult, position_field
from rocm_autopatch.record import metrics
from rocm_autopatch.support.text import counted, printable
from rocm_autopatch.support.user_error import UserError

# With the newline, a line has at most 80 characters.
_WIDTH = 79
_STDIN = "-"
_TITLES = {
    "policy": "Policy",
    "facts": "Facts",
    "image": "Image",
    "variables": "Variables",
    "config": "Config values, compile modes and other entries",
    "caches": "Caches",
    "patches": "Patches",
    "errors": "Errors",
}


class _UnusableReport(UserError):
    """A file is no report. The text names it and says why."""

    usual_status = 2


@dataclass(frozen=True)
class DiffArguments:
    a: str = position_field(
        parse=str, metavar="FILE", help="a file of status --json, or - for the next one on stdin"
    )
    b: str = position_field(
        parse=str, metavar="FILE", help="a file of status --json, or - for the next one on stdin"
    )
    json: bool = options.json_flag("print the differences as JSON")


def compare_files(arguments: DiffArguments) -> CommandResult:
    files = (arguments.a, arguments.b)
    reports = _read_reports(files)
    try:
        shown = _compared(files, reports)
        lines = [*_difference_lines(shown)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Another version of ours may have written a part of them in another shape.
        raise _UnusableReport(
            f"{' and '.join(map(_file_name, files))} can't be compared, a part has another shape: "
            f"{type(error).__name__}: {error}"
        ) from None
    return CommandResult(lambda: lines, lambda: shown, status=0 if shown["same"] else 1)


def _compared(files: tuple[str, str], reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What differs, as plain data."""
    found = metrics.compare_reports(*reports)
    secrets = fresh_interpreter.secrets()
    heads = [_head_line(file, report) for file, report in zip(files, reports)]
    return {
        "same": found.same,
        "a": secrets.data(heads[0]),
        "b": secrets.data(heads[1]),
        "differences": [_masked_difference(one, secrets) for one in found.differences],
        "notes": secrets.data(found.notes),
    }


COMMAND = Command(
    DiffArguments,
    compare_files,
    description=(
        "Compare two reports of 'rocm-autopatch status --json': policy, facts, image, "
        "variables, config and caches. First comes what makes the digests differ. A file may "
        "be a pipe; - is the next report on stdin, so 'diff - -' reads two. A file that is no "
        "report is wrong usage."
    ),
    example=(
        "rocm-autopatch diff <(docker exec a rocm-autopatch status --json) "
        "<(docker exec b rocm-autopatch status --json)"
    ),
    statuses={
        0: "programs compile alike in both: the digests are equal",
        1: "the digests differ",
    },
)


def _read_reports(files: tuple[str, str]) -> list[dict[str, Any]]:
    """The reports, in the order of *files*. Raises _UnusableReport."""
    on_stdin = iter(_on_stdin(files.count(_STDIN)) if _STDIN in files else ())
    reports = []
    for file in files:
        name = _file_name(file)
        try:
            report = next(on_stdin) if file == _STDIN else json.loads(_read_bytes(file))
            metrics.check_report(report)
        except OSError as error:
            raise _UnusableReport(f"{name} can't be read: {error.strerror}") from None
        except metrics.NotAReport as error:
            raise _UnusableReport(f"{name} is no report of status --json: {error}") from None
        except (ValueError, RecursionError) as error:
            raise _UnusableReport(f"{name} is no JSON, so no report: {error}") from None
        reports.append(report)
    return reports


def _file_name(file: str) -> str:
    return "stdin" if file == _STDIN else file


def _read_bytes(file: str) -> bytes:
    with open(file, "rb") as stream:
        return stream.read()


def _on_stdin(wanted: int) -> list[Any]:
    """The reports that stand on stdin, one after the other. Raises _UnusableReport."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    except (OSError, AttributeError):
        raise _UnusableReport("stdin can't be read") from None
    found = []
    while text:
        try:
            one, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError) as error:
            raise _UnusableReport(f"stdin is no JSON, so no report: {error}") from None
        found.append(one)
        text = text[end:].lstrip()
    if len(found) != wanted:
        asked = counted(wanted, "report")
        raise _UnusableReport(
            f"stdin has {counted(len(found), 'report')}, and {asked} should be there"
        )
    return found


def _head_line(file: str, report: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": _file_name(file),
        "node": str(report.get("node", "")),
        "policy": " < ".join(map(str, report["policies"])),
        "digest": report["digest"],
    }


def _masked_difference(one: metrics.ReportDifference, secrets: Any) -> dict[str, Any]:
    """A difference as plain data. A report of a program is not masked yet."""
    shown = secrets.data(asdict(one))
    for side in ("a", "b"):
        value = getattr(one, side)
        if isinstance(value, dict):
            shown[side] = {key: secrets.value(one.name, its) for key, its in value.items()}
        else:
            shown[side] = secrets.value(one.name, value)
    return dict(shown)


def _difference_lines(shown: dict[str, Any]) -> Iterator[str]:
    """The comparison as text of at most 80 columns."""
    for label in "ab":
        head = shown[label]
        words = [head["file"], head["node"], head["policy"] or "no policy"]
        words.append(f"digest {head['digest']}" if head["digest"] else "no digest")
        yield from _wrapped_lines(f"{label.upper()}: " + ", ".join(filter(None, words)), "", "   ")
    inside = [one for one in shown["differences"] if one["part"]]
    outside = [one for one in shown["differences"] if not one["part"]]
    yield ""
    if shown["same"]:
        yield "The digests are equal: programs compile alike in both."
    else:
        yield f"The digests differ, in {counted(len(inside), 'part')}:"
    yield from _difference_sections(inside)
    if outside:
        yield ""
        yield "Not in the digest, and different:"
        yield from _difference_sections(outside)
    if shown["notes"]:
        yield ""
        yield "Notes"
    for text in shown["notes"]:
        yield from _wrapped_lines(text, "  ", "    ")


def _difference_sections(differences: list[dict[str, Any]]) -> Iterator[str]:
    section = ""
    for one in differences:
        if one["section"] != section:
            section = one["section"]
            yield ""
            yield _TITLES[section]
        if section == "errors":
            only = "A" if one["a"] is not None else "B"
            yield from _wrapped_lines(f"only {only}: {one['name']}", "  ", "    ")
            continue
        yield from _wrapped_lines(one["name"], "  ", "    ")
        for side in ("a", "b"):
            yield from _wrapped_lines(
                f"{side.upper()}: {_value_text(one[side], one)}", "    ", "       "
            )


def _value_text(value: Any, one: dict[str, Any]) -> str:
    """What one side has, as text."""
    if value is None:
        return "unset" if one["section"] == "variables" else "nothing"
    if isinstance(value, dict) and "before" in value:
        said = _became_text(value, "unset" if one["section"] == "variables" else "nothing")
        return f"{said} ({value['status']})"
    if isinstance(value, dict):
        return ": ".join(str(its) for its in value.values() if its)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    if isinstance(value, str):
        return value or "nothing"
    return json.dumps(value)


def _became_text(row: dict[str, Any], nothing: str) -> str:
    before, after, wanted = (
        nothing if row[key] is None else str(row[key]) for key in ("before", "after", "wanted")
    )
    if row["status"] == "waiting":
        return wanted
    return before if before == after else f"{before} -> {after}"


def _wrapped_lines(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
