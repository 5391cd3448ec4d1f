"""Programs compiled by AMD's compiler, for a GPU that compiles and does not run."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from surroundings import amd_torch, hip_torch
from surroundings.compiling_gpu import NOT_RUN, kernel_file
from surroundings.compiling_gpu.gpus import GPUS
from tests.conftest import WORK, Interpreter, pip
from tests.measuring import measure

IMAGE = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1"}
# What Inductor calls the kernels of its GEMM templates: candidates, and the one that it took.
TEMPLATES = ("triton_mm", "triton_tem")
# A GEMM of bfloat16 and a reduction over its rows.
GEMM = """
import torch
def f(a, b):
    return torch.nn.functional.gelu(a @ b).softmax(-1)
a = torch.zeros(64, 256, device="cuda", dtype=torch.bfloat16)
b = torch.zeros(256, 512, device="cuda", dtype=torch.bfloat16)
try:
    torch.compile(f, mode=MODE)(a, b)
except RuntimeError as error:
    if "a captured graph" not in str(error):
        raise
    print("captures")
"""


class Compiled(NamedTuple):
    """What a program wrote, and what Triton compiled for it."""

    out: str
    err: str
    kernels: dict[str, Path]

    def assembly(self) -> str:
        """The assembly of all kernels, as Triton keeps it."""
        files = self.kernels.values()
        return "\n".join(path.with_suffix(".amdgcn").read_text() for path in files)

    def gemms(self) -> list[str]:
        """The names of the kernels of Inductor's GEMM templates."""
        return [path.stem for path in self.kernels.values() if path.stem.startswith(TEMPLATES)]


