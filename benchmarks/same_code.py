"""How many switches of ``tune`` change the code that torch generates for a model, for an AMD GPU.

    python -m benchmarks.same_code --work .work [--gpu mi300x] [--models ...] [--at-once N]

These are the switches that act only through this code (rocm_autopatch/tune/switches.yaml). The
device compiles and does not run (benchmarks/amd), and the models are those of program.py. Each
switch compiles a model once, in a process of its own, and ``tune`` would need no more than that
where the code is the base's. The base is compiled twice, to see that its code is always the same.
Searches among kernels are off, as they are in the default mode.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import yaml

from benchmarks.amd.__main__ import GPUS, MODELS, PROGRAM, Arm, _environment, prepare
from rocm_autopatch.ab import Refused, generated, toggles
from rocm_autopatch.ab.place import Place
from rocm_autopatch.tune import candidates
from surroundings import hip_torch


def policies() -> dict[str, Arm]:
    """By the toggle as text, an arm with nothing but this switch.

    Left out are those of a CPU, and those that this torch has not, or has so already.
    """
    report = {"facts": {"torch": {"value": hip_torch.TORCH}}, "config": []}
    here = Place({}, ["python"], True, report)
    found = {}
    for row in yaml.safe_load(candidates.TABLE.read_text(encoding="utf-8")):
        if not row.get("code") or row.get("where") == "cpu":
            continue
        try:
            toggle = toggles.parse(row["toggle"], hip_torch.TORCH, {})
        except Refused:
            continue
        if candidates.pinned_or_same(here, toggle, toggle.values[-1]):
            continue
        module, _, key = toggle.name.partition(".config.")
        config = {f"{module}.config": {key: {"pin": toggle.values[-1], "insist": True}}}
        found[row["toggle"]] = Arm(
            policy=json.dumps({"version": 1, "extends": [], "config": config}) + "\n"
        )
    return found


def code(python: Path, model: str, gpu: str, kernels: Path, arm: Arm) -> str:
    """A digest of the code for a model; what went wrong if there is none."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        environment = _environment(scratch, gpu, arm)
        environment["TRITON_CACHE_DIR"] = str(kernels)
        environment.update(generated.variables({}, scratch / "compiled"))
        done = subprocess.run(
            [str(python), str(PROGRAM), model],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        found = generated.digest(scratch / "compiled", scratch / "cache")
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return found if found and not done.returncode else f"failed: {last[:100]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--gpu", default=GPUS[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    try:
        python = prepare(asked.work.resolve())
    except hip_torch.SurroundingsError as error:
        print(f"surroundings: {error}", file=sys.stderr)
        return 1
    every = policies()
    for model in asked.models:
        with tempfile.TemporaryDirectory() as kernels, ThreadPoolExecutor(asked.at_once) as pool:
            ask = partial(code, python, model, asked.gpu, Path(kernels))
            base = ask(Arm())
            again, *others = pool.map(ask, [Arm(), *every.values()])
        if base.startswith("failed") or again != base:
            print(f"{asked.gpu} {model}: the base's code is not always the same: {base}, {again}")
            continue
        failed = {name: its for name, its in zip(every, others) if its.startswith("failed")}
        changed = [name for name, its in zip(every, others) if its != base and name not in failed]
        same = len(every) - len(changed) - len(failed)
        print(
            f"{asked.gpu} {model}: {same} of {len(every)} switches give the base's code", flush=True
        )
        print(f"  changed by: {', '.join(changed)}", flush=True)
        for name, its in failed.items():
            print(f"  {name}: {its}", flush=True)
    shutil.rmtree(asked.work / "amd-figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
