"""Does ``probe --readers`` find what reads a variable, and only that? And how long does it take?

    python experiments/readers.py [DIRECTORY]

The newest wheels of vLLM, SGLang and torch that pip offers are downloaded without what they need,
and unpacked into DIRECTORY, or into one that is removed afterwards. Nothing of them is imported.

- *recall*: of the names that vLLM's envs.py and SGLang's environ.py declare, how many are read. The
  names are taken from the sources by patterns of this file, and not by the code that is tried.
- *real*: 50 variables that torch, vLLM, SGLang and HIP's libraries read. None may be called dead.
- *planted*: 20 that nothing reads, or that are mistyped. Each must be found.
- *seconds*: a first look and a second one at all files, with 40 names.

The exit status is 1 if recall is below 99 %, a real one is called dead or a planted one is not.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rocm_autopatch

WHEELS = ("vllm", "sglang", "torch")
# Debian's HIP, for names that its libraries alone have. HSA_CU_MASK is only in their instructions.
PACKAGES = ("libhsa-runtime64-1", "libamdhip64-5")
HIP = """
HSA_CU_MASK HSA_ENABLE_SDMA HSA_XNACK GPU_MAX_HW_QUEUES AMD_LOG_LEVEL AMD_SERIALIZE_KERNEL
HIP_HOST_COHERENT
""".splitlines()
REAL = """
TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS TORCHINDUCTOR_CACHE_DIR
TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_FREEZING TORCH_LOGS
TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHDYNAMO_DISABLE TORCH_COMPILE_DEBUG TORCH_TRACE
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT TORCH_SHOW_CPP_STACKTRACES
PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING PYTORCH_TUNABLEOP_FILENAME TORCH_CPP_LOG_LEVEL
PYTORCH_NVML_BASED_CUDA_CHECK TORCH_BLAS_PREFER_HIPBLASLT TORCH_EXTENSIONS_DIR PYTORCH_ROCM_ARCH
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES ROCM_HOME ROCM_PATH NCCL_DEBUG
PYTORCH_ALLOC_CONF VLLM_ROCM_USE_AITER VLLM_ROCM_USE_AITER_MHA VLLM_ROCM_USE_AITER_MOE
VLLM_LOGGING_LEVEL VLLM_CACHE_ROOT VLLM_WORKER_MULTIPROC_METHOD VLLM_DISABLE_COMPILE_CACHE
VLLM_PORT VLLM_HOST_IP SGLANG_USE_AITER SGLANG_CACHE_DIR SGLANG_USE_MODELSCOPE
SGLANG_INIT_NEW_TOKEN_RATIO SGLANG_TORCH_PROFILER_DIR
""".splitlines()
# Those of the past, which recipes still set, and those with a letter too much, too few or swapped.
PLANTED = """
VLLM_ATTENTION_BACKEND VLLM_USE_V1 VLLM_USE_TRITON_FLASH_ATTN HIP_CACHE_ENABLED
INDUCTOR_COORD_DESCENT SGLANG_DISABLE_CUDNN_CHECK TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKEND
TORCHINDUCTOR_MAXAUTOTUNE SGALNG_USE_AITER SGL_USE_AITER VLLM_ROCM_USE_AITR VLLM_LOGING_LEVEL
TORCHINDUCTOR_COMPILE_THREAD PYTORCH_TUNABLE_OP_ENABLED TORCHINDUCTOR_COORDINATE_DECENT_TUNING
VLLM_FAST_ROCM_MODE SGLANG_ROCM_TURBO MIOPEN_NO_SUCH_SWITCH HSA_MAKE_IT_FAST TORCHINDUCTOR_TURBO
""".splitlines()


def words(lines: Sequence[str]) -> list[str]:
    """The names in some lines."""
    return " ".join(lines).split()


def fetch(directory: Path) -> None:
    """Download and unpack the wheels that are missing."""
    for name in WHEELS:
        if not [*directory.glob(f"{name}-*.dist-info")]:
            with tempfile.TemporaryDirectory(dir=directory) as wheels:
                pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", wheels]
                subprocess.run([*pip, name], check=True)
                for wheel in Path(wheels).glob("*.whl"):
                    with zipfile.ZipFile(wheel) as archive:
                        archive.extractall(directory)


def fetch_hip(directory: Path) -> bool:
    """Download and unpack Debian's HIP below *directory*. Returns whether it is there."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    if not [*directory.rglob("libamdhip64.so*")]:
        directory.mkdir(exist_ok=True)
        done = subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=directory)
        for package in directory.glob("*.deb") if done.returncode == 0 else ():
            subprocess.run(["dpkg", "-x", package, directory], check=True)
    return bool([*directory.rglob("libamdhip64.so*")])


