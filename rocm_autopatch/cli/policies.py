"""``rocm-autopatch policies``: the built-in policies, and what one of them comes to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from rocm_autopatch.plan import Plan
from rocm_autopatch.policy import load, lower
from rocm_autopatch.policy.schema import Policy


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "policies",
        help="list the built-in policies, or show what one comes to",
        description="List the built-in policies and known images, or show all entries of one.",
        epilog="example: rocm-autopatch policies show performance",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(metavar="show NAME")
    show = actions.add_parser("show", help="all entries of a policy, its layers merged")
    show.add_argument("name", help="a built-in policy, an image of images.yaml, or a file's path")
    show.add_argument("--json", action="store_true", help="print the plan as JSON")
    show.set_defaults(run=_show)


def _list(arguments: argparse.Namespace) -> int:
    policies = [load.top(name) for name in load.names()]
    rows = load.images()
    if arguments.json:
        found = {
            "policies": {top.name: _summary(top) for top in policies},
            "images": {row.name: {**_summary(row), "policy": row.extends[0]} for row in rows},
        }
        print(json.dumps(found, indent=2))
        return 0
    for title, tops in (("Policies", policies), ("Images", rows)):
        print(title)
        for top in tops:
            layers = " < ".join(layer.name for layer in load.layers(top))
            print(f"  {layers}")
            for text in (top.description, *top.known_issues):
                print("\n".join(wrap(text, 99, initial_indent="    ", subsequent_indent="    ")))
    return 0


def _summary(top: Policy) -> dict[str, Any]:
    return {
        "description": top.description,
        "layers": [layer.name for layer in load.layers(top)],
        "known_issues": list(top.known_issues),
    }


def _show(arguments: argparse.Namespace) -> int:
    plan = lower.lower(load.layers(load.top(arguments.name)))
    print(json.dumps(plan, indent=2) if arguments.json else "\n".join(_lines(plan)))
    return 0


def _lines(plan: Plan) -> Iterator[str]:
    yield " < ".join(plan["layers"])
    for name, action, value, layer, why, *span in plan["env"]:
        text = f"{name}: {action}{'' if value is None else f' {value!r}'}"
        yield from _entry(text, layer, why, span)
    for patch, target, entries in plan["patches"]:
        for entry in entries:
            if patch == "config":
                key, strength, value, yields_to, switch, layer, why, *span = entry
                text = f"{target}.{key}: {strength} {value!r}"
                text += f", yields to {yields_to}" if yields_to else ""
                text += f", switched by {switch}" if switch else ""
            else:
                mode, use, layer, why, *span = entry
                text = f"{mode}: use {use}"
            yield from _entry(text, layer, why, span)


def _entry(text: str, layer: str, why: str, span: list[tuple[int, ...]]) -> Iterator[str]:
    for word, release in zip(("since", "until"), span):
        text += f", {word} torch {'.'.join(map(str, release))}" if release else ""
    yield from wrap(f"{text}  [{layer}]", 99, initial_indent="  ", subsequent_indent="      ")
    yield from wrap(why, 99, initial_indent="      ", subsequent_indent="      ")
