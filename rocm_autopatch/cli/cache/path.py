"""``rocm-autopatch cache path``: the directory of this environment's place."""

from __future__ import annotations

from dataclasses import dataclass

from rocm_autopatch.caches import places
from rocm_autopatch.cli import options
from rocm_autopatch.cli.command import Command, CommandResult
from rocm_autopatch.cli.statuses import WRONG_OR_DONE


@dataclass(frozen=True)
class CachePathArguments:
    json: bool = options.json_flag()


def show_path(_: CachePathArguments) -> CommandResult:
    place = str(places.place_here().place)
    return CommandResult(lambda: [place], lambda: {"path": place})


COMMAND = Command(
    CachePathArguments,
    show_path,
    description="Print the directory of the place that starts here use. It need not be there.",
    example="rocm-autopatch cache path",
    statuses=WRONG_OR_DONE,
    page="caches.md",
)
