"""A torch whose import ends the interpreter: status and probe say so, and go on without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MAX, Interpreter, make_hooked

SIGNAL = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"
EXIT = "import os; os._exit(3)\n"
# Only where our hook has unset a variable.
OURS = f"import os, signal\nif {MAX!r} not in os.environ: os.kill(os.getpid(), signal.SIGSEGV)\n"
COMMAND = ("-m", "rocm_autopatch")


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    return make_hooked(tmp_path_factory.mktemp("dying"), wheel)


@pytest.fixture
def torch(place: Interpreter) -> Iterator[Path]:
    file = place.site_packages / "torch" / "__init__.py"
    before = file.read_text() if file.exists() else None
    yield file
    file.unlink()
    if before is not None:
        file.write_text(before)


@pytest.mark.parametrize(
    ("code", "how", "without"),
    [
        (SIGNAL, "was ended by SIGSEGV", "so it is, too"),
        (EXIT, "ended with status 3", "so it is, too"),
        (OURS, "was ended by SIGSEGV", "it goes on"),
    ],
    ids=["signal", "exit", "by our change"],
)
def test_status(place: Interpreter, torch: Path, code: str, how: str, without: str) -> None:
    torch.write_text(code)
    done = place.run(*COMMAND, "status", "--json", env={MAX: "1"}, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["active"], report["policies"]) == (1, True, ["safe"])
    (error,) = report["errors"]
    assert error.startswith(f"import torch: the interpreter {how}; without rocm_autopatch")
    assert f"(ROCM_AUTOPATCH=off), {without}. " in error
    assert "--no-torch" in error
    (row,) = (row for row in report["env"] if row["name"] == MAX)
    assert row["status"] == "applied"


def test_explain(place: Interpreter, torch: Path) -> None:
    torch.write_text(SIGNAL)
    done = place.run(*COMMAND, "explain", "--torch", MAX, env={MAX: "1"}, check=False)
    assert (done.returncode, f"{MAX}: '1' -> unset" in done.stdout) == (0, True)
    assert "import torch: the interpreter was ended by SIGSEGV" in done.stderr


def test_probe(place: Interpreter, torch: Path) -> None:
    torch.write_text(SIGNAL)
    done = place.run(*COMMAND, "probe", env={MAX: "1"}, check=False)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert said.startswith(f"torch 2.13.0+rocm7.0, {torch} with rocm_autopatch: layers safe;")
    assert "no torch" not in said
    assert (
        "import torch: the interpreter was ended by SIGSEGV; without rocm_autopatch "
        "(ROCM_AUTOPATCH=off), so it is, too." in said
    )
    assert f"{MAX} 1 unset" in said
    assert said.endswith("still dangerous with rocm_autopatch: import torch")


def test_probe_of_a_torch_that_raises(place: Interpreter, torch: Path) -> None:
    torch.write_text("raise ImportError('libamdhip64.so.6: cannot open shared object file')\n")
    done = place.run(*COMMAND, "probe", env={MAX: "1"}, check=False)
    said = " ".join(done.stdout.split())
    assert said.startswith(f"torch 2.13.0+rocm7.0, {torch} with rocm_autopatch: layers safe;")
    assert "import torch fails: ImportError: libamdhip64.so.6" in said
    assert f"{MAX} 1 unset" in said
