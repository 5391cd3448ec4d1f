"""The command line: one file a command, each with ``add(commands)`` and a function that runs it.

Exit statuses: 0 done, 1 something is wrong with what was asked about, 2 wrong usage.
"""

from __future__ import annotations

from rocm_autopatch import search_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rocm-autopatch`` with *arguments* (default: the process's) and return its status."""
    search_path.leave_out_relative()
    # Only now is sys.path what it is to be.
    from rocm_autopatch.cli import command_line

    return command_line.run(arguments)
