"""How many switches of ``tune`` change the code that torch generates for a model, for an AMD GPU.

    python -m benchmarks.same_code --work .work [--gpu mi300x] [--models ...] [--at-once N]

These are the switches that act only through this code (rocm_autopatch/switches.py). Where
it is the base's, ``tune`` needs no more than a first run. The device compiles and does not run
(benchmarks/amd), the models are those of its program.py, and each first run is made as ``tune``
makes it. The base is compiled twice, to see that its code is always the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.amd.__main__ import GPUS, MODELS, PROGRAM, SECONDS, prepare
from rocm_autopatch.measure.ab import place
from rocm_autopatch.measure.ab.runner import ENDED, WARM, ArmRunner, MeasuredRun, PlannedRun
from rocm_autopatch.measure.tune import candidates


def compiled(command: Sequence[str], at_once: int) -> dict[str, MeasuredRun]:
    """A first run of each set, by its name: the base twice, and each switch alone."""
    with tempfile.TemporaryDirectory() as directory:
        arms = Path(directory)
        here = place.find_program_place(command)
        found = candidates.find_candidates(here, command, (), (), (), arms).candidates
        tried = [one for one in found if one.code]
        environments = [
            candidates.arm_of(here, [one], arms / f"{number}.yaml").environ
            for number, one in enumerate(tried)
        ]
        names = ["base", "base again", *(one.label for one in tried)]
        every = [here.environ, here.environ, *environments]
        runs = {}
        with ArmRunner(command, every, SECONDS, ()) as runner:
            runner.tells_code = True
            runner.sharing.update(range(len(names)))
            cells = [PlannedRun(0, arm, WARM) for arm in range(len(names))]
            runner.run_beside(cells, at_once, lambda cell, run: runs.update({names[cell.arm]: run}))
    return {name: runs[name] for name in names}


def main() -> int:
    """Print a few lines for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--gpu", default=GPUS[0], choices=GPUS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--at-once", type=int, default=2)
    asked = parser.parse_args()
    python = prepare(asked.work.resolve())
    os.environ.update(COMPILING_GPU=asked.gpu, HF_HUB_OFFLINE="1")
    for model in asked.models:
        runs = compiled([str(python), str(PROGRAM), model], asked.at_once)
        base, again = runs.pop("base"), runs.pop("base again")
        if not base.code or base.code != again.code:
            print(f"{asked.gpu} {model}: the base's code is unknown or not always the same")
            continue
        failed = {name: run for name, run in runs.items() if run.status != ENDED}
        changed = [n for n, run in runs.items() if n not in failed and run.code != base.code]
        same = len(runs) - len(changed) - len(failed)
        print(f"{asked.gpu} {model}: {same} of {len(runs)} switches give the base's code")
        print(f"  changed by: {', '.join(changed)}")
        for name, run in failed.items():
            print(f"  {name}: {run.reason}", *run.last_lines[-1:], flush=True)
    shutil.rmtree(asked.work / "amd-figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
