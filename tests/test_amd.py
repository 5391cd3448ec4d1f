"""Programs compiled by AMD's compiler, for a GPU that compiles and does not run."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from experiments.live.amd_compiler import GPUS as MATRIX
from experiments.live.amd_compiler import IMAGE, PROGRAM, SEARCH, Ran, run
from rocm_autopatch.compiling_gpu.errors import NOT_RUN
from rocm_autopatch.compiling_gpu.gpus import GPUS
from rocm_autopatch.compiling_gpu.kernel_file import read_resources
from surroundings import amd_torch, hip_torch
from tests.conftest import WORK, Interpreter, free_place, pip, quicken
from tests.measuring import measure
from tests.programs import program_file


class Device:
    """Runs programs on the stand-in."""

    def __init__(self, python: Interpreter, scratch: Path) -> None:
        self.python = python
        self.scratch = scratch

    def environment(self, **env: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.scratch),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "cache"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "COMPILING_GPU_SAID": "1",
            **env,
        }

    def run_without_us(self, source: str, check: bool = True, **env: str) -> Any:
        """Run a program that compiles nothing, without us."""
        env = self.environment(ROCM_AUTOPATCH="off", **env)
        return self.python.run("-c", textwrap.dedent(source), env=env, check=check)

    def compile(self, before: str = "", mode: str | None = None, **env: str) -> Ran:
        """Run the program of amd_compiler.py."""
        ran = run(before, mode, self.python.path, TORCHINDUCTOR_COMPILE_THREADS="1", **env)
        assert ran.status == 0, ran.err[-3000:]
        return ran

    def program(self) -> Path:
        """That program as a file."""
        path = self.scratch / "program.py"
        path.write_text(PROGRAM.format(before="", mode=None))
        return path


@pytest.fixture(scope="session")
def amd_python(wheel: Path) -> Interpreter:
    """The stand-in's torch with our wheel."""
    made = free_place("amd-tests")
    hip_torch.copy(amd_torch.create(WORK), made)
    python = Interpreter(made / "bin" / "python")
    pip(python, "install", "--no-deps", wheel)
    quicken(python)
    measure(python.path, python.site_packages)
    return python


@pytest.fixture
def device(amd_python: Interpreter, tmp_path: Path) -> Device:
    return Device(amd_python, tmp_path)


class TestDevice:
    def test_gives_shapes_and_never_a_number(self, device: Device) -> None:
        ran = device.run_without_us(
            program_file("amd/never_a_number.py").read_text(),
        )
        shapes, errors, grown, left = json.loads(ran.stdout)
        assert shapes == [[4, 4], [2, 4], [1, 4]]
        assert len(errors) == 11
        assert [error for error in errors if NOT_RUN not in error] == []
        assert (grown, left) == (2**30, 0)

    def test_has_no_memory_to_read(self, device: Device) -> None:
        source = "import ctypes, torch; x = torch.ones(9, device='cuda'); "
        ran = device.run_without_us(source + "ctypes.string_at(x.data_ptr(), 4)", check=False)
        assert ran.returncode == -11

    def test_says_what_it_is(self, device: Device) -> None:
        source = "import torch; print(torch.cuda.get_device_name())"
        ran = device.run_without_us(source, COMPILING_GPU="mi355x", COMPILING_GPU_SAID="")
        assert ran.stderr == (
            "compiling_gpu: cuda:0 is a stand-in for an AMD Instinct MI355X (gfx950): "
            "it compiles and does not run\n"
        )
        assert ran.stdout == "AMD Instinct MI355X (stand-in, does not run)\n"

    @pytest.mark.parametrize(("gpu", "last"), [("off", ""), ("mi999", ", ".join(GPUS))])
    def test_another_name(self, device: Device, gpu: str, last: str) -> None:
        source = "import torch; print(torch.cuda.is_available())"
        ran = device.run_without_us(source, check=False, COMPILING_GPU=gpu)
        if last:
            assert ran.stderr.endswith(f"COMPILING_GPU={gpu}: there are {last} and off\n")
        else:
            assert (ran.returncode, ran.stdout) == (0, "False\n")

    @pytest.mark.parametrize("gpu", ["mi355x", "rx9070xt"])
    def test_compiles_gemms_to_matrix_instructions(self, device: Device, gpu: str) -> None:
        one = "config.max_autotune_gemm_backends = 'TRITON'; config.test_configs.max_mm_configs = 1"
        ran = device.compile(one, SEARCH, COMPILING_GPU=gpu, ROCM_AUTOPATCH="off")
        assert ran.gemms
        assert f'.amdgcn_target "amdgcn-amd-amdhsa--{GPUS[gpu].gfx}' in ran.code
        assert MATRIX[gpu] in ran.code

    def test_reads_what_the_compiler_says_of_registers(self, device: Device) -> None:
        env = device.environment(ROCM_AUTOPATCH="off")
        device.python.run(device.program(), env=env)
        files = list(device.scratch.rglob("*.hsaco"))
        assert files
        for path in files:
            assembly = path.with_suffix(".amdgcn").read_text()
            (private,) = re.findall(r"^\s+\.private_segment_fixed_size: (\d+)", assembly, re.M)
            (used,) = re.findall(r"^\s+\.vgpr_count:\s+(\d+)", assembly, re.M)
            registers, spilled = read_resources(path.read_bytes())
            assert spilled == int(private) // 4
            assert registers - 8 < int(used) <= registers


