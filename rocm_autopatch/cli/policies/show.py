"""``rocm-autopatch policies show``: what applies to an image that is assumed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rocm_autopatch import _ASSUME, fresh_interpreter, patches
from rocm_autopatch.cli import entries, options
from rocm_autopatch.cli.command import Command, CommandResult, position_field
from rocm_autopatch.image import facts as place
from rocm_autopatch.plan import ENV_FIELDS, RANGE_FIELDS, Plan, named_fields
from rocm_autopatch.policy import lower, select, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.support import masking
from rocm_autopatch.support.text import wrapped


@dataclass(frozen=True)
class ShowArguments(options.AssumedFacts):
    name: str = position_field(
        parse=str,
        default="",
        optional=True,
        metavar="POLICY",
        help="a policy as in ROCM_AUTOPATCH_POLICY: a built-in one or a file's path",
    )
    json: bool = options.json_flag("print the plan as JSON")


def show_policy(arguments: ShowArguments) -> CommandResult:
    known = {"accelerator": ("rocm", "the default"), **_assumed_facts(arguments.assumed)}
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
    left_out = [layer for layer in chosen.layers if not when.holds(layer.when, facts)]
    holding = [layer for layer in chosen.layers if layer not in left_out]
    return CommandResult(
        lambda: (
            *_policy_lines(plan, facts, left_out),
            *_unproven_lines(holding, facts, secrets),
        ),
        lambda: {"facts": facts, **plan},
    )


COMMAND = Command(
    ShowArguments,
    show_policy,
    description=(
        "Show what applies to a place of which only the assumed facts are known. The facts of "
        "this machine do not count. Without --assume accelerator=..., accelerator=rocm is "
        "assumed."
    ),
    example="rocm-autopatch policies show performance --assume torch=2.9.1+rocm7.2",
    statuses={0: "the entries", 1: "a policy can't be read"},
)


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
