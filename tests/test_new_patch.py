"""A new patch is one file and its name in a list; everything else derives from these."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rocm_autopatch import patches
from tests.conftest import ROOT
from tests.programs import program_file

PATCH = program_file("new_patch/greeting.py").read_text()
SEVERAL = (
    PATCH.replace("greeting", "warmth")
    .replace('{"warmth": ("off", "hello")}', '{"warmth.for": "seconds or off"}')
    .replace('NOUN = "warmth"', 'NOUN = ""')
)
POLICY = """\
version: 1
extends: []
patches:
  greeting: {use: hello, why: It is polite.}
  warmth: {for: 5}
"""
PROGRAM = program_file("new_patch/derived.py").read_text()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with two more patches, and a torch to patch."""
    for name in ("rocm_autopatch", "policies", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    package = tmp_path / "rocm_autopatch" / "patches"
    (package / "greeting.py").write_text(PATCH)
    (package / "warmth.py").write_text(SEVERAL)
    listed = (package / "__init__.py").read_text()
    last = f'"{patches.NAMES[-1]}"'
    (package / "__init__.py").write_text(listed.replace(last, f'{last}, "greeting", "warmth"'))
    for name, text in (
        ("__init__", "from torch import version\n"),
        ("first", ""),
        ("second", ""),
        ("version", "__version__ = '2.13.0+rocm7.0'\nhip = '7.0.1'\n"),
    ):
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / f"{name}.py").write_text(text)
    return tmp_path


def test_all_else_derives(package: Path) -> None:
    (package / "team.yaml").write_text(POLICY)
    (package / "team.yaml").chmod(0o644)
    (package / "program.py").write_text(PROGRAM)
    libraries = sysconfig.get_path("purelib")
    done = subprocess.run(
        # Without site, whose .pth lines would import the package from somewhere else.
        [sys.executable, "-S", package / "program.py", package],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{package}:{libraries}",
            "ROCM_AUTOPATCH_POLICY": str(package / "team.yaml"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "policy team applies (image: not named): 2 greetings, warmth; " in done.stderr
    values, greeting, warmth, lines, wrong, schema, effects, errors = json.loads(done.stdout)
    assert values == ["hello", "hello", 5]
    assert greeting == [["greeting", "hello", "applied", "team"]] * 2
    assert warmth == [5, 5]
    assert "Greetings" in lines
    assert wrong.endswith("patches.greeting: 'bye' is not one of off, hello")
    assert schema == {"enum": ["off", "hello", False]}
    assert "greeting" in effects
    assert errors == []
