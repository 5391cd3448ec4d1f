"""``rocm-autopatch bake``: resolve the policy once, so that no start has to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocm_autopatch import _BAKED
from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.command import Command, CommandResult, option_field
from rocm_autopatch.policy import bake
from rocm_autopatch.support.text import wrapped

_SWITCHES = ("ROCM_AUTOPATCH", "ROCM_AUTOPATCH_KEEP", "ROCM_AUTOPATCH_LOG")


@dataclass(frozen=True)
class BakeArguments:
    image: str = options.image_option("the image this is")
    policy: str = option_field(
        "--policy",
        parse=str,
        default="",
        metavar="POLICY",
        help="a policy on top, as ROCM_AUTOPATCH_POLICY would name it",
    )
    out: Path | None = option_field(
        "--out",
        parse=values.parse_path,
        default=None,
        metavar="PATH",
        help="default: baked.plan beside the package, where starts look",
    )
    json: bool = options.json_flag("print what was done as JSON")


def bake_plan(arguments: BakeArguments) -> CommandResult:
    out = arguments.out or Path(_BAKED)
    baked = bake.resolve(arguments.image, arguments.policy)
    bake.write(baked, out, own=not arguments.out)
    done = {"path": str(out), **_said_of_plan(baked)}
    elsewhere = f"a start uses a plan only at {_BAKED}, not this file" if arguments.out else ""
    return CommandResult(lambda: _baked_lines(done), lambda: done, summary=elsewhere)


COMMAND = Command(
    BakeArguments,
    bake_plan,
    description=(
        "Resolve the policy for this interpreter and image, and write the plan where the "
        "start of every interpreter of this environment finds it. Starts use it until torch, "
        "a policy or this package changes. After that, each start says so and resolves the "
        "policy by itself, without --image and --policy."
    ),
    example="rocm-autopatch bake --image rocm/sgl-dev:TAG --policy /etc/team.yaml",
    statuses={0: "the plan is written", 1: "nothing was written"},
    page="policies.md#bake",
)


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
