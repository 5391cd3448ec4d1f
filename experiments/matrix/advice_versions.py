"""What our messages advise, on the oldest and the newest torch: with fullgraph and without it.

    python experiments/matrix/advice_versions.py PYTHON [PYTHON ...]

Each PYTHON is an interpreter with a torch. tests/advice.py has the trials. What does not do what a
message says of it is printed, and makes the exit status 1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests import advice


def main() -> int:
    wrong = 0
    for python in sys.argv[1:]:
        code = "import torch.version as found; print(found.__version__)"
        version = subprocess.check_output([python, "-c", code], text=True).strip()
        failed = list(advice.failures(python))
        wrong += len(failed)
        print(
            f"torch {version}: {2 * len(advice.TRIALS) - len(failed)} of "
            f"{2 * len(advice.TRIALS)} trials did what is said",
            flush=True,
        )
        for text in failed:
            print(f"! {text}")
    return 1 if wrong or not sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
