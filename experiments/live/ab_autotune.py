"""``rocm-autopatch ab`` on a switch with a known effect, and on a switch without effect.

    python experiments/live/ab_autotune.py [--work .work] [--repeat 5] [--plot FILE]

``max_autotune`` makes Inductor compile and benchmark candidates for each GEMM. On a CPU it does so
if weights are frozen and the C++ templates are among the candidates. ``ab`` must see that effect.
``triton.dense_indexing`` changes only Triton's code, of which a CPU runs none: ``ab`` must see
none. The torch is 2.13.0 for the CPU, as pip installs it. Caches are cold, because nothing is
searched again for what is compiled already. CPU seconds are judged, with those of compilers,
because they exclude the other programs of a busy machine. It takes 5 to 15 minutes.

It prints what ``ab`` prints. The exit status is 1 if a verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from surroundings import hip_torch  # noqa: E402

EFFECT, NONE = "max_autotune", "triton.dense_indexing"
PROGRAM = Path(__file__).with_name("programs") / "gemm.py"


def main() -> int:
    parser = argparse.ArgumentParser(description="rocm-autopatch ab on a known effect and on none")
    parser.add_argument("--work", type=Path, default=ROOT / ".work")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    cpu, _ = hip_torch.create(arguments.work)
    venv = arguments.work.resolve() / "ab"
    hip_torch.copy(cpu, venv)
    python = str(hip_torch.python(venv))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", ROOT],
        check=True,
    )
    if arguments.plot:
        subprocess.run([python, "-m", "pip", "install", "-q", "matplotlib"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "gemm.py").write_bytes(PROGRAM.read_bytes())
        command = [python, "-m", "rocm_autopatch", "ab", "--toggle", EFFECT, "--toggle", NONE]
        command += ["--repeat", str(arguments.repeat), "--caches", "cold", "--warmup", "0"]
        if arguments.plot:
            command += ["--plot", str(arguments.plot.resolve())]
        done = subprocess.run(
            [*command, "--", "python", "gemm.py"],
            cwd=directory,
            env={"PATH": f"{venv}/bin:{os.environ['PATH']}", "HOME": directory},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    print(done.stdout, end="")
    judged = done.stdout.partition("\nCPU time of first call, s, cold caches\n")[2]
    right = re.search(
        rf"^  {EFFECT}=true .*\n +[0-9.]+x, higher .*\n"
        rf"^  {re.escape(NONE)}=true .*\n +no difference seen",
        judged,
        re.MULTILINE,
    )
    print("as it is due" if right else "NOT as it is due")
    return 0 if right and not done.returncode else 1


if __name__ == "__main__":
    sys.exit(main())