class Device:
    """Runs programs on the stand-in, each with caches of its own."""

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

    def run(self, program: str, mode: str | None = None, **env: str) -> Compiled:
        source = self.scratch / "program.py"
        source.write_text(textwrap.dedent(program).replace("MODE", repr(mode)))
        done = self.python.run(source, env=self.environment(**env), check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        kernels = {path.parent.name: path for path in self.scratch.rglob("*.hsaco")}
        return Compiled(done.stdout, done.stderr, kernels)


@pytest.fixture(scope="session")
def amd_python(wheel: Path) -> Interpreter:
    """The stand-in's torch with our wheel."""
    made = WORK / f"amd-tests{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    hip_torch.copy(amd_torch.create(WORK), made)
    python = Interpreter(made / "bin" / "python")
    pip(python, "install", "--no-deps", wheel)
    measure(python.path, python.site_packages)
    return python


@pytest.fixture
def device(amd_python: Interpreter, tmp_path: Path) -> Device:
    return Device(amd_python, tmp_path)


class TestDevice:
    def test_gives_shapes_and_never_a_number(self, device: Device) -> None:
        ran = device.run(
            """
            import json, torch
            x = torch.ones(4, 4).cuda()
            line = torch.nn.Linear(4, 2).cuda()
            loss = line(x).sum()
            loss.backward()
            shapes = [list((x @ x).shape), list(line.weight.grad.shape), list(x.T[1:].stride())]
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            asked = [
                lambda: x.sum().item(), lambda: x.cpu(), lambda: x.tolist(), lambda: str(x),
                lambda: bool(x.any()), lambda: torch.equal(x, x), lambda: x.nonzero(),
                lambda: x[x > 0], lambda: torch.ones((), device="cuda").item(),
                lambda: start.elapsed_time(end), torch.cuda.CUDAGraph,
            ]
            errors = []
            for one in asked:
                try:
                    errors.append(repr(one()))
                except RuntimeError as error:
                    errors.append(str(error))
            held = torch.cuda.memory_allocated()
            big = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            grown = torch.cuda.memory_allocated() - held
            del big
            print(json.dumps([shapes, errors, grown, torch.cuda.memory_allocated() - held]))
            """,
            ROCM_AUTOPATCH="off",
        )
        shapes, errors, grown, left = json.loads(ran.out)
        assert shapes == [[4, 4], [2, 4], [1, 4]]
        assert len(errors) == 11
        assert [error for error in errors if NOT_RUN not in error] == []
        assert (grown, left) == (2**30, 0)

    def test_has_no_memory_to_read(self, device: Device) -> None:
        source = "import ctypes, torch; x = torch.ones(9, device='cuda'); "
        done = device.python.run(
            "-c",
            source + "ctypes.string_at(x.data_ptr(), 4)",
            env=device.environment(ROCM_AUTOPATCH="off"),
            check=False,
        )
        assert done.returncode == -11

    def test_says_what_it_is(self, device: Device) -> None:
        env = device.environment(COMPILING_GPU="mi355x")
        del env["COMPILING_GPU_SAID"]
        source = "import torch; print(torch.cuda.get_device_name())"
        done = device.python.run("-c", source, env={**env, "ROCM_AUTOPATCH": "off"})
        assert done.stderr == (
            "compiling_gpu: cuda:0 is a stand-in for an AMD Instinct MI355X (gfx950): "
            "it compiles and does not run\n"
        )
        assert done.stdout == "AMD Instinct MI355X (stand-in, does not run)\n"

    def test_can_be_left_out(self, device: Device) -> None:
        done = device.python.run(
            "-c",
            "import torch; print(torch.cuda.is_available())",
            env=device.environment(COMPILING_GPU="off"),
        )
        assert (done.returncode, done.stdout) == (0, "False\n")

    @pytest.mark.parametrize(("gpu", "matrix"), [("mi355x", "v_mfma_"), ("rx9070xt", "v_wmma_")])
    def test_compiles_gemms_to_matrix_instructions(
        self, device: Device, gpu: str, matrix: str
    ) -> None:
        ran = device.run(
            "import torch._inductor.config as config\n"
            "config.max_autotune_gemm_backends = 'TRITON'\n"
            "config.test_configs.max_mm_configs = 1\n" + GEMM,
            "max-autotune-no-cudagraphs",
            COMPILING_GPU=gpu,
            ROCM_AUTOPATCH="off",
        )
        assert ran.gemms()
        assembly = ran.assembly()
        assert f'.amdgcn_target "amdgcn-amd-amdhsa--{GPUS[gpu].gfx}' in assembly
        assert matrix in assembly

    def test_reads_what_the_compiler_says_of_registers(self, device: Device) -> None:
        ran = device.run(GEMM, ROCM_AUTOPATCH="off")
        assert ran.kernels
        for path in ran.kernels.values():
            assembly = path.with_suffix(".amdgcn").read_text()
            (private,) = re.findall(r"^\s+\.private_segment_fixed_size: (\d+)", assembly, re.M)
            (used,) = re.findall(r"^\s+\.vgpr_count:\s+(\d+)", assembly, re.M)
            registers, spilled = kernel_file.resources(path.read_bytes())
            assert spilled == int(private) // 4
            assert registers - 8 < int(used) <= registers


class TestPolicies:
    """What a policy decides, seen in the candidates and in their code."""

    def test_image_makes_inductor_compile_gemms(self, device: Device) -> None:
        ran = device.run(GEMM, ROCM_AUTOPATCH="off", **IMAGE)
        assert len(ran.gemms()) > 10
        assert "v_mfma_" in ran.assembly()
        # Only under torch.version.hip do the candidates have these.
        for option in ("matrix_instr_nonkdim=16", "waves_per_eu=", "kpack="):
            assert option in ran.err

    @pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
    def test_safe_leaves_gemms_to_the_library(self, device: Device, mode: str) -> None:
        ran = device.run(GEMM, mode, ROCM_AUTOPATCH_POLICY="safe", **IMAGE)
        assert ran.kernels
        assert ran.gemms() == []
        assert "v_mfma_" not in ran.assembly()
        assert ran.out == ""  # It captures in no mode.

    def test_torch_alone_captures(self, device: Device) -> None:
        assert device.run(GEMM, "reduce-overhead", ROCM_AUTOPATCH="off").out == "captures\n"

    def test_performance_tunes_by_descent(self, device: Device) -> None:
        safe = device.run(GEMM, ROCM_AUTOPATCH_POLICY="safe", **IMAGE)
        env = {"TORCHINDUCTOR_CACHE_DIR": str(device.scratch / "other")}
        ran = device.run(GEMM, ROCM_AUTOPATCH_POLICY="performance", **env, **IMAGE)
        assert len(ran.kernels) > len(safe.kernels)
        assert ran.gemms() == []


class TestTools:
    def test_status_and_probe(self, device: Device) -> None:
        env = device.environment(**IMAGE)
        del env["TORCHINDUCTOR_COMPILE_THREADS"]
        status = device.python.run("-m", "rocm_autopatch", "status", "--json", env=env)
        report: dict[str, Any] = json.loads(status.stdout)
        assert report["policies"] == ["safe"]
        probe = device.python.run("-m", "rocm_autopatch", "probe", env=env)
        assert "TORCHINDUCTOR_MAX_AUTOTUNE" in probe.stdout

    def test_report_sees_the_compile(self, device: Device) -> None:
        source, kept = device.scratch / "program.py", device.scratch / "report"
        source.write_text(GEMM.replace("MODE", "None"))
        command = ("--report", kept, "--", device.python.path, source)
        env = device.environment()
        done = device.python.run("-m", "rocm_autopatch", "run", *command, env=env)
        assert re.search(r"program\.py:\d+ +f", done.stderr + done.stdout)

    def test_watchdog_names_the_candidates(self, device: Device) -> None:
        policy = device.scratch / "watch.yaml"
        policy.write_text("version: 1\nextends: []\npatches: {watchdog: {warn_after: 1}}\n")
        ran = device.run(
            GEMM,
            "max-autotune-no-cudagraphs",
            ROCM_AUTOPATCH_POLICY=str(policy),
        )
        lines = [line for line in ran.err.splitlines() if line.startswith("rocm_autopatch")]
        assert any(re.search(r"autotuning, mm\(64x256, 256x512\), \d+ of", line) for line in lines)
