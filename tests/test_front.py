"""What somebody sees first: README in one screen, and what ``make`` alone says."""

from __future__ import annotations

import os
import re
import subprocess

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Where the demo's table begins, with blanks that only a table has.
TABLE = re.search(r"^```\n +without rocm_autopatch", README, re.MULTILINE)


def test_readme_is_one_screen() -> None:
    assert TABLE
    before = README[: TABLE.start()]
    assert before.count("\n") <= 60
    for words in ("No AMD GPU has run it", "pip install", "rocm-autopatch status", "pip uninstall"):
        assert words in before
    first = before[: before.index("## Install")]
    assert "No AMD GPU has run it" in first
    assert "was tried on" in first


def test_make_alone_lists_its_targets() -> None:
    # Not as a part of a make that runs the tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)).split()
    told = re.findall(r"^  make (\S+) +\S", done.stdout, re.MULTILINE)
    assert sorted(told) == sorted({*phony} - {"system", "compiler"})
    assert max(map(len, done.stdout.splitlines())) <= 100
