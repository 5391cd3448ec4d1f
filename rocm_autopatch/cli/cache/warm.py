"""``rocm-autopatch cache warm -- COMMAND``: run a command that fills the caches."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.caches import places, warm
from rocm_autopatch.cli import terminal
from rocm_autopatch.cli.cache import wording
from rocm_autopatch.cli.command import Command, CommandResult, program_words
from rocm_autopatch.cli.statuses import PASSED_ON
from rocm_autopatch.compile_report import session
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.support.text import duration, wrapped
from rocm_autopatch.support.user_error import UserError


@dataclass(frozen=True)
class CacheWarmArguments:
    words: tuple[str, ...] = program_words()


def fill_place(arguments: CacheWarmArguments) -> CommandResult:
    environ = places.caches_environment()
    here = places.start_place(environ)
    places.judge_directory(here.place)
    for part, size in warm.bring_aiter(here.place, here.torch):
        _say_line(f"{part}: {wording.size_text(size)} copied from the image")
    before = {place.path: place.size for place in places.places_beneath(here.root)}
    with tempfile.TemporaryDirectory(prefix="rocm-autopatch-warm-") as directory:
        session.prepare_environment(Path(directory), None, environ)
        began = time.time()
        try:
            status = session.run_command(arguments.words, environ)
        except session.NotRun as error:
            raise UserError(f"{arguments.words[0]}: {error}", status=error.status) from None
        seconds = time.time() - began
        # An error here does not change the command's status.
        try:
            _tell_after_warm(here, before, Path(directory), began, seconds, status)
        except (Exception, KeyboardInterrupt) as error:
            _say_line(f"{type(error).__name__}: {error}")
    return CommandResult(status=status, passed_on=True)


COMMAND = Command(
    CacheWarmArguments,
    fill_place,
    description=(
        "Run COMMAND with caches on, and end with its exit status. Before, copy the modules "
        "of the image's aiter. Afterwards, say on stderr what COMMAND found in torch's caches "
        "and what it added."
    ),
    example="rocm-autopatch cache warm -- python serve.py --one-request",
    statuses={**PASSED_ON, 1: "nothing was run"},
    no_json="stdout is COMMAND's; rocm-autopatch cache status --json has its last run",
    page="caches.md",
)


def _say_line(text: str) -> None:
    terminal.print_error(f"rocm-autopatch cache warm: {text}")


def _tell_after_warm(
    here: places.StartPlace,
    before: dict[Path, int],
    directory: Path,
    began: float,
    seconds: float,
    status: int,
) -> None:
    report = gather_report(directory)
    warm.keep_built(here.place)
    after = {place.path: place.size for place in places.places_beneath(here.root)}
    added = after.get(here.place, 0) - before.get(here.place, 0)
    row = {
        "time": round(began),
        "seconds": round(seconds, 1),
        "status": status,
        "graphs": len(report.graphs),
        **warm.lookup_counts(report),
        "bytes": added,
    }
    warm.note_run(here.place, row)
    found = wording.lookups_text(row) if report.graphs else "torch.compile compiled nothing"
    text = f"{wording.size_text(added)} added in {duration(seconds)}; {found}"
    terminal.print_lines(wrapped(f"rocm-autopatch cache warm: {text}", "", "  "), sys.stderr)
    others = [path.name for path, size in after.items() if size != before.get(path, 0)]
    for name in others:
        if name != here.place.name:
            terminal.print_error(
                f"rocm-autopatch cache warm: COMMAND filled another place, too: {name}"
            )
