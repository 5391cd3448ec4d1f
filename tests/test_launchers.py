"""docs/fleet.md: experiments/live/launchers.py runs each line of it, and the shell is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "fleet.md").read_text().partition("\n## One job: ")[2]
SCRIPT = (ROOT / "experiments" / "live" / "launchers.py").read_text()
BLOCKS = re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_line_is_run() -> None:
    names = [name for _, name, _ in BLOCKS]
    assert len(set(names)) == len(names)
    assert set(names) == set(re.findall(r'PAGE\["([^"]+)"\]', SCRIPT))


def test_each_command_ends_with_the_proof() -> None:
    """Or it has it in the middle of a pipe; the file of a prolog has none."""
    (proof,) = [text.strip() for _, name, text in BLOCKS if name == "proof"]
    for language, name, text in BLOCKS:
        if language == "sh" and name != "taskprolog":
            assert f"{proof}\n" in text or f"{proof} | " in text


@pytest.mark.parametrize("text", [text for language, _, text in BLOCKS if language == "sh"])
def test_shell(text: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "shellcheck", "--shell=sh", "-"],
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
