"""Nothing is executed of the directory that a command is called in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import OLD_AND_NEW, Interpreter

# python -m imports these itself, before anything of ours is there to prevent it.
OF_DASH_M = {"runpy", "pkgutil", "importlib", "io", "os", "types", "typing", "warnings"}
OTHERS = (
    *("torch", "yaml", "packaging", "matplotlib", "tqdm", "triton", "numpy", "sglang", "vllm"),
    *("aiter", "rocm_autopatch", "usercustomize", "text", "files", "plan"),
)
COMMANDS = (
    ("status",),
    ("status", "--no-torch", "--json"),
    ("explain", "--no-torch", "cudagraphs"),
    ("policies",),
    ("policies", "show", "performance"),
    ("check",),
    ("bake", "--out", "../baked"),
    ("probe", "--import", "json"),
    ("probe", "--json", "--record", "../images.yaml", "--image", "team/image:1"),
    ("ab", "--toggle", "X=1", "--repeat", "1", "--warmup", "0", "--caches", "cold", "--", "true"),
    ("ab", "--toggle", "mode.default=default,reduce-overhead", "--repeat", "1", "--", "true"),
    ("run", "--report", "../report", "--", "true"),
    ("report", "."),
    ("report", ".", "--tlparse", "--html", "../report.html"),
    ("completion", "bash"),
    ("--help",),
    ("--version",),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory of modules that leave a mark where they are executed."""
    here = tmp_path / "hostile"
    here.mkdir()
    mark = (
        "import os\nimport sys\n"
        f"with open({str(tmp_path / 'executed')!r}, 'a') as stream:\n"
        "    stream.write(__name__ + ' ' + ' '.join(sys.argv) + '\\n')\n"
        "raise ImportError('from the working directory')\n"
    )
    names = getattr(sys, "stdlib_module_names", ())
    for name in {*names, *OTHERS} - {"os", "sys", "site", "encodings", "codecs"}:
        (here / f"{name}.py").write_text(mark)
    program = here / "tlparse"
    program.write_text(f"#!/bin/sh\necho tlparse >> {tmp_path / 'executed'}\n")
    program.chmod(0o755)
    return here


def executed(tmp_path: Path) -> str:
    found = tmp_path / "executed"
    return found.read_text() if found.exists() else ""


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return {
        "ROCM_AUTOPATCH_LOG": "quiet",
        "TMPDIR": str(tmp_path / "tmp"),
        "PATH": ":.:/usr/bin:/bin",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@OLD_AND_NEW
def test_the_script(
    python: Interpreter, command: tuple[str, ...], hostile: Path, tmp_path: Path
) -> None:
    script = python.path.with_name("rocm-autopatch")
    done = python.run(script, *command, env=environment(tmp_path), cwd=hostile, check=False)
    assert executed(tmp_path) == ""
    assert "from the working directory" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@OLD_AND_NEW
def test_dash_m(
    python: Interpreter, command: tuple[str, ...], hostile: Path, tmp_path: Path
) -> None:
    of_runpy = python.value(
        "import sys; before = set(sys.modules); import runpy; print(*set(sys.modules) - before)"
    )
    for name in {*OF_DASH_M, *of_runpy.split()}:
        (hostile / f"{name}.py").unlink(missing_ok=True)
    done = python.run(
        *("-m", "rocm_autopatch", *command), env=environment(tmp_path), cwd=hostile, check=False
    )
    assert executed(tmp_path) == ""
    assert "from the working directory" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "path", [":{absolute}", ".", "{absolute}:", "../hostile:{absolute}", "x::y"]
)
def test_relative_entries_of_pythonpath(
    python311: Interpreter, path: str, hostile: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "named_absolutely.py").write_text("")
    # What the interpreter imports itself at its start and for a script is not ours to choose.
    plain = python311.value("import re, sys, runpy; print(*sys.modules)").split()
    for name in plain:
        (hostile / f"{name.partition('.')[0]}.py").unlink(missing_ok=True)
    env = {**environment(tmp_path), "PYTHONPATH": path.format(absolute=ours)}
    script = python311.path.with_name("rocm-autopatch")
    for command in COMMANDS:
        done = python311.run(script, *command, env=env, cwd=hostile, check=False)
        assert executed(tmp_path) == "", command
        assert "Traceback" not in done.stderr
    report = json.loads(
        python311.run(script, "status", "--no-torch", "--json", env=env, cwd=hostile).stdout
    )
    assert any("PYTHONPATH=" in note for note in report["notes"])


def test_absolute_entries_stay(python311: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('mine')\n")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0'\nhip = '7.0.5'\n")
    env = {**environment(tmp_path), "PYTHONPATH": f":{tmp_path}"}
    done = python311.run("-m", "rocm_autopatch", "status", env=env, cwd=tmp_path, check=False)
    assert "import torch: RuntimeError: mine" in done.stdout


def test_a_safe_path(python311: Interpreter, tmp_path: Path) -> None:
    """Where the interpreter puts nothing first, nothing is taken away."""
    (tmp_path / "mine.py").write_text("")
    for flags in (("-P",), ("-I",), ()):
        env = {**environment(tmp_path), "PYTHONPATH": str(tmp_path)}
        env.update({"PYTHONSAFEPATH": "1"} if not flags else {})
        command = (*flags, "-m", "rocm_autopatch", "probe", "--import", "mine", "--json")
        done = python311.run(*command, env=env, check=False)
        found = json.loads(done.stdout)
        assert not any("import mine fails" in note for note in found["notes"]), flags
