"""``rocm-autopatch probe``: what a place does to a Python process, with and without us."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocm_autopatch import _ASSUME, fresh_interpreter, startup
from rocm_autopatch.cli import options, style, values
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    option_field,
    repeated_option,
    some_values,
)
from rocm_autopatch.evidence import defects
from rocm_autopatch.probe import images, table
from rocm_autopatch.probe.table import PlaceProbe, TableRow
from rocm_autopatch.support.text import wrapped


@dataclass(frozen=True)
class ProbeArguments(options.AssumedFacts):
    imports: tuple[str, ...] = repeated_option(
        "--import",
        parse=values.parse_module,
        metavar="MODULE",
        help="import this module before torch's config is read, as a program would; repeatable",
    )
    json: bool = options.json_flag("print what was found as JSON")
    record: Path | None = option_field(
        "--record",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help="add this image to an images file, or update its row; a missing file is made",
    )
    readers: tuple[str, ...] | None = some_values(
        "--readers",
        parse=values.parse_variable,
        metavar="NAME",
        help=(
            "instead, tell from the installed files who reads each variable that is set here, or "
            "each NAME, and which of them nothing reads; with --record, the image's row says so"
        ),
    )


def _usage_error(arguments: ProbeArguments) -> str | None:
    if arguments.readers is not None and arguments.imports:
        return "--readers does not go with --import"
    if arguments.readers and arguments.record:
        return "with --record, --readers takes no NAME"
    return None


def probe_here(arguments: ProbeArguments) -> CommandResult:
    environment = started_environment(arguments.assumed)
    if arguments.record:
        images.check_images_file(arguments.record)
    if arguments.readers is not None:
        return _readers_result(arguments, environment, arguments.readers)
    found = table.probe_place(environment, arguments.imports)
    return CommandResult(
        lambda: probe_lines(found),
        lambda: probe_data(found),
        status=1 if found.left else 0,
        summary=images.record_probe(arguments.record, found) if arguments.record else "",
    )


COMMAND = Command(
    ProbeArguments,
    probe_here,
    description=(
        "In fresh interpreters without rocm_autopatch, read the variables that torch, Triton, "
        "ROCm and the frameworks use, and the config values that differ from what this torch "
        "ships, and find the cause of each difference. Then read the same with "
        "rocm_autopatch."
    ),
    example=(
        "docker run --rm -v $PWD:/out IMAGE rocm-autopatch probe --image IMAGE "
        "--record /out/images.yaml"
    ),
    statuses={
        0: "nothing that slows, hangs or crashes remains for a program that is started here",
        1: (
            "something remains, FILE can't be written, --record lacks the image's name, or "
            "with --readers: nothing reads one of the variables"
        ),
    },
    usage_error=_usage_error,
    page="probe.md",
)


def _readers_result(
    arguments: ProbeArguments, environment: dict[str, str], names: Sequence[str]
) -> CommandResult:
    """``--readers``. With ``--record``, the image's row says which variables nothing reads."""
    # No other command needs it.
    from rocm_autopatch.cli import readers

    looked = readers.find_readers(names, environment)
    recorded = ""
    if arguments.record:
        found = table.probe_place(environment, [])
        recorded = images.record_probe(arguments.record, found, looked.not_read)
    return CommandResult(
        lambda: readers.reader_lines(looked),
        lambda: readers.readers_data(looked),
        status=1 if looked.not_read else 0,
        summary=recorded,
    )


def started_environment(assume: list[str]) -> dict[str, str]:
    """The environment that this process was started with.

    It is without what start-up files of this Python, ours and others', have set since then. They
    set the same in the interpreters that read, and are seen there.
    """
    environment = fresh_interpreter.environment(assume)
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return environment
    started = dict(os.fsdecode(line).split("=", 1) for line in lines if b"=" in line)
    asked = (_ASSUME, "ROCM_AUTOPATCH_LOG")
    kept = {name: environment[name] for name in asked if name in environment}
    return {**{name: value for name, value in started.items() if name != startup.SAID}, **kept}


def probe_data(found: PlaceProbe) -> dict[str, Any]:
    """What was found, as --json prints it."""
    report = found.report
    return {
        "torch": found.torch,
        "compared_with": found.findings.compared,
        "image": found.image,
        "active": bool(report.get("active")),
        "policies": list(report.get("policies") or ()),
        "variables": [_row_data(row) for row in found.variables],
        "config": [_row_data(row) | _config_lines(row) for row in found.config],
        "crashes": [vars(crash) for crash in found.findings.crashes],
        "notes": found.notes,
        "left": found.left,
        "graphs": _objection_line(found),
    }


