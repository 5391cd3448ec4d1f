"""What ``import torch`` costs with us, with the real torch that is labelled as a HIP build."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.startup import environments
from benchmarks.startup.environments import Wheel
from benchmarks.startup.measure import instructions
from benchmarks.startup.states import FIRST
from surroundings import hip_torch

CODE = "import torch"


class Import(NamedTuple):
    """Instructions of a start with ``import torch``."""

    off: int
    active: int


def measure(work: Path, directory: Path, wheel: Wheel, base: Mapping[str, str]) -> Import | None:
    """None if there is no labelled torch; surroundings.hip_torch makes it."""
    made = work / "hip"
    if not (made / hip_torch.STAMP).is_file():
        return None
    venv = directory / "torch"
    with hip_torch.lock(work / "surroundings.lock"):
        hip_torch.copy(made, venv)
    python = environments.python(venv)
    environments.pip("--python", str(python), "install", "--no-deps", str(wheel.path))
    counts = []
    for env in ({"ROCM_AUTOPATCH": "off", **FIRST}, FIRST):
        env = {**base, **env}
        subprocess.run([str(python), "-c", CODE], env=env, capture_output=True, check=True)
        counts.append(instructions(python, env, CODE))
    return Import(*counts)
