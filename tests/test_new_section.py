"""A new section of a policy is one entry in the grammar; everything about keys derives from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import Any

import jsonschema
import pytest

from tests.conftest import ROOT
from tests.programs import program_file

TABLE = "SECTIONS: tuple[PolicySection[Common], ...] = (\n"
ENTRY = """\
    PolicySection(
        "fans",
        NamedEntries(
            "FAN",
            use_entries(SwitchWord(("slow", "fast")), "fan_use"),
            known=("left", "right"),
            unknown="not a fan, which are left, right",
        ),
        "How fast each fan is.",
    ),
"""


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh interpreter derives from the grammar with one section more."""
    copy = tmp_path_factory.mktemp("section")
    for name in ("rocm_autopatch", "policies", "tools"):
        shutil.copytree(ROOT / name, copy / name)
    grammar = copy / "rocm_autopatch" / "policy" / "grammar.py"
    text = grammar.read_text()
    assert TABLE in text
    grammar.write_text(text.replace(TABLE, TABLE + ENTRY))
    done = subprocess.run(
        # Without site, whose .pth lines would import the package from somewhere else.
        [sys.executable, "-S", program_file("new_section/derived.py"), copy],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_reader(derived: dict[str, Any]) -> None:
    assert derived["none"] == []
    assert derived["read"] == [
        [["left"], "slow", ""],
        [["right"], "fast", "It is hot."],
        [["right"], "slow", ""],
    ]
    assert derived["wrong"] == [
        "f:2:8: fans.lift: not a fan, which are left, right: did you mean left?",
        "f:2:33: fans.right.use: 'fasst' is not one of slow, fast: did you mean fast?",
        "f:3:1: fan: unknown key: did you mean fans?",
    ]


def test_the_schemas(derived: dict[str, Any]) -> None:
    policy = jsonschema.Draft202012Validator(derived["policy schema"])
    images = jsonschema.Draft202012Validator(derived["images schema"])
    for fans, takes in (
        ({"left": "slow", "right": [{"use": "fast", "why": "It is hot."}, "slow"]}, True),
        ({"lift": "slow"}, False),
        ({"left": "fasst"}, False),
        ({"left": {"use": "fast", "until": "2.9", "colour": "red"}}, False),
    ):
        assert policy.is_valid({"version": 1, "fans": fans}) == takes, fans
        row = {"image": "a/b:c", "fans": fans}
        assert images.is_valid({"version": 1, "images": [row]}) == takes, fans


def test_the_page(derived: dict[str, Any]) -> None:
    page = derived["page"]
    assert "- `fans` (a mapping): How fast each fan is." in page
    below = page[page.index("## `fans.FAN`") :]
    assert below[2].startswith("- `use` (`slow` or `fast`)"), below[:8]


def test_the_completion(derived: dict[str, Any]) -> None:
    assert {"left", "right", "capture"} <= {*derived["completed"]}


def test_a_section_that_nothing_carries_out(derived: dict[str, Any]) -> None:
    assert derived["refused"] == "no code carries out fans of a policy"
