"""``rocm-autopatch check``: everything that is wrong with a policy file, before it is shipped."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rocm_autopatch.cli import terminal
from rocm_autopatch.policy import PolicyError, Problem, lint, load, lower, select


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="everything that is wrong with a policy file",
        description=(
            "Read policy files and what they extend, and print all that is wrong with each, as "
            "FILE:LINE:COLUMN: KEY: MESSAGE. With --torch, config keys are held against what those "
            "torch releases have: unknown keys and wrong types are errors; what is renamed, an "
            "alias or without effect is a remark. Exit status: 0, or 1 if there is an error; 2 for "
            "wrong usage."
        ),
        epilog="example: rocm-autopatch check --torch 2.6..2.13 team.yaml",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="default: the built-in policies and those in /etc/rocm-autopatch",
    )
    parser.add_argument(
        "--torch",
        type=_versions,
        default=(),
        metavar="VERSIONS",
        help="2.13, 2.6,2.13 or 2.4..2.15",
    )
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")
    parser.set_defaults(run=run)


def _versions(text: str) -> tuple[str, ...]:
    try:
        return lint.versions(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    files = arguments.files or [
        file for place in (load.BUILTIN, select.SITE) for file in sorted(place.glob("*.yaml"))
    ]
    found = [finding for file in files for finding in _check(file, arguments.torch)]
    if arguments.json:
        rows = [{"severity": severity, **asdict(problem)} for severity, problem in found]
        terminal.data(rows)
    else:
        for severity, problem in found:
            mark = "" if severity == lint.ERROR else f"{severity}: "
            terminal.lines([str(replace(problem, message=mark + problem.message))])
    errors = sum(severity == lint.ERROR for severity, _ in found)
    if not errors and not arguments.json:
        count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
        terminal.say(f"{count} checked, nothing wrong")
    return 1 if errors else 0


def _check(file: Path, versions: Sequence[str]) -> Iterator[tuple[str, Problem]]:
    """What is wrong with one file, with a severity."""
    try:
        if file.name == load.IMAGES.name:
            stacks = [(*load.layers(load.base(row)), row) for row in load.images(file)]
        else:
            stacks = [load.layers(load.policy(file))]
        for stack in stacks:
            *below, last = stack
            load.mitigations(last)
            lower.lower(stack)
            for finding in lint.lint(last, versions, below) if versions else ():
                yield finding.severity, finding.problem
    except PolicyError as error:
        for problem in error.problems:
            yield lint.ERROR, problem
