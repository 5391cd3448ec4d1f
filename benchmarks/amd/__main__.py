"""Compile real models for AMD GPUs on a CPU, under each policy, mode and switch.

    python -m benchmarks.amd --work .work [--gpus mi300x mi355x] [--models ...] [--arms ...]

The GPU is rocm_autopatch/compiling_gpu: it compiles and does not run. So these are figures of the
compiler: kernels, candidates, CPU seconds, bytes of code, spilled registers. What benchmarking the
candidates on a GPU adds is missing. Inductor benchmarks here as it would, but each launch does
nothing and all candidates tie, so the first one is chosen. Coordinate descent ends at its first
step, so its candidates are the fewest that there can be.

Each arm runs in a process of its own with empty caches and one compile thread, `--at-once` of them
beside each other, arms in turn. Results are kept in figures.jsonl beside this file as they come. A
second call goes on from there: it runs what is missing, what failed, and what an older version of
the policies, the stand-in or these programs gave. "make docs" makes docs/measurements.md of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from experiments.live.run import build_wheel
from rocm_autopatch.compiling_gpu import build, gpus, kernel_file
from rocm_autopatch.measure.prove.subjects import SUBJECTS
from rocm_autopatch.policy import select
from surroundings import amd_torch, hip_torch, image_env

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")
KEPT = Path(__file__).with_name("figures.jsonl")
MODELS = ("llama", "bert", "mixtral", "vit", "convnext", "unet", "gpt2")
GPUS = ("mi300x", "mi355x")
PACKAGES = ("transformers==5.17.0", "requests", "importlib_metadata", "Pillow")
# Those require a torch or a torchvision for NVIDIA.
WITHOUT_TORCH = ("diffusers==0.42.1", "timm==1.0.31", "torchvision==0.28.0")
MODES = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
SECONDS = 1800
# What Inductor calls the kernels of its GEMM templates.
GEMMS = ("triton_mm", "triton_bmm", "triton_tem")
# A GPU, a model and an arm.
Key = tuple[str, str, str]


class Arm(NamedTuple):
    """One way to compile: a mode, our policy or none, and whether the image's variables are set."""

    mode: str | None = None
    policy: str | None = None
    image: bool = False


def arms() -> dict[str, Arm]:
    """Every arm by its name; the first one is what others are compared with."""
    found = {
        "torch alone": Arm(),
        "image": Arm(image=True),
        "image, safe": Arm(policy="safe", image=True),
    }
    for mode in MODES:
        found[mode] = Arm(mode)
        found[f"{mode}, safe"] = Arm(mode, "safe")
    for key, value in switches().items():
        entry = f"{{torch._inductor.config: {{{key}: {{default: {json.dumps(value)}}}}}}}"
        found[f"safe + {key}"] = Arm(policy=f"version: 1\nextends: safe\nconfig: {entry}\n")
    found["performance"] = Arm(policy="performance")
    return found


def switches() -> dict[str, Any]:
    """The config keys that ``prove`` turns on one by one, and which `performance` may have."""
    found = {}
    for subject in SUBJECTS.values():
        for name in subject.keys:
            module, _, key = name.partition(".config.")
            found[key] = subject.policy["config"][f"{module}.config"][key]["pin"]
    return found


