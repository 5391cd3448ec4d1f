"""``rocm-autopatch report DIR``: what was compiled, how long it took, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    flag_field,
    option_field,
    position_field,
)
from rocm_autopatch.compile_report import page, summary
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.compile_report.model import CompileReport
from rocm_autopatch.support import files
from rocm_autopatch.support.user_error import UserError

TLPARSE = "tlparse"


@dataclass(frozen=True)
class ReportArguments:
    directory: Path = position_field(parse=values.parse_path, metavar="DIR")
    html: Path | None = option_field(
        "--html",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help="also write a page with plots",
    )
    json: bool = options.json_flag("print the report as JSON")
    tlparse: bool = flag_field(
        "--tlparse",
        help="run tlparse on each process's trace, into DIR/tlparse; the page links to the results",
    )


def show_report(arguments: ReportArguments) -> CommandResult:
    try:
        report = gather_report(arguments.directory)
    except OSError as error:
        raise UserError(str(error)) from None
    remarks = render_traces(report) if arguments.tlparse else []
    if arguments.html:
        remarks += write_page(report, arguments.html)
    return CommandResult(
        lambda: [*summary.summary_lines(report), *_hint_lines(report, arguments)],
        lambda: summary.report_data(report),
        status=1 if any(one.failed for one in remarks) else 0,
        remarks=[one.text for one in remarks],
    )


COMMAND = Command(
    ReportArguments,
    show_report,
    description=(
        "Read what processes wrote to DIR under ROCM_AUTOPATCH_REPORT=DIR or rocm-autopatch "
        "run --report DIR, or any directory that PyTorch wrote a trace to (TORCH_TRACE). "
        "Print the slowest compiles, graph breaks, recompiles, and what to do about them."
    ),
    example="rocm-autopatch report /tmp/report --html report.html",
    statuses={0: "a report", 1: "DIR can't be read, a file can't be written, or tlparse failed"},
    page="report.md",
)


def _hint_lines(report: CompileReport, arguments: ReportArguments) -> Iterator[str]:
    if report.graphs and not arguments.html:
        yield ""
        yield f"for a page with plots: rocm-autopatch report {arguments.directory} --html FILE"


@dataclass(frozen=True)
class ReportRemark:
    """What became of a file beside the report."""

    text: str
    failed: bool


def write_page(report: CompileReport, path: Path) -> list[ReportRemark]:
    """Write the page. Returns what went wrong."""
    try:
        # A name that is not Unicode is shown as an escape.
        text = page.html_page(report, tlparse_links(report, path)).encode(
            "utf-8", "backslashreplace"
        )
        files.write(path, text)
    except OSError as error:
        return [ReportRemark(f"{path} was not written: {error.strerror}", True)]
    return []


def _rendered_trace(report: CompileReport, trace: str) -> Path:
    name = Path(trace).stem.replace("dedicated_log_torch_trace_", "")
    return Path(report.directory) / "tlparse" / name


def tlparse_links(report: CompileReport, path: Path) -> dict[str, str]:
    """For each trace file, tlparse's page of it, relative to the page at *path*."""
    found = {}
    for trace in report.traces:
        index = _rendered_trace(report, trace) / "index.html"
        if index.is_file():
            found[trace] = os.path.relpath(index, path.parent)
    return found


def render_traces(report: CompileReport) -> list[ReportRemark]:
    """Run tlparse on each trace. Returns what it has written, and what went wrong."""
    beside = Path(sys.executable).with_name(TLPARSE)
    program = str(beside) if beside.is_file() else shutil.which(TLPARSE)
    # Programs from empty or relative entries of PATH, in the working directory, are not run.
    if program is None or not os.path.isabs(program):
        return [ReportRemark(f"{TLPARSE} is not installed: pip install tlparse", True)]
    remarks: list[ReportRemark] = []
    for trace in report.traces:
        place = _rendered_trace(report, trace)
        command: Sequence[str | Path] = (
            *(program, trace, "-o", place),
            *("--overwrite", "--no-browser"),
        )
        try:
            place.parent.mkdir(exist_ok=True)
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except OSError as error:
            return [*remarks, ReportRemark(f"tlparse can't be run: {error}", True)]
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            remarks.append(ReportRemark(f"tlparse failed for {trace}: {last}", True))
        else:
            remarks.append(ReportRemark(str(place / "index.html"), False))
    return remarks
