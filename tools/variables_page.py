"""Make docs/variables.md: our variables from tools/variables.yaml, and those of others from the
built-in policies.

python tools/variables_page.py > docs/variables.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch import startup
from rocm_autopatch.policy import load
from rocm_autopatch.policy.model import DELETE_EMPTY, Policy

DESCRIPTIONS = Path(__file__).with_name("variables.yaml")
HEAD = """\
# Environment variables

Look up here what a variable does, of ours and of others that policies change. Set one before the
interpreter starts, for that process and its children; a program that sets one for itself is too
late. Each has its values first, and after *else* what holds without it."""
IGNORED = """\
## Where they are not obeyed
{names} may name files, so they are ignored under `python -E` and `-I`, and in a program that runs
as another user than its caller ([security](security.md#variables-that-name-files)). The others are
obeyed there: `ROCM_AUTOPATCH=off` always works. A policy can set none of all these."""
OTHERS = """\
## Variables of others that we obey

- `NO_COLOR` (any text), `TERM=dumb`: [no colour](commands.md#colour) in what commands print
- {ranks}: if one is set, and not to 0, no line on stderr on policies or recompiles
- `XDG_CACHE_HOME`: below it are the [caches](caches.md), if they are on and no root is named
- `PYTHONPATH`: commands [leave out](commands.md#what-is-read) empty and relative entries"""
CHANGED = """\
## Variables that a built-in policy changes
A variable that a user set stays ([baseline](overlay.md#whose-value-it-is)), and
`ROCM_AUTOPATCH_KEEP=NAME` keeps any. [What a variable
outranks](policies.md#variables-that-outrank-a-flag)."""
EMPTY_TEXT = (
    "The empty text means something else than not set: the import of torch or a compile fails, a "
    "cache or a GPU is not found. `rocm-autopatch explain NAME` says it of one."
)
# What is said of each action.
ACTIONS = {
    "delete": "Deletes:",
    DELETE_EMPTY: "Deletes, if it is empty:",
    "set": "Sets:",
    "default": "Sets, if it is not set:",
}
DECIDED = """\
## Variables that decide about an entry of a built-in policy
If the variable is set, the user has decided about the config key."""
HOW = {
    "switch": "The key then has the variable's value:",
    "yields": "The key then has what torch itself makes of the variable:",
}


@dataclass(frozen=True)
class Variable:
    """One of our variables. All but ``name`` and ``names_files`` is Markdown.

    ``more`` is where to read on, a link from docs/.
    """

    name: str
    values: str
    what: str
    more: str = ""
    default: str = ""
    names_files: bool = False


@dataclass(frozen=True)
class Group:
    """Variables of one kind, under one heading."""

    title: str
    intro: str
    variables: tuple[Variable, ...]


def groups() -> tuple[Group, ...]:
    """What is described. Raises TypeError if a description has not the fields of Variable."""
    return tuple(
        Group(
            row["group"],
            row.get("intro", ""),
            tuple(Variable(name, **given) for name, given in row["variables"].items()),
        )
        for row in yaml.safe_load(DESCRIPTIONS.read_text(encoding="utf-8"))
    )


def page() -> Iterator[str]:
    """The lines of the page."""
    found = groups()
    yield from HEAD.splitlines()
    for group in found:
        yield from ("", f"## {group.title}")
        if group.intro:
            yield group.intro
        yield from ("", *_table(group.variables))
    variables = [one for group in found for one in group.variables]
    names = ", ".join(f"`{one.name}`" for one in variables if one.names_files)
    ranks = ", ".join(f"`{name.decode()}`" for name in startup.RANKS)
    policies = [load.policy(load.BUILTIN / f"{name}.yaml") for name in load.names()]
    yield from ("", *IGNORED.format(names=names).splitlines())
    yield from ("", *OTHERS.format(ranks=ranks).splitlines())
    yield from ("", *CHANGED.splitlines(), "", *_changed(policies))
    yield from (*DECIDED.splitlines(), *_decided(policies))


def _table(variables: Iterable[Variable]) -> Iterator[str]:
    for one in variables:
        default = f"; else {one.default}" if one.default else ""
        more = f" [More]({one.more})." if one.more else ""
        yield f"- `{one.name}`: {one.values}{default}. {one.what}{more}"


def _changed(policies: Iterable[Policy]) -> Iterator[str]:
    """What each policy changes, the variables of one action and one reason together."""
    for policy in policies:
        found: dict[str, dict[str, list[str]]] = {}
        for rule in policy.env:
            value = "" if rule.value is None else f"={rule.value}"
            # A claim has its own page.
            why = rule.why.partition(" (docs/")[0].rstrip(".")
            of_action = found.setdefault(ACTIONS[rule.action], {})
            of_action.setdefault(why, []).append(f"`{rule.name}{value}`")
        if found:
            yield f"### The policy `{policy.name}`"
        for said, reasons in found.items():
            yield from (said, "")
            if said == ACTIONS[DELETE_EMPTY]:
                every = sorted({name for names in reasons.values() for name in names})
                yield f"- {', '.join(every)}. {EMPTY_TEXT}"
            else:
                yield from (f"- {', '.join(names)}. {why}." for why, names in reasons.items())
            yield ""


def _decided(policies: Iterable[Policy]) -> Iterator[str]:
    """The variables with which a user decides about a config key."""
    for how, said in HOW.items():
        rows: dict[tuple[str, str], list[str]] = {}
        for policy in policies:
            for entry in policy.config:
                variable = entry.switch if how == "switch" else entry.yields_to
                if variable:
                    names = rows.setdefault((variable, f"{entry.module}.{entry.key}"), [])
                    names += [] if f"`{policy.name}`" in names else [f"`{policy.name}`"]
        yield from ("", said, "")
        for (variable, key), names in sorted(rows.items()):
            yield f"- `{variable}`: `{key}` ({', '.join(names)})"


if __name__ == "__main__":
    print("\n".join(page()))
