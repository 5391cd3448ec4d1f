"""Programs that fill their caches on a stand-in for a GPU whose memory can be read.

It stands below the CPU build of torch that has the label of a ROCm build. What a CUDA build does
with it is run by hand: experiments/live/filled.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import compiling_gpu
from rocm_autopatch.compiling_gpu.gpus import GPUS, read_facts
from rocm_autopatch.support.user_error import UserError
from surroundings import amd_torch, hip_torch
from tests.conftest import WORK
from tests.programs import program_file

pytestmark = pytest.mark.slow


class Filled:
    """Runs programs on the stand-in, with caches of their own."""

    def __init__(self, python: Path, scratch: Path) -> None:
        self.python = python
        self.scratch = scratch
        # It is compiled once for all runs of tests.
        self.directory = WORK.absolute() / "stand-in"
        self.variables = compiling_gpu.prepare_stand_in(python, GPUS["mi300x"], self.directory)

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of tests/programs/filled; it must succeed."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.scratch),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "cache"),
            **self.variables,
            "COMPILING_GPU_PROCESSES": str(self.scratch / "processes"),
        }
        command = [str(self.python), str(program_file(f"filled/{program}")), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    def take_told(self) -> dict[str, Any]:
        """What the one process since the last call told of itself."""
        (path,) = (self.scratch / "processes").glob("*.json")
        told: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        return told

    def kernels(self) -> set[str]:
        """The binaries that are there."""
        return {path.parent.name for path in self.scratch.rglob("*.hsaco")}


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(hip_torch.python(amd_torch.create(WORK)), tmp_path)


def test_a_program_reads_what_small_operators_wrote(filled: Filled) -> None:
    done = filled.run("eager.py")
    assert done.stderr == (
        "compiling_gpu: cuda:0 is a stand-in for an AMD Instinct MI300X (gfx942): it compiles and "
        "does not run. RESULTS ARE WRONG: keep compiled code, nothing else\n"
    )
    assert json.loads(done.stdout) == {
        "sum": 15,
        "where": [[1, 1], [1, 2]],
        "chosen": [0, 2, 4],
        "mask": 10,
        "flat": [0.0, 2.0, 3.0, 0.0],
        "half": [[4.5, 4.5], [4.5, 4.5]],
        "equal": True,
        # 4 MiB of ones were not written.
        "large": [0.0, 0],
        "drawn": True,
        "dropped": [0.0, 2.0],
        "cpu": True,
        "text": "tensor([0, 1, 2], device='cuda:0')",
    }
    # It compiled nothing.
    assert not (filled.scratch / "processes").exists()


def test_a_second_process_finds_all(filled: Filled) -> None:
    first = filled.run("compiled.py")
    told = filled.take_told()
    kernels = filled.kernels()
    # Both sides of the break and their recompiles, a model, and the step with a cache.
    assert told["graphs"] == 6
    # The model has a backward, too.
    assert told["caches"] == {"autograd_cache_miss": 6, "fxgraph_cache_miss": 7}
    assert [one["function"] for one in told["recompiles"]] == [
        "branches",
        "torch_dynamo_resume_in_branches_at_10",
    ]
    assert "size mismatch" in told["recompiles"][0]["reason"]
    assert told["value_guards"]
    assert any("Tensor.item()" in reason for reason in told["graph_breaks"])
    assert len(kernels) > 10
    # Nothing was measured, so nothing is kept for which a GPU would measure.
    assert any("the GPU measures at its first launch" in line for line in told["not_captured"])
    assert not [*filled.scratch.rglob("*.best_config")]

    second = filled.run("compiled.py")
    told = filled.take_told()
    assert told["caches"] == {"autograd_cache_hit": 6, "fxgraph_cache_hit": 7}
    assert filled.kernels() == kernels
    assert second.stdout == first.stdout


def test_reads_registers_of_a_cubin(filled: Filled) -> None:
    rows = [json.loads(line) for line in filled.run("cubin.py", "128").stdout.splitlines()]
    assert len(rows) == 2
    for said, read in rows:
        assert said == read
    # The second one spills.
    assert rows[0][1][1] == 0
    assert rows[1][1][1] > 0


def test_another_vendor(tmp_path: Path) -> None:
    python = hip_torch.python(amd_torch.create(WORK))
    with pytest.raises(
        UserError, match=r"is built for ROCm, and NVIDIA H200 needs another"
    ) as told:
        compiling_gpu.prepare_stand_in(python, GPUS["h200"], tmp_path)
    assert told.value.status == 1


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = hip_torch.python(amd_torch.create(WORK))
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(UserError, match=r"no C\+\+ compiler no-such-compiler.*apt-get install"):
        compiling_gpu.prepare_stand_in(python, GPUS["mi300x"], tmp_path)
    # Nothing is left that a later call would take for whole.
    assert [path for path in tmp_path.glob("torch-*") if path.suffix != ".unfinished"] == []


class TestFacts:
    def test_are_read_as_written(self) -> None:
        facts = replace(GPUS["h100"], name="Another GPU")
        assert read_facts(facts.as_json()) == facts

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[]", "JSON object"),
            ('{"vendor": "amd"}', "missing"),
            (GPUS["h100"].as_json().replace('"nvidia"', '"intel"'), "neither amd nor nvidia"),
            (GPUS["h100"].as_json().replace("132", '"132"'), "processors: '132'"),
        ],
    )
    def test_wrong_ones(self, text: str, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            read_facts(text)
