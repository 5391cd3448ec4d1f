"""``rocm-autopatch policies``: what is built in, and what applies to an image that is assumed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rocm_autopatch import _ASSUME, fresh_interpreter, patches
from rocm_autopatch.cli import entries, options, statuses, terminal
from rocm_autopatch.image import facts as place
from rocm_autopatch.plan import ENV_FIELDS, RANGE_FIELDS, Plan, named_fields
from rocm_autopatch.policy import load, lower, select, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.record import sentences
from rocm_autopatch.support import masking
from rocm_autopatch.support.text import wrapped


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "policies",
        help="list the built-in policies, or show what applies to an image",
        description=("List the built-in policies and what is known of images, or show one policy."),
        epilog="example: rocm-autopatch policies show --assume image=rocm/sgl-dev:TAG",
    )
    statuses.state_statuses(parser, {0: "the list", 1: "a policy can't be read"})
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_list)
    actions = parser.add_subparsers(metavar="show [POLICY]")
    show = actions.add_parser(
        "show",
        help="all entries that apply, layers merged",
        description=(
            "Show what applies to a place of which only the assumed facts are known. The facts of "
            "this machine do not count. Without --assume accelerator=..., accelerator=rocm is "
            "assumed."
        ),
        epilog="example: rocm-autopatch policies show performance --assume torch=2.9.1+rocm7.2",
    )
    statuses.state_statuses(show, {0: "the entries", 1: "a policy can't be read"})
    show.add_argument(
        "name",
        nargs="?",
        default="",
        metavar="POLICY",
        help="a policy as in ROCM_AUTOPATCH_POLICY: a built-in one or a file's path",
    )
    options.add_assume(show)
    show.add_argument("--json", action="store_true", help="print the plan as JSON")
    show.set_defaults(run=_run_show)


def _run_list(arguments: argparse.Namespace) -> int:
    policies = [load.top(name) for name in load.names()]
    rows = load.images()
    if arguments.json:
        found = {
            "policies": {top.name: _policy_summary(top) for top in policies},
            "images": [_record_data(row) for row in rows],
        }
        terminal.print_data(found)
    else:
        terminal.print_lines(_listed_policy(policies, rows))
    return 0


def _listed_policy(policies: Sequence[Policy], rows: Sequence[Policy]) -> Iterator[str]:
    yield "Policies"
    for top in policies:
        yield "  " + " < ".join(layer.name for layer in load.layers(top))
        yield from wrapped(top.description, "    ", "    ")
    yield "Images"
    for row in rows:
        yield f"  {row.name}"
        where = f"where {when.text(row.when)}" if row.when else ""
        for text in filter(None, (row.description, where, *_known_issues(row))):
            yield from wrapped(text, "    ", "    ")


def _policy_summary(top: Policy) -> dict[str, Any]:
    return {
        "description": top.description,
        "layers": [layer.name for layer in load.layers(top)],
    }


def _record_data(row: Policy) -> dict[str, Any]:
    return {
        "name": row.name,
        "image": row.image,
        "when": {name: list(wanted) for name, wanted in row.when.items()},
        "policy": row.base or load.DEFAULT,
        "description": row.description,
        "sets": [asdict(setting) for setting in row.sets],
        "known_issues": [asdict(issue) for issue in row.known_issues],
    }


def _known_issues(row: Policy) -> Iterator[str]:
    for setting in row.sets:
        yield f"sets {setting.name}={setting.value}"
    for issue in row.known_issues:
        yield "known issue: " + sentences.issue_sentence(asdict(issue))


def _run_show(arguments: argparse.Namespace) -> int:
    known = {"accelerator": ("rocm", "the default"), **_assumed_facts(arguments.assume)}
    facts = place.gather_facts(known, ()).values()
    chosen = select.select(facts, arguments.name)
    plan = lower.lower(chosen.layers, facts, chosen.policy)
    secrets = fresh_interpreter.secrets()
    rules = {
        part: [
            (name, action, secrets.value(name, value), *rest) for name, action, value, *rest in rows
        ]
        for part, rows in (("env", plan["env"]), ("empty", plan["empty"]))
    }
    plan = secrets.data(
        {name: _readable_policies(part) for name, part in {**plan, **rules}.items()}
    )
    if arguments.json:
        terminal.print_data({"facts": facts, **plan})
        return 0
    left_out = [layer for layer in chosen.layers if not when.holds(layer.when, facts)]
    holding = [layer for layer in chosen.layers if layer not in left_out]
    terminal.print_lines(_policy_lines(plan, facts, left_out))
    terminal.print_lines(_unproven_lines(holding, facts, secrets))
    return 0


def _readable_policies(part: Any) -> Any:
    """A part of a plan for JSON, which has no bytes. A start compares variables as bytes."""
    if isinstance(part, (tuple, list)):
        return [_readable_policies(one) for one in part]
    return os.fsdecode(part) if isinstance(part, bytes) else part


def _assumed_facts(given: list[str]) -> dict[str, tuple[str, str]]:
    pairs = [item.partition("=") for item in given]
    return {name: (value, _ASSUME) for name, _, value in pairs}


def _unproven_lines(
    layers: Sequence[Policy], facts: dict[str, str], secrets: masking.Secrets
) -> Iterator[str]:
    """The entries that need evidence that is not here."""
    for layer in layers:
        for name, strength, value, entry in entries.entries_of(layer):
            why = entries.unproven_entries(entry, facts)
            if why:
                shown = secrets.value(name, value) if isinstance(value, str) else value
                said = strength if strength in entries.DELETIONS else f"{strength} {shown!r}"
                text = f"left out: {name}: {said}  [{layer.name}], because {why}"
                yield from wrapped(text, "  ", "      ")


def _policy_lines(plan: Plan, facts: dict[str, str], left_out: list[Policy]) -> Iterator[str]:
    yield " < ".join(plan["layers"])
    known = ", ".join(f"{name}={value}" for name, value in facts.items())
    yield from wrapped(known, "  for ", "      ")
    for layer in left_out:
        why = f"its condition does not hold: {when.text(layer.when)}"
        yield f"  left out: {layer.name}, because {why}"
    for rule in (*plan["env"], *plan["empty"]):
        row = named_fields(ENV_FIELDS, rule)
        value = "" if row["value"] is None else f" {row['value']!r}"
        yield from _entry_text(f"{row['name']}: {row['action']}{value}", row)
    for patch, target, given in plan["patches"]:
        for entry in given:
            row = named_fields((*patches.load(patch).FIELDS, *RANGE_FIELDS), entry)
            text = f"{patches.full_name(patch, target, row['name'])}: "
            text += (
                f"{row['strength']} {row['wanted']!r}"
                if "strength" in row
                else (f"use {row['wanted']}")
            )
            text += f", yields to {row['yields_to']}" if row.get("yields_to") else ""
            text += f", switched by {row['switch']}" if row.get("switch") else ""
            yield from _entry_text(text, row)


def _entry_text(text: str, row: dict[str, Any]) -> Iterator[str]:
    for word in RANGE_FIELDS:
        text += f", {word} torch {'.'.join(map(str, row[word]))}" if row[word] else ""
    yield from wrapped(f"{text}  [{row['layer']}]", "  ", "      ")
    yield from wrapped(row["why"], "      ", "      ")