class TestPolicies:
    """What a policy decides, seen in the candidates and in their code."""

    def test_image_makes_inductor_compile_gemms(self, device: Device) -> None:
        ran = device.compile(ROCM_AUTOPATCH="off", **IMAGE)
        assert len(ran.gemms) > 10
        assert MATRIX["mi300x"] in ran.code
        # Only under torch.version.hip do the candidates have these.
        for option in ("matrix_instr_nonkdim=16", "waves_per_eu=", "kpack="):
            assert option in ran.err

    @pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
    def test_safe_leaves_gemms_to_the_library(self, device: Device, mode: str) -> None:
        ran = device.compile(mode=mode, ROCM_AUTOPATCH_POLICY="safe", **IMAGE)
        assert ran.kernels
        assert ran.gemms == []
        assert MATRIX["mi300x"] not in ran.code
        assert ran.out == ""  # It captures in no mode.

    def test_torch_alone_captures(self, device: Device) -> None:
        assert device.compile(mode="reduce-overhead", ROCM_AUTOPATCH="off").out == "captures\n"

    def test_a_switch_of_performance_tunes_by_descent(self, device: Device) -> None:
        safe = device.compile(ROCM_AUTOPATCH_POLICY="safe", **IMAGE)
        tuned = {"ROCM_AUTOPATCH_POLICY": "performance", "INDUCTOR_COORD_DESCENT": "1"}
        ran = device.compile(**tuned, **IMAGE)
        assert len(ran.kernels) > len(safe.kernels)
        assert ran.gemms == []


class TestTools:
    def test_status_and_probe(self, device: Device) -> None:
        env = device.environment(**IMAGE)
        del env["TORCHINDUCTOR_COMPILE_THREADS"]
        status = device.python.run("-m", "rocm_autopatch", "status", "--json", env=env)
        assert json.loads(status.stdout)["policies"] == ["safe"]
        probe = device.python.run("-m", "rocm_autopatch", "probe", env=env)
        assert "TORCHINDUCTOR_MAX_AUTOTUNE" in probe.stdout

    def test_report_sees_the_compile(self, device: Device) -> None:
        command = ("--report", device.scratch / "report", "--", device.python.path)
        done = device.python.run(
            *("-m", "rocm_autopatch", "run", *command, device.program()), env=device.environment()
        )
        assert re.search(r"program\.py:\d+ +f", done.stderr + done.stdout)

    def test_watchdog_names_the_candidates(self, device: Device) -> None:
        policy = device.scratch / "watch.yaml"
        policy.write_text("version: 1\nextends: []\npatches: {watchdog: {warn_after: 1}}\n")
        ran = device.compile(mode=SEARCH, ROCM_AUTOPATCH_POLICY=str(policy))
        lines = [line for line in ran.err.splitlines() if line.startswith("rocm_autopatch")]
        assert any(re.search(r"autotuning, mm\(64x256, 256x512\), \d+ of", line) for line in lines)
