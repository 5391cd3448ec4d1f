"""``rocm-autopatch report DIR``: what was compiled, how long it took, and what to do."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocm_autopatch.cli import statuses, terminal
from rocm_autopatch.compile_report import page, summary
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.compile_report.model import CompileReport
from rocm_autopatch.support import files

TLPARSE = "tlparse"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="what a command compiled, how long it took, and what to do about it",
        description=(
            "Read what processes wrote to DIR under ROCM_AUTOPATCH_REPORT=DIR or rocm-autopatch "
            "run --report DIR, or any directory that PyTorch wrote a trace to (TORCH_TRACE). "
            "Print the slowest compiles, graph breaks, recompiles, and what to do about them."
        ),
        epilog="example: rocm-autopatch report /tmp/report --html report.html",
    )
    statuses.state_statuses(
        parser, {0: "a report", 1: "DIR can't be read, a file can't be written, or tlparse failed"}
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--tlparse",
        action="store_true",
        help="run tlparse on each process's trace, into DIR/tlparse; the page links to the results",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        report = gather_report(arguments.directory)
    except OSError as error:
        terminal.print_error(f"rocm-autopatch report: {error}")
        return 1
    failed = False
    if arguments.tlparse:
        failed = not render_traces(report)
    if arguments.html:
        failed = not write_page(report, arguments.html) or failed
    if arguments.json:
        terminal.print_data(summary.report_data(report))
    else:
        terminal.print_lines([*summary.summary_lines(report), *_hint_lines(report, arguments)])
    return 1 if failed else 0


def _hint_lines(report: CompileReport, arguments: argparse.Namespace) -> Iterator[str]:
    if report.graphs and not arguments.html:
        yield ""
        yield f"for a page with plots: rocm-autopatch report {arguments.directory} --html FILE"


def write_page(report: CompileReport, path: Path) -> bool:
    """Write the page. Returns False if that failed."""
    try:
        # A name that is not Unicode is shown as an escape.
        text = page.html_page(report, tlparse_links(report, path)).encode(
            "utf-8", "backslashreplace"
        )
        files.write(path, text)
    except OSError as error:
        terminal.print_error(f"rocm-autopatch report: {path} was not written: {error.strerror}")
        return False
    return True


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


def render_traces(report: CompileReport) -> bool:
    """Run tlparse on each trace. Returns whether all went well."""
    beside = Path(sys.executable).with_name(TLPARSE)
    program = str(beside) if beside.is_file() else shutil.which(TLPARSE)
    # Programs from empty or relative entries of PATH, in the working directory, are not run.
    if program is None or not os.path.isabs(program):
        terminal.print_error(
            f"rocm-autopatch report: {TLPARSE} is not installed: pip install tlparse"
        )
        return False
    fine = True
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
            terminal.print_error(f"rocm-autopatch report: tlparse can't be run: {error}")
            return False
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            terminal.print_error(f"rocm-autopatch report: tlparse failed for {trace}: {last}")
            fine = False
        else:
            terminal.print_error(f"rocm-autopatch report: {place / 'index.html'}")
    return fine
