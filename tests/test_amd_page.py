"""The command of docs/amd.md: the page names what it runs, and the archive has what is sent."""

from __future__ import annotations

import importlib.util
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "amd.md").read_text()


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of experiments/gpu as a module: the folder is no package."""
    file = ROOT / "experiments" / "gpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_every_step_and_its_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = script("run", monkeypatch).STEPS
    asked = script("amd", monkeypatch).STEPS
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+)(?: minutes)? \|$", PAGE, re.MULTILINE))
    assert tuple(rows) == asked
    assert {*steps} - {*asked} == {"warmed_without_gpu"}
    for name, minutes in rows.items():
        assert 0 <= int(minutes) * 60 - steps[name][0] < 60
    assert f"{sum(map(int, rows.values()))} minutes at most" in PAGE


def test_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    amd = script("amd", monkeypatch)
    monkeypatch.setattr(amd, "LARGEST", 100)
    files = ("status.json", "prove.log", "proven/proven.jsonl", "proven/vit-with.stderr")
    others = ("proven/vit-with/ab/graph.json", "warmed/caches.tar.gz", "proven/large.jsonl")
    for name in (*files, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * (101 if "large" in name else 1))
    for _ in range(2):  # an earlier archive is not in the next one
        with tarfile.open(amd.pack(tmp_path)) as archive:
            assert sorted(archive.getnames()) == sorted(f"results/{name}" for name in files)
    assert "too large, left out: proven/large.jsonl" in capsys.readouterr().out
    assert f"results/{amd.pack(tmp_path).name}" in PAGE
