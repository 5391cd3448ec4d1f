"""``rocm-autopatch check``: everything that is wrong with a policy, before it is shipped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rocm_autopatch import _SITE, policy_dirs
from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.command import Command, CommandResult, option_field, position_fields
from rocm_autopatch.evidence import file as evidence
from rocm_autopatch.policy import lint, load, lower, select, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.problem import REMARK, Problem, Problems


def _parse_versions(text: str) -> tuple[str, ...]:
    try:
        return lint.versions(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class CheckArguments:
    files: tuple[Path, ...] = position_fields(
        parse=values.parse_path,
        metavar="FILE",
        help=f"default: the built-in policies and those in {_SITE} and in {policy_dirs.VARIABLE}",
    )
    torch: tuple[str, ...] = option_field(
        "--torch",
        parse=_parse_versions,
        default=(),
        metavar="VERSIONS",
        help="2.13, 2.6,2.13 or 2.4..2.15",
    )
    json: bool = options.json_flag("print the problems as JSON")


def check_files(arguments: CheckArguments) -> CommandResult:
    files = arguments.files or (
        *(
            file
            for place in (load.BUILTIN, *select.sites())
            for file in sorted(place.glob("*.yaml"))
        ),
        *evidence.site_paths(),
    )
    found = [_check_policy(file, arguments.torch) for file in files]
    problems = [problem for one in found for problem in one.shown()]
    errors = sum(one.errors for one in found)
    remarks = sum(len(one) for one in found) - errors
    counted = _count_problems(errors, "error") + (
        f", {_count_problems(remarks, 'remark')}" if remarks else ""
    )
    return CommandResult(
        lambda: map(str, problems),
        lambda: [*map(asdict, problems)],
        status=1 if errors else 0,
        summary=""
        if arguments.json
        else f"{_count_problems(len(files), 'file')} checked: {counted}",
    )


COMMAND = Command(
    CheckArguments,
    check_files,
    description=(
        "Read policy files and what they extend, and print all that is wrong with each, as "
        "FILE:LINE:COLUMN: KEY: MESSAGE. With --torch, config keys are held against what "
        "those torch releases have: unknown keys and wrong types are errors; what is renamed, "
        "an alias or without effect is a remark. A file that ends in .json is an evidence "
        "file."
    ),
    example="rocm-autopatch check --torch 2.6..2.13 team.yaml",
    statuses={0: "no errors; remarks do not count", 1: "an error in a file"},
)


def _count_problems(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _check_policy(file: Path, versions: Sequence[str]) -> Problems:
    """What is wrong with one file and what it extends."""
    if file.suffix == ".json":
        return _check_evidence(file)
    reading = load.Reading(REMARK)
    if file.name == load.IMAGES.name:
        rows = [(reading.base(row), row) for row in reading.images(file)]
    else:
        policy = reading.policy(file)
        rows = [(None, policy)] if policy else []
    # Thousands of image records may stand on one base.
    stood_on: dict[str, tuple[lower.Pins, lint.Linter]] = {}
    for base, row in rows:
        key = base.file if base else ""
        if key not in stood_on:
            below = reading.layers(base) if base else reading.layers(row)[:-1]
            pins = lower.Pins(reading)
            for layer in below:
                if when.holds(layer.when, lower.BUILT_IN_FACTS):
                    pins.add(layer)
            stood_on[key] = pins, lint.Linter(versions, below)
        pins, linter = stood_on[key]
        reading.mitigations(row)
        if _is_for_rocm(row):
            pins.compare(row)
        if versions:
            linter.lint(row, reading)
    return reading


def _check_evidence(path: Path) -> Problems:
    """What is wrong with an evidence file."""
    problems = Problems()
    try:
        _, objection = evidence.look_at_evidence(path)
    except evidence.EvidenceError as error:
        problems.add(Problem(str(path), error.line, error.column, "", error.message))
        return problems
    if objection:
        message = f"a start on this machine would not obey this file: {objection}"
        problems.add(Problem(str(path), 0, 0, "", message, REMARK))
    return problems


def _is_for_rocm(policy: Policy) -> bool:
    known = lower.BUILT_IN_FACTS
    return when.holds({name: policy.when[name] for name in known if name in policy.when}, known)
