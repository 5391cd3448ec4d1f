"""What is written to stderr in a notebook's kernel, and in a stream that keeps it in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Interpreter
from tests.programs import program_file

CLIENT = program_file("notebook/client.py")


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ipykernel and its client."""
    directory = tmp_path_factory.mktemp("jupyter")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(directory)]
    subprocess.run([*pip, "ipykernel", "jupyter_client"], check=True, stdout=sys.stderr)
    return directory


def cells(
    python: Interpreter, jupyter: Path, home: Path, *code: str, **env: str
) -> tuple[list[dict[str, str]], str]:
    """What each cell writes to the notebook, and what goes to the server's log."""
    done = python.run(
        CLIENT,
        *code,
        env={
            "PYTHONPATH": str(jupyter),
            "HOME": str(home),
            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
            **env,
        },
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_cell_shows_what_is_said_in_it(
    torch_python: Interpreter, jupyter: Path, tmp_path: Path
) -> None:
    said, log = cells(
        *(torch_python, jupyter, tmp_path),
        "import torch",
        "import torch._inductor.config as config\nconfig.triton.cudagraphs = True",
        "import subprocess, sys\n"
        "command = [sys.executable, '-c', 'import torch']\n"
        "print(subprocess.run(command, capture_output=True, text=True).stderr)",
    )
    first, second, child = said
    assert first["stderr"].startswith("rocm_autopatch: ")
    assert "policy safe" in first["stderr"]
    assert first["stderr"].count("\n") == 1
    assert "triton.cudagraphs = True" in second["stderr"]
    assert "rocm_autopatch" not in child["stdout"]
    # The start of the first process is before there is a notebook.
    assert log.count("policy safe") == 1


def test_quiet(torch_python: Interpreter, jupyter: Path, tmp_path: Path) -> None:
    said, log = cells(torch_python, jupyter, tmp_path, "import torch", ROCM_AUTOPATCH_LOG="quiet")
    assert said == [{"stdout": "", "stderr": ""}]
    assert "rocm_autopatch" not in log


STREAMS = program_file("notebook/streams.py")


def test_streams_in_memory(python: Interpreter) -> None:
    """A stream that may wait gets nothing, and none of them makes a line fail."""
    done = python.run(STREAMS, env={"ROCM_AUTOPATCH": "off"})
    assert done.stdout == "'rocm_autopatch: something\\n'\n" * 2
    assert done.stderr == ""
