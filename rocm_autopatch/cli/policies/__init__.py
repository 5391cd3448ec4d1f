"""``rocm-autopatch policies``: what is built in, and what is known of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rocm_autopatch.cli import options
from rocm_autopatch.cli.command import Command, CommandGroup, CommandResult
from rocm_autopatch.policy import load, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.record import sentences
from rocm_autopatch.support.text import wrapped


@dataclass(frozen=True)
class PoliciesArguments:
    json: bool = options.json_flag()


def list_policies(_: PoliciesArguments) -> CommandResult:
    policies = [load.top(name) for name in load.names()]
    rows = load.images()
    return CommandResult(
        lambda: _listed_policy(policies, rows),
        lambda: {
            "policies": {top.name: _policy_summary(top) for top in policies},
            "images": [_record_data(row) for row in rows],
        },
    )


COMMAND = CommandGroup(
    {"show": "all entries that apply, layers merged"},
    alone=Command(
        PoliciesArguments,
        list_policies,
        description="List the built-in policies and what is known of images, or show one policy.",
        example="rocm-autopatch policies show --image rocm/sgl-dev:TAG",
        statuses={0: "the list", 1: "a policy can't be read"},
    ),
)


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


def _policy_summary(top: Policy) -> dict[str, object]:
    return {
        "description": top.description,
        "layers": [layer.name for layer in load.layers(top)],
    }


def _record_data(row: Policy) -> dict[str, object]:
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