def _objection_line(found: PlaceProbe) -> str:
    """Which record of the ledger speaks against graphs here, "" if none does or they are proven."""
    said = found.report.get("facts") or {}
    facts = {name: str(fact["value"]) for name, fact in said.items()}
    one = defects.find_objection("graphs", facts)
    return one.sentence if one and "graphs" not in facts.get("proven", "").split() else ""


def _row_data(row: TableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "without": row.without,
        "with": row.with_us,
        "verdict": row.verdict.verdict,
        "why": row.verdict.why,
        "source": row.verdict.source,
        "who": row.who,
        "keys": list(row.keys),
        "left": row.left,
    }


def _config_lines(row: TableRow) -> dict[str, Any]:
    culprit = row.culprit
    blamed: dict[str, Any] = {}
    if culprit:
        blamed = {name: getattr(culprit, name) for name in ("kind", "file", "line", "by", "module")}
        blamed["variables"] = list(culprit.variables)
    return {"shipped": row.shipped, "in_threads": row.thread, "culprit": blamed}


def probe_lines(found: PlaceProbe) -> Iterator[str]:
    """What was found, as text."""
    torch = found.torch
    yield (
        f"torch {torch['version'] or 'of unknown version'}, {torch['file']}"
        if torch
        else "no torch"
    )
    report = found.report
    if report.get("active"):
        yield (
            f"with rocm_autopatch: layers {' < '.join(report['policies'])}; "
            f"image {found.image or 'not named'}"
        )
    if found.findings.compared:
        yield f"compared with {found.findings.compared}"
    rows = [*found.variables, *found.config]
    if rows:
        widest = max(len(_short_value(row.name)) for row in rows)
        widths = (min(max(widest, 20), 46), 17, 17)
        yield ""
        yield _row_cells(widths, ("rocm_autopatch:", "without", "with", "verdict")).rstrip()
    for title, section in (("Variables", found.variables), ("Config", found.config)):
        if section:
            yield title
        for row in section:
            yield from _entry_row(row, widths)
    if found.notes:
        yield ""
        yield "Notes"
    for text in found.notes:
        yield from wrapped(text, "  ", "    ")
    objection = _objection_line(found)
    if objection:
        yield ""
        yield from wrapped(f"graphs are not proven here: {objection}", "", "  ")
    yield ""
    left = found.left
    yield from wrapped(
        f"still dangerous with rocm_autopatch: {', '.join(left)}"
        if left
        else "nothing dangerous remains with rocm_autopatch",
        "",
        "  ",
    )


def _entry_row(row: TableRow, widths: tuple[int, ...]) -> Iterator[str]:
    values = [
        _value_cell(row, row.without),
        _value_cell(row, row.with_us) if row.read else "can't be read",
    ]
    cells = [value if len(value) <= width else "" for value, width in zip(values, widths[1:])]
    verdict = style.colour_word(row.verdict.verdict)
    yield _row_cells(widths, (_short_value(row.name), *cells, verdict)).rstrip()
    for title, value, cell in zip(("without", "with"), values, cells):
        if not cell:
            yield from wrapped(f"{title}: {value}", "      ", "        ")
    if row.thread is not None:
        yield from wrapped(f"in new threads: {_value_cell(row, row.thread)}", "      ", "        ")
    why = row.verdict.why.rstrip(".")
    source = f" ({row.verdict.source})" if row.verdict.source else ""
    who = f"{row.who}: " if row.who and row.verdict.verdict != table.POLICY else ""
    yield from wrapped(f"{who}{why}{source}", "      ", "        ")


def _row_cells(widths: tuple[int, ...], cells: tuple[str, ...]) -> str:
    *most, last = cells
    padded = [cell.ljust(width) for cell, width in zip(most, widths)]
    return "  " + " ".join([*padded, last])


def _short_value(name: str) -> str:
    return (
        name.replace("torch._inductor.config.", "inductor ")
        .replace("torch._", "")
        .replace(".config.", " ")
    )


def _value_cell(row: TableRow, value: object) -> str:
    if value is None and ".config." not in row.name:
        return "unset"
    text = value if isinstance(value, str) else str(value)
    return text if text and text.isprintable() else ascii(text)
