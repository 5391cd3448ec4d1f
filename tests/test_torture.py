"""A few minutes of the adversary: experiments/torture in small, with a fixed seed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Interpreter


@pytest.mark.parametrize(
    ("family", "count"),
    [("starts", 60), ("faults", 60), ("signals", 40), ("imports", 40), ("embedding", 25)],
)
def test_family(python311: Interpreter, tmp_path: Path, family: str, count: int) -> None:
    # Cases have a /dev of their own, and the tests may write below /dev/shm.
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        environment = Path(outside, "environment")
        shutil.copytree(python311.path.parent.parent, environment, symlinks=True)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "experiments.torture"),
                *("--family", family, f"--{family}", str(count)),
                *("--environment", environment, "--keep", tmp_path, "--seed", "1"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    assert done.returncode == 0, done.stdout
    assert f"{family:<10} {0:>7}" not in done.stdout