def declared(directory: Path) -> Iterator[str]:
    """The names in the two registries, by how a line there looks."""
    vllm = (directory / "vllm" / "envs.py").read_text(encoding="utf-8")
    yield from re.findall(r'^    "([A-Z][A-Z0-9_]+)": ', vllm, re.MULTILINE)
    sglang = (directory / "sglang" / "srt" / "environ.py").read_text(encoding="utf-8")
    yield from re.findall(r"^    ([A-Z][A-Z0-9_]+)(?:: \w+)? = Env\w+\(", sglang, re.MULTILINE)


class Probe:
    """Runs the command on unpacked wheels, with a cache of its own."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        # Only the package: what lies beside it in a checkout names many variables.
        (scratch / "ours").mkdir()
        (scratch / "ours" / "rocm_autopatch").symlink_to(Path(rocm_autopatch.__file__).parent)
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": f"{scratch / 'ours'}:{directory}",
            "XDG_CACHE_HOME": str(scratch),
            "LD_LIBRARY_PATH": str(directory / "hip/usr/lib/x86_64-linux-gnu"),
            "ROCM_AUTOPATCH": "off",
        }

    def run(self, names: Sequence[str]) -> tuple[dict[str, Any], float]:
        """The answer as data, and seconds of the whole command."""
        command = [sys.executable, "-m", "rocm_autopatch", "probe", "--json", "--readers", *names]
        began = time.perf_counter()
        done = subprocess.run(command, env=self.environment, cwd="/", stdout=subprocess.PIPE)
        found: dict[str, Any] = json.loads(done.stdout)
        return found, time.perf_counter() - began


def cpu_seconds() -> float:
    """What the processes that have ended here took."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def states(found: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in found["variables"]}


def try_it(directory: Path, scratch: Path) -> bool:
    """Print what was found. Returns whether it is as it should be."""
    versions = [path.name[: -len(".dist-info")] for path in directory.glob("*.dist-info")]
    print(f"{', '.join(sorted(versions))}; Python {sys.version.split()[0]}")
    probe = Probe(directory, scratch)
    real = words(REAL)
    if fetch_hip(directory / "hip"):
        real += words(HIP)
    else:
        print("no HIP here: its names are left out")
    planted = words(PLANTED)
    some = [*real[:20], *planted]
    for title in ("first look", "second look"):
        before = cpu_seconds()
        found, seconds = probe.run(some)
        cpu = cpu_seconds() - before
        print(f"{title}: {seconds:.1f} s, {cpu:.1f} s of CPU, {found['files']:,} files")
        print("  notes:", "; ".join(found["notes"]) or "none")
    names = [*dict.fromkeys(declared(directory))]
    told = states(probe.run(names)[0])
    missed = [name for name in names if told[name] != "read"]
    recall = 1 - len(missed) / len(names)
    print(f"recall: {len(names) - len(missed)} of {len(names)}, {recall:.2%}; missed: {missed}")
    told = states(probe.run(real)[0])
    dead = [name for name in real if told[name] == "not read"]
    unsure = [name for name in real if told[name] not in ("read", "not read")]
    print(f"real: {len(dead)} of {len(real)} called dead: {dead}; only named: {unsure}")
    found = probe.run(planted)[0]
    kept = [name for name, state in states(found).items() if state != "not read"]
    print(f"planted: {len(planted) - len(kept)} of {len(planted)} found; not found: {kept}")
    for row in found["variables"]:
        if row["near"]:
            print(f"  {row['name']}: did you mean {' or '.join(row['near'])}?")
    return recall >= 0.99 and not dead and not kept


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(sys.argv[1]) if sys.argv[1:] else Path(scratch, "wheels")
        directory.mkdir(parents=True, exist_ok=True)
        fetch(directory)
        return 0 if try_it(directory.resolve(), Path(scratch)) else 1


if __name__ == "__main__":
    sys.exit(main())
