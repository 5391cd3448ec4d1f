"""Write what derives from the registry of switches (rocm_autopatch/switches.py) into files.

    python tools/switch_parts.py .

These are ``evidence.SUBJECTS``, entries of the policies safe and performance, the table of
subjects in docs/evidence.md, and docs/switches.md. All else reads the registry itself.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.measure.prove.subjects import SUBJECTS
from rocm_autopatch.policy import lint
from rocm_autopatch.switches import SWITCHES, Scalar, Switch

HEAD = """\
# Switches: what may make compiled code faster

After this page you know which values [`tune`](tune.md) tries, which [`prove`](evidence.md) can
prove, and which built-in policies have them.

In brackets: where it acts, and the releases of torch that have the key (else everywhere, from 2.4
to 2.15); whether it is tried alone, and late if it makes a first run long (else with others at a
time); the name under which `prove` tries it, and the policies with an entry of it. That is torch's
own value, and in `performance` this one, where evidence proves that it gains or the variable asks
for it.
"""
# What stands above the subjects in docs/evidence.md.
SUBJECT_LIST = "What `sound` means:\n\n"
# The reason of an alternative that holds where a switch is proven to gain.
_GAINS = "On this machine, it was proven to work and to gain 3 % or more."


def subjects(text: str) -> str:
    """The text of evidence/__init__.py with the subjects of today."""
    rows = "".join(f"    {json.dumps(n)}: {json.dumps(s.sentence)},\n" for n, s in SUBJECTS.items())
    return _replaced(text, 'SUBJECTS: "dict[str, str]" = {\n', "}\n", rows)


def evidence_page(text: str) -> str:
    """The text of docs/evidence.md with the subjects of today."""
    rows = "".join(f"- `{n}`: {s.sentence.rstrip('.')}\n" for n, s in SUBJECTS.items())
    return _replaced(text, SUBJECT_LIST, "\n", rows)


def safe(text: str) -> str:
    """The text of the policy safe with the entries of today."""
    for row in SWITCHES:
        if row.safe:
            text = _with_entry(text, row, list(_own_value(row, row.safe)))
    return text


def performance(text: str) -> str:
    """The text of the policy performance with the entries of today."""
    for row in SWITCHES:
        if row.performance:
            text = _with_entry(text, row, list(_in_performance(row)))
    return text


def page() -> str:
    """The text of docs/switches.md."""
    return "".join(f"{line}\n" for line in (*HEAD.splitlines(), "", *map(_row, SWITCHES)))


def _replaced(text: str, begin: str, end: str, rows: str) -> str:
    """A text with *rows* between the lines *begin* and the line *end*. Raises ValueError."""
    before, found, rest = text.partition(begin)
    _, also, after = f"\n{rest}".partition(f"\n{end}")
    if not (found and also):
        raise ValueError(f"the text has no {begin!r} with {end!r} after it")
    return before + begin + rows + end + after


def _with_entry(text: str, row: Switch, lines: list[str]) -> str:
    """A policy with *lines* as the entry of a switch, in the place of the one that is there.

    A new one comes after the others of its section. Raises ValueError if there is no section.
    """
    section, name, indent = ("env", row.key, 2) if row.is_variable else (*row.setting, 4)
    margin = " " * indent
    made = f"{margin}{name}:\n" + "".join(f"{margin}  {line}\n" for line in lines)
    head = " " * (indent - 2) + f"{section}:\n"
    before, found, rest = text.partition(head)
    if not found or (before and not before.endswith("\n")):
        raise ValueError(f"the policy has no section {section}")
    inner = re.match(rf"(?:{margin}.*\n)*", rest)
    assert inner
    body, after = inner[0], rest[inner.end() :]
    there = re.compile(rf"^{margin}{re.escape(name)}:\n(?:{margin} .*\n)*", re.MULTILINE)
    body = there.sub(lambda _: made, body) if there.search(body) else body + made
    return before + head + body + after


def _own_value(row: Switch, why: str, turned_on_by: str = "") -> Iterator[str]:
    """The entry that keeps torch's own value."""
    yield f"default: {_yaml(row.own)}"
    if turned_on_by:
        yield f"switch: {turned_on_by}"
    if row.variable:
        yield f"yields_to: {row.variable}"
    yield f"why: {why}"


def _in_performance(row: Switch) -> Iterator[str]:
    if row.is_variable:
        yield f"default: {_yaml(row.value)}"
        yield from _releases(row)
        yield f"gains: {row.subject}"
        yield f"why: {row.performance}"
        return
    if not row.subject:
        yield from _own_value(row, row.performance)
        return
    on = isinstance(row.value, bool) or row.value == 1
    by = row.turned_on_by or row.variable
    ends = f"{by}=1 turns it on." if on else f"{by}={row.value} sets it."
    yield from _alternative([*_own_value(row, f"{row.performance} {ends}", row.turned_on_by)])
    more = [f"default: {_yaml(row.value)}", *_releases(row)]
    if row.turned_on_by:
        more.append(f"switch: {row.turned_on_by}")
    if row.variable:
        more.append(f"yields_to: {row.variable}")
    yield from _alternative([*more, f"gains: {row.subject}", f"why: {_GAINS}"])


def _releases(row: Switch) -> Iterator[str]:
    if row.since:
        yield f'since: "{row.since}"'
    if row.until:
        yield f'until: "{row.until}"'


def _alternative(lines: list[str]) -> Iterator[str]:
    first, *others = lines
    yield f"- {first}"
    for line in others:
        yield f"  {line}"


def _yaml(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(row: Switch) -> str:
    place = {"": "", "gpu": "GPUs", "rocm": "ROCm", "cuda": "CUDA", "cpu": "CPUs"}[row.where]
    parts = [place, _torches(row)]
    if row.wrong:
        until = f"before torch {row.wrong.until} ({row.wrong.source})"
        parts.append(f"wrong on {row.wrong.accelerator} {until}")
    where = "; ".join(filter(None, parts))
    tried = "alone" if row.likely or row.slow else ""
    if row.slow:
        tried += ", late"
    policies = [name for name in ("safe", "performance") if getattr(row, name)]
    if row.turned_on_by:
        policies[-1] += f" by `{row.turned_on_by}`"
    having = [f"evidence `{row.subject}`"] if row.subject else []
    what = row.about.replace("(docs/graphs.md)", "([graphs](graphs.md))").rstrip(".")
    more = "; ".join(filter(None, (where, tried, ", ".join([*having, *policies]))))
    return f"- `{row.toggle}`: {what}" + (f" ({more})" if more else "")


def _torches(row: Switch) -> str:
    """The releases that have a config key, of those that ``check`` knows; nothing if all do."""
    if row.is_mode or row.is_variable:
        return ""
    name = ".".join(row.setting)
    having = [version for version, names in _keys().items() if name in names]
    if not having:
        raise ValueError(f"no torch has {row.key}")
    return "" if having == list(_keys()) else f"torch {having[0]} to {having[-1]}"


@cache
def _keys() -> dict[str, frozenset[str]]:
    """By release of torch, its config keys."""
    return {version: frozenset(lint.keys(version)) for version in lint.known_versions()}


PARTS: dict[str, Callable[[str], str]] = {
    "rocm_autopatch/evidence/__init__.py": subjects,
    "policies/safe.yaml": safe,
    "policies/performance.yaml": performance,
    "docs/evidence.md": evidence_page,
    "docs/switches.md": lambda _: page(),
}

if __name__ == "__main__":
    for name, make in PARTS.items():
        path = Path(sys.argv[1], name)
        path.write_text(make(path.read_text(encoding="utf-8")), encoding="utf-8")
