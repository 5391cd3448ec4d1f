"""``rocm-autopatch bake``: resolve the policy once, so that no start has to."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocm_autopatch import _BAKED
from rocm_autopatch.cli import statuses, terminal
from rocm_autopatch.image import reference
from rocm_autopatch.policy import bake
from rocm_autopatch.support.text import wrapped

_SWITCHES = ("ROCM_AUTOPATCH", "ROCM_AUTOPATCH_KEEP", "ROCM_AUTOPATCH_LOG")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "bake",
        help="resolve the policy once, so that starts need not",
        description=(
            "Resolve the policy for this interpreter and image, and write the plan where the "
            "start of every interpreter of this environment finds it. Starts use it until torch, "
            "a policy or this package changes. After that, each start says so and resolves the "
            "policy by itself, without --image and --policy."
        ),
        epilog="example: rocm-autopatch bake --image rocm/sgl-dev:TAG --policy /etc/team.yaml",
    )
    statuses.state_statuses(parser, {0: "the plan is written", 1: "nothing was written"})
    parser.add_argument(
        "--image", default="", type=_parse_image, metavar="REF", help="the image this is"
    )
    parser.add_argument(
        "--policy", default="", help="a policy on top, as ROCM_AUTOPATCH_POLICY would name it"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help=f"default: {_BAKED}, where starts look"
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(run=run)


def _parse_image(text: str) -> str:
    try:
        if text:  # argparse passes the default by here, too.
            reference.parse_reference(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def run(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out or Path(_BAKED)
    baked = bake.resolve(arguments.image, arguments.policy)
    bake.write(baked, out, own=not arguments.out)
    done = {"path": str(out), **_said_of_plan(baked)}
    if arguments.json:
        terminal.print_data(done)
    else:
        terminal.print_lines(_baked_lines(done))
    if arguments.out:
        terminal.print_error(f"a start uses a plan only at {_BAKED}, not this file")
    return 0


def _said_of_plan(baked: bake.Baked) -> dict[str, Any]:
    plan = baked.plan
    return {
        "reason": plan["reason"],
        "layers": list(plan["layers"]),
        "fixed": baked.fixed,
        "sources": baked.sources,
        "gfx": plan["gfx"],
        "variables": baked.variables,
        "evidence": {
            "machine": baked.machine,
            "files": baked.evidence,
            "unused": baked.unused,
        },
    }


def _baked_lines(done: dict[str, Any]) -> Iterator[str]:
    yield f"{done['path']}: {done['reason']}"
    yield f"  layers: {' < '.join(done['layers'])}"
    for title, words in (
        ("fixed", [f"{name} {value}" for name, value in done["fixed"].items()]),
        ("used until one of these files changes", done["sources"]),
        ("a user can still set", [*_SWITCHES, *done["variables"]]),
    ):
        yield from wrapped(f"{title}: {', '.join(words)}", "  ", "    ", break_long_words=False)
    evidence = done["evidence"]
    if evidence["machine"]:
        where = ", ".join(f"{name} {value}" for name, value in evidence["machine"].items())
        text = f"evidence for {where}: {', '.join(evidence['files'])}"
        yield from wrapped(text, "  ", "    ", break_long_words=False)
    elif evidence["unused"]:
        yield from wrapped(evidence["unused"], "  ", "    ", break_long_words=False)
    elif evidence["files"]:
        yield "  evidence changes nothing: no entry that applies asks for it"
    if done["gfx"] is not None:
        gpu = f"on {done['gfx']}" if done["gfx"] else "where the GPU is unknown"
        yield f"  a layer depends on the GPU: each start looks for it, and uses the plan only {gpu}"
