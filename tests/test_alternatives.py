"""Entries that need evidence, and alternatives: which of them counts, and which pins conflict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch.policy import PolicyError, lint, load, lower
from tests.conftest import ROOT
from tests.names import INDUCTOR


def write(directory: Path, name: str, text: str) -> Path:
    file = directory / f"{name}.yaml"
    file.write_text("version: 1\n" + text)
    return file


def config(directory: Path, name: str, freezing: str, extends: str = "[]") -> Path:
    text = f"extends: {extends}\nconfig: {{{INDUCTOR}: {{freezing: {freezing}}}}}\n"
    return write(directory, name, text)


def rows(file: Path, **facts: str) -> list[tuple[Any, ...]]:
    """Value, layer and torch versions of each row of the only name."""
    known = {**lower.BUILT_IN_FACTS, **facts}
    plan = lower.lower(load.layers(load.policy(file)), known)
    ((_, _, found),) = [one for one in plan["patches"] if one[0] == "config"] or [("", "", ())]
    return [(value, layer, *span) for _, _, value, _, _, layer, _, *span in found]


def test_the_last_that_holds_counts(tmp_path: Path) -> None:
    file = config(
        tmp_path,
        "top",
        "[{default: 1}, {default: 2, proven: freezing}, {default: 3, gains: [freezing, graphs]}]",
    )
    always = ((), ())
    assert rows(file) == [(1, "top", *always)]
    assert rows(file, proven="graphs") == [(1, "top", *always)]
    assert rows(file, proven="freezing graphs") == [(2, "top", *always)]
    assert rows(file, gains="freezing") == [(1, "top", *always)]
    assert rows(file, gains="graphs freezing") == [(3, "top", *always)]


def test_alternatives_for_some_torches(tmp_path: Path) -> None:
    file = config(
        tmp_path,
        "top",
        "[{pin: 1}, {pin: 2, since: '2.9'}, {pin: 3, until: '2.6', proven: graphs}]",
    )
    older = [(1, "top", (), ()), (2, "top", (2, 9), ())]
    assert rows(file) == older
    assert rows(file, proven="graphs") == [*older, (3, "top", (), (2, 6))]


def test_where_none_holds_the_layer_below_counts(tmp_path: Path) -> None:
    config(tmp_path, "base", "{default: 0}")
    file = config(tmp_path, "top", "[{default: 1, proven: graphs}]", "./base.yaml")
    assert rows(file) == [(0, "base", (), ())]
    assert rows(file, proven="graphs") == [(1, "top", (), ())]
    file = config(tmp_path, "top", "{default: 1, proven: graphs}", "./base.yaml")
    assert rows(file) == [(0, "base", (), ())]


def test_all_kinds_of_entry(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "top",
        "extends: []\n"
        "env: {A: [{set: a, insist: true}, {delete: true, proven: graphs}]}\n"
        "compile_modes: {max-autotune: [default, {use: graphs, proven: graphs}]}\n"
        "patches:\n"
        "  capture: [off, {use: guard, proven: graphs}]\n"
        "  watchdog: [{warn_after: 1, abort_after: 9}, {warn_after: 2, proven: graphs}]\n",
    )
    stack = load.layers(load.policy(file))

    def said(**facts: str) -> dict[str, Any]:
        plan = lower.lower(stack, {**lower.BUILT_IN_FACTS, **facts})
        entries = [(str(row[0]), row[1]) for _, _, found in plan["patches"] for row in found]
        env = [(*row[:3], row[0] in plan["insist"]) for row in plan["env"]]
        return {**dict(entries), "env": env}

    assert said() == {
        "env": [("A", "set", "a", True)],
        "max-autotune": "default",
        "capture": "off",
        "watchdog.warn_after": 1,
        "watchdog.abort_after": 9,
    }
    assert said(proven="graphs") == {
        "env": [("A", "delete", None, False)],
        "max-autotune": "graphs",
        "capture": "guard",
        "watchdog.warn_after": 2,
        "watchdog.abort_after": 9,
    }


# Entries of a base and of what stands on it -> whether its pin conflicts: without evidence, with
# the evidence for graphs, and as "check" says it of a place that nobody knows.
PINS = {
    ("{pin: 1}", "{pin: 2}"): (True, True, True),
    ("{pin: 1}", "{pin: 2, proven: graphs}"): (False, True, True),
    ("{pin: 1, proven: graphs}", "{pin: 2}"): (False, True, True),
    ("[{pin: 1}, {default: 1, proven: graphs}]", "{pin: 2}"): (True, False, True),
    ("[{pin: 1}, {default: 1, proven: graphs}]", "{pin: 2, proven: graphs}"): (
        *(False, False, False),
    ),
    ("[{pin: 1}, {default: 1, gains: graphs}]", "{pin: 2, proven: graphs}"): (False, True, True),
    ("{pin: 1, proven: graphs}", "[{pin: 2}, {default: 2, proven: graphs}]"): (
        *(False, False, False),
    ),
    ("[{pin: 1}, {pin: 2, proven: graphs}]", "{pin: 2, proven: graphs}"): (False, False, False),
    ("[{pin: 1}, {default: 1, proven: graphs, since: '2.9'}]", "{pin: 2, proven: graphs}"): (
        *(False, True, True),
    ),
    ("[{pin: 1}, {pin: 2}]", "[{pin: 3, insist: true}, {pin: 4, insist: true}]"): (
        *(False, False, False),
    ),
}


@pytest.mark.parametrize("entries", PINS)
def test_pins(entries: tuple[str, str], tmp_path: Path) -> None:
    below, above = entries
    config(tmp_path, "base", below)
    file = config(tmp_path, "top", above, "./base.yaml")

    def conflict(**facts: str) -> bool:
        try:
            rows(file, **facts)
        except PolicyError:
            return True
        return False

    checked = subprocess.run(
        [sys.executable, "-m", "rocm_autopatch", "check", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stderr in ("1 file checked: no errors\n", "1 file checked: 1 error\n")
    found = conflict(), conflict(proven="graphs"), bool(checked.returncode)
    assert found == PINS[entries]


def test_lint(tmp_path: Path) -> None:
    """Of alternatives, one with torch's own value has an effect: it takes another's place."""
    alone = config(tmp_path, "alone", "{default: false}")
    both = config(tmp_path, "both", "[{pin: false}, {default: false, proven: freezing}]")
    remarks = [
        [found.message for found in lint.lint(load.policy(file), ("2.13",))]
        for file in (alone, both)
    ]
    idle = "torch 2.13 ships this value, so "
    assert [any(idle in one for one in found) for found in remarks] == [True, False]


def first(value: Any) -> Any:
    """A document with the first of each list of alternatives in their place."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "why" in value[0]:
        # A rule for the empty text is no alternative to the others.
        beside = [one for one in value[1:] if "delete_empty" in one]
        return [value[0], *beside] if beside else first(value[0])
    if isinstance(value, dict):
        return {key: first(one) for key, one in value.items()}
    return value


def test_safe_without_evidence_is_safe_without_alternatives(tmp_path: Path) -> None:
    document = yaml.safe_load((load.BUILTIN / "safe.yaml").read_text())
    plain = tmp_path / "safe.yaml"
    plain.write_text(yaml.safe_dump(first(document), sort_keys=False))
    assert plain.read_text() != yaml.safe_dump(document, sort_keys=False)
    assert lower.lower([load.policy(plain)]) == lower.lower([load.top("safe")])


def test_no_entry_of_safe_lacks_what_holds_always() -> None:
    """Its entries that need evidence are alternatives: without evidence there is one of each."""
    safe = load.top("safe")
    for entries in safe.entries.values():
        names = {entry.names for entry in entries if not entry.needs}
        assert {entry.names for entry in entries} == names
