"""The command line: one file a command, each with ``add(commands)`` and a function that runs it.

Exit statuses: 0 done, 1 something is wrong with what was asked about, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from rocm_autopatch.cli import fresh
from rocm_autopatch.policy import PolicyError

COMMANDS = (
    *("status", "explain", "policies", "check", "bake", "probe", "ab", "run", "report"),
    "completion",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rocm-autopatch`` with *arguments* (default: the process's) and return its status."""
    chosen = parser().parse_args(arguments)
    try:
        result: int = chosen.run(chosen)
        sys.stdout.flush()
    except (PolicyError, fresh.NoReport) as error:
        problems = error.problems if isinstance(error, PolicyError) else [error]
        for problem in problems:
            print(f"rocm-autopatch {chosen.command}: {problem}", file=sys.stderr)
        return 1
    except OSError as error:
        # stdout is a full disk or a closed pipe. What is still in its buffer would fail once more
        # when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"rocm-autopatch: stdout: {error.strerror}", file=sys.stderr)
        return 1
    return result


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    made = argparse.ArgumentParser(
        prog="rocm-autopatch",
        description=(
            "Safe and fast torch.compile in ROCm containers, without editing the program. "
            "ROCM_AUTOPATCH=off opts a process tree out; ROCM_AUTOPATCH=observe records only. "
            "Exit status: 0, or 1 if something is wrong with what was asked about; 2 for wrong "
            "usage."
        ),
        epilog="example: docker run --rm IMAGE rocm-autopatch status",
    )
    made.add_argument("--version", action=_Version)
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        try:
            importlib.import_module(f"rocm_autopatch.cli.{name}").add(commands)
        except ImportError as error:
            # An overlay installs the wheel alone. Where PyYAML is missing, status still works.
            _add_missing(commands, name, error)
    return made


def _add_missing(commands: Any, name: str, error: ImportError) -> None:
    def run(_: argparse.Namespace) -> int:
        print(f"rocm-autopatch {name}: {error}", file=sys.stderr)
        return 1

    parser = commands.add_parser(name, help=f"can't run: {error}")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(version("rocm_autopatch"))
        parser.exit()