def run(python: Path, model: str, gpu: str, arm: Arm) -> dict[str, Any]:
    """Compile *model* once; what the program printed, and what lies in its caches then."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        command = [str(python), str(PROGRAM), model]
        command += ["--mode", arm.mode] if arm.mode else []
        try:
            done = subprocess.run(
                command,
                env=_environment(scratch, gpu, arm),
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"more than {SECONDS} s"}
        if done.returncode:
            return {"failed": "\n".join(done.stderr.strip().splitlines()[-5:])}
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        result.update(_compiled(scratch))
        return result


def _environment(scratch: Path, gpu: str, arm: Arm) -> dict[str, str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "COMPILING_GPU": gpu,
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if arm.image:
        env.update(_image_variables())
    if arm.policy is None:
        env["ROCM_AUTOPATCH"] = "off"
    elif "\n" in arm.policy:
        (scratch / "policy.yaml").write_text(arm.policy, encoding="utf-8")
        env["ROCM_AUTOPATCH_POLICY"] = str(scratch / "policy.yaml")
    else:
        env["ROCM_AUTOPATCH_POLICY"] = arm.policy
    return env


def _image_variables() -> Mapping[str, str]:
    return {
        name: value
        for name, value in image_env.load().env.items()
        if name.startswith("TORCHINDUCTOR_")
    }


def _compiled(scratch: Path) -> dict[str, Any]:
    """What Triton compiled: files, bytes, kernels of GEMM templates, spilled registers."""
    files = [path for path in scratch.rglob("*.hsaco") if path.is_file()]
    kernels = {path.parent.name: path for path in files}.values()
    spilled = [kernel_file.read_resources(path.read_bytes())[1] for path in kernels]
    return {
        "candidates": len(kernels),
        "gemm_candidates": sum(path.stem.startswith(GEMMS) for path in kernels),
        "bytes": sum(path.stat().st_size for path in kernels),
        "spilling": sum(count > 0 for count in spilled),
        "spilled": sum(spilled),
    }


def prepare(work: Path) -> Path:
    """The interpreter of a venv with the stand-in, the models' packages and our wheel.

    Raises SystemExit with what failed.
    """
    venv = work / "amd-figures"
    try:
        hip_torch.copy(amd_torch.create(work), venv)
        hip_torch.pip(venv, "install", *PACKAGES)
        hip_torch.pip(venv, "install", "--no-deps", *WITHOUT_TORCH)
        with tempfile.TemporaryDirectory() as directory:
            hip_torch.pip(venv, "install", "--no-deps", str(build_wheel(Path(directory))))
    except hip_torch.SurroundingsError as error:
        sys.exit(f"surroundings: {error}")
    return hip_torch.python(venv)


def figures(
    kept: Path, python: Path, asked: argparse.Namespace
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Results as they come; those that *kept* has already come first."""
    every = arms()
    sources = {arm: _source(every[arm]) for arm in asked.arms}
    known = {}
    if kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["of"] == sources.get(row["arm"]) and "failed" not in row:
                known[row["gpu"], row["model"], row["arm"]] = row
    wanted = [
        (gpu, model, arm) for arm in asked.arms for model in asked.models for gpu in asked.gpus
    ]
    yield from ((key, known[key]) for key in wanted if key in known)
    left = [key for key in wanted if key not in known]
    with ThreadPoolExecutor(asked.at_once) as pool, open(kept, "a", encoding="utf-8") as stream:

        def one(key: Key) -> tuple[Key, dict[str, Any]]:
            gpu, model, arm = key
            started = time.monotonic()
            result = run(python, model, gpu, every[arm])
            row = {"gpu": gpu, "model": model, "arm": arm, "of": sources[arm]}
            row.update(made=time.strftime("%Y-%m-%d"), **result)
            if "failed" in row:
                print(f"{' '.join(key)}: {row['failed']}", file=sys.stderr, flush=True)
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(
                f"{' '.join(key)}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
            )
            return key, row

        yield from pool.map(one, left)


def _source(arm: Arm) -> str:
    """A digest of what decides the figures of an arm besides torch, which the stand-in names."""
    digest = hashlib.sha256()
    if arm.policy:
        digest.update(_plan(arm.policy).encode())
    for directory in (build.PACKAGE, PROGRAM.parent):
        for path in sorted(directory.rglob("*")):
            if path.suffix in (".py", ".cpp", ".h", ".yaml") and path != Path(__file__).resolve():
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _plan(policy: str) -> str:
    """A digest of what a policy, by its name or its text, changes under the stand-in's torch."""
    release = hip_torch.TORCH
    facts = {"accelerator": ("rocm", "the stand-in"), "torch": (release, "the stand-in")}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as stream:
        if "\n" in policy:
            stream.write(policy)
            stream.flush()
            policy = stream.name
        return select.lowered(facts, policy).without["digest"]


def main() -> int:
    """Run what is asked for and print the tables."""
    parser = argparse.ArgumentParser(description="Figures of AMD's compiler.")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--gpus", nargs="+", default=GPUS, choices=list(gpus.GPUS))
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--arms", nargs="+", default=list(arms()), choices=list(arms()))
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    python = prepare(asked.work.resolve())
    for (gpu, model, arm), row in figures(KEPT, python, asked):
        state = row.get("failed") or f"{row['candidates']} candidates, {row['cpu']:.0f} s"
        print(f"{gpu} {model} {arm}: {state}")
    shutil.rmtree(asked.work / "amd-figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
