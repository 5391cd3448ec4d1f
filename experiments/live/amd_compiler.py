"""What policies, modes and config decide in AMD's compiler, on a GPU that only compiles.

    python amd_compiler.py policies | settings

For a Python that has the stand-in of rocm_autopatch/compiling_gpu and our package; run.py and
tests/test_amd.py make them. Each program runs in a process of its own with empty caches. It prints
"ok", or what is wrong.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

IMAGE = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1"}
MODES = (None, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
# The matrix instructions of each GPU.
GPUS = {"mi300x": "v_mfma_", "mi355x": "v_mfma_", "rx9070xt": "v_wmma_"}

PROGRAM = """
import torch
from torch._inductor import config
def tensor(*shape):
    return torch.zeros(*shape, device="cuda", dtype=torch.bfloat16)
def f(a, b):
    return torch.nn.functional.gelu(a @ b).softmax(-1)
a, b = tensor(64, 256), tensor(256, 512)
{before}
try:
    torch.compile(f, mode={mode!r})(a, b)
except RuntimeError as error:
    if "a captured graph" not in str(error):
        raise
    print("captures")
"""
# The mode of a search among GEMMs.
SEARCH = "max-autotune-no-cudagraphs"
# What Inductor calls the kernels of its GEMM templates: candidates, and the one that it took.
TEMPLATES = ("triton_mm", "triton_tem")


class Ran(NamedTuple):
    """What a program wrote, and the assembly of each kernel by its name and hash."""

    status: int
    out: str
    err: str
    kernels: dict[str, str]

    @property
    def gemms(self) -> list[str]:
        """The names of the kernels of Inductor's GEMM templates."""
        return [name for name in self.kernels if name.startswith(TEMPLATES)]

    @property
    def code(self) -> str:
        """The assembly of all kernels."""
        return "\n".join(self.kernels.values())


def run(before: str = "", mode: str | None = None, python: Any = sys.executable, **env: str) -> Ran:
    """Run the program in a process of *python*; *before* comes before the compile."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program.py"
        program.write_text(PROGRAM.format(before=before, mode=mode))
        done = subprocess.run(
            [python, program],
            env={
                "PATH": os.environ["PATH"],
                "HOME": directory,
                "TORCHINDUCTOR_CACHE_DIR": f"{directory}/cache",
                "COMPILING_GPU_SAID": "1",
                **env,
            },
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        files = Path(directory).rglob("*.amdgcn")
        kernels = {f"{path.stem} {path.parent.name}": path.read_text() for path in files}
    return Ran(done.returncode, done.stdout, done.stderr, kernels)


def policies() -> Iterator[str]:
    """Each policy compiles in each mode, without GEMM kernels or captures; torch alone has both."""
    for policy in _built_in():
        for mode in MODES:
            ran = run(mode=mode, ROCM_AUTOPATCH_POLICY=policy, **IMAGE)
            where = f"{policy}, mode={mode}"
            if ran.status or not ran.kernels:
                yield f"{where}: {ran.err.strip()[-300:]}"
            elif ran.gemms:
                yield f"{where}: GEMM kernels {ran.gemms}"
            elif ran.out:
                yield f"{where}: {ran.out}"
    for gpu, matrix in GPUS.items():
        alone = run(mode=SEARCH, ROCM_AUTOPATCH="off", COMPILING_GPU=gpu)
        if not alone.gemms or matrix not in alone.code:
            yield f"{gpu}: no {matrix} in {sorted(alone.kernels)}; {alone.err.strip()[-300:]}"
    if run(mode="reduce-overhead", ROCM_AUTOPATCH="off").out != "captures\n":
        yield "torch alone does not capture in reduce-overhead"


def _built_in() -> list[str]:
    """The names of the policies in our package."""
    package: Any = importlib.util.find_spec("rocm_autopatch")
    files = Path(package.origin).parent.glob("policies/*.yaml")
    return sorted(path.stem for path in files if path.stem != "images")


def settings() -> Iterator[str]:
    """What config decides, seen in the candidates and in the code."""
    off = {"ROCM_AUTOPATCH": "off"}
    search = "config.max_autotune = True; "

    def backends(names: str) -> Ran:
        return run(f"{search}config.max_autotune_gemm_backends = {names!r}", **off)

    if backends("ATEN").gemms:
        yield "GEMM backend ATEN: it has templates"
    triton = backends("TRITON")
    if not triton.gemms or re.search(r"^  mm \d", triton.err, re.MULTILINE):
        yield "GEMM backend TRITON: it has others than templates"
    for option in ("matrix_instr_nonkdim", "waves_per_eu", "kpack"):
        if f"{option}=" not in triton.err:
            yield f"{option} is not among the options of the candidates"
    # Only the shape of the matrix instruction differs between candidates with 16 and with 32.
    if not re.search(r"v_mfma_f32_16x16x", triton.code):
        yield "matrix_instr_nonkdim=16 makes no v_mfma_f32_16x16"
    if not backends("CK").status:
        yield "GEMM backend CK without Composable Kernel: the compile does not fail"

    persistent = run(**off).kernels
    looped = run("config.triton.persistent_reductions = False", **off).kernels
    if not any(name.startswith("triton_per") for name in persistent):
        yield f"persistent reductions: {sorted(persistent)}"
    if any(name.startswith("triton_per") for name in looped):
        yield f"no persistent reductions: {sorted(looped)}"

    odd = (
        "a, b = tensor(4096, 4095), tensor(4095, 4097); "
        "from torch._dynamo.utils import counters; import atexit; "
        "atexit.register(lambda: print(counters['inductor']['pad_mm_bench']))"
    )
    for wanted, value in (("1", True), ("0", False)):
        padded = run(f"{odd}; config.shape_padding = {value}", **off)
        if padded.out.strip() != wanted:
            yield f"shape_padding={value}: {padded.out.strip()} GEMMs compared, {padded.err[-300:]}"

    deep = f"{search}a, b = tensor(32, 32768), tensor(32768, 32); "
    splits = {"": False, "config.triton.num_decompose_k_splits = 4": True}
    for setting, wanted_splits in splits.items():
        found = run(deep + setting, **off)
        if ("decompose_k" in found.err) != wanted_splits:
            yield f"decompose-k with {setting or 'defaults'}: {found.err.strip()[-300:]}"

    tuned = run("config.coordinate_descent_tuning = True", **off).kernels
    if len(tuned) < len(persistent):
        yield f"coordinate descent: {sorted(tuned)}"


def main() -> None:
    """Run one check."""
    wrong = list({"policies": policies, "settings": settings}[sys.argv[1]]())
    print("\n".join(wrong) or "ok")


if __name__ == "__main__":
    main()
