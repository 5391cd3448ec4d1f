"""The command line: one file a command, each with ``add(commands)`` and a function that runs it.

Exit statuses: 0 done, 1 something is wrong with what was asked about, 2 wrong usage.
"""

from rocm_autopatch.support import safe_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Optional


def main(arguments: "Optional[Sequence[str]]" = None) -> int:
    """Run ``rocm-autopatch`` with *arguments* (default: the process's) and return its status."""
    # Before anything else is imported, "from __future__" included.
    safe_path.leave_out_relative()
    try:
        from rocm_autopatch.cli import command_line
    except KeyboardInterrupt:
        return 130  # processes.INTERRUPTED; it is not imported yet
    return command_line.run(arguments)
