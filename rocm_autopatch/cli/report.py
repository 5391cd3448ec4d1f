"""``rocm-autopatch report DIR``: what was compiled, where the seconds went, and what to do."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocm_autopatch.compiles import page, summary
from rocm_autopatch.compiles.gather import Report, gather

TLPARSE = "tlparse"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="what a command compiled, where the seconds went, and what to do",
        description=(
            "Read what processes wrote to DIR under ROCM_AUTOPATCH_REPORT=DIR or rocm-autopatch "
            "run --report DIR, or any directory that PyTorch wrote a trace to (TORCH_TRACE), and "
            "print what cost most, graph breaks, recompiles, and what to do about them. Exit "
            "status: 0, or 1 if nothing can be read there or written; 2 for wrong usage."
        ),
        epilog="example: rocm-autopatch report /tmp/report --html report.html",
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page with plots")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--tlparse",
        action="store_true",
        help="have tlparse render each process's trace to DIR/tlparse; the page links to it",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        report = gather(arguments.directory)
    except OSError as error:
        print(f"rocm-autopatch report: {error}", file=sys.stderr)
        return 1
    failed = False
    if arguments.tlparse:
        failed = not render(report)
    if arguments.html:
        failed = not write_page(report, arguments.html) or failed
    if arguments.json:
        print(json.dumps(summary.data(report), indent=2))
    else:
        print("\n".join(summary.text(report)))
        print("\n".join(_hint(report, arguments)), end="")
    return 1 if failed else 0


def _hint(report: Report, arguments: argparse.Namespace) -> Iterator[str]:
    if report.graphs and not arguments.html:
        yield ""
        yield f"rocm-autopatch report {arguments.directory} --html FILE writes this with plots"
        yield ""


def write_page(report: Report, path: Path) -> bool:
    """Write the page in one step, so that no half of it is ever there; False if that failed."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_text(page.page(report, links(report, path)), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        print(f"rocm-autopatch report: {path}: {error.strerror}", file=sys.stderr)
        with suppress(OSError):
            partial.unlink()
        return False
    return True


def _rendered(report: Report, trace: str) -> Path:
    name = Path(trace).stem.replace("dedicated_log_torch_trace_", "")
    return Path(report.directory) / "tlparse" / name


def links(report: Report, path: Path) -> dict[str, str]:
    """By trace file, where tlparse's page of it is, from the page at *path*."""
    found = {}
    for trace in report.traces:
        index = _rendered(report, trace) / "index.html"
        if index.is_file():
            found[trace] = os.path.relpath(index, path.parent)
    return found


def render(report: Report) -> bool:
    """Have tlparse render each trace; whether all went well."""
    beside = Path(sys.executable).with_name(TLPARSE)
    program = str(beside) if beside.is_file() else shutil.which(TLPARSE)
    if program is None:
        print(f"rocm-autopatch report: no {TLPARSE} here: pip install tlparse", file=sys.stderr)
        return False
    fine = True
    for trace in report.traces:
        place = _rendered(report, trace)
        place.parent.mkdir(exist_ok=True)
        command: Sequence[str | Path] = (
            *(program, trace, "-o", place),
            *("--overwrite", "--no-browser"),
        )
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            print(f"rocm-autopatch report: tlparse {trace}: {last}", file=sys.stderr)
            fine = False
        else:
            print(f"rocm-autopatch report: {place / 'index.html'}", file=sys.stderr)
    return fine
