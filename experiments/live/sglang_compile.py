"""What SGLang's own compile settings become, without us, under safe and under sglang-compile.

    python experiments/live/sglang_compile.py SGLANG [SGLANG ...]

In an environment with a torch of a ROCm build, or the label of one, and the wheel. SGLANG is the
directory of an unpacked sglang wheel: only two of its functions run, without the rest of it.
``set_torch_compile_config`` writes the config, ``patch_model`` names the mode. Exit status 1: under
sglang-compile, SGLang still searches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# Where releases have the two functions: from 0.5.15 on, and before.
PLACES = (
    "sglang/srt/compilation/torch_compile_decoration.py",
    "sglang/srt/model_executor/cuda_graph_runner.py",
)
PROGRAM = Path(__file__).with_name("programs") / "sglang_settings.py"


def settings(file: Path, **env: str) -> dict[str, object]:
    """The mode in which SGLang compiles, and Inductor's values while it does."""
    command = [sys.executable, "-Wignore", str(PROGRAM), str(file)]
    done = subprocess.run(
        command, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> int:
    wrong = False
    for release in sys.argv[1:]:
        file = next(path for place in PLACES if (path := Path(release, place)).is_file())
        print(release)
        for name in ("off", "safe", "sglang-compile"):
            env = {"ROCM_AUTOPATCH": "off"} if name == "off" else {"ROCM_AUTOPATCH_POLICY": name}
            found = settings(file, **env)
            print(f"  {name:16}" + ", ".join(f"{key} {value}" for key, value in found.items()))
        wrong = wrong or bool(found["max_autotune"] or found["coordinate_descent_tuning"])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
