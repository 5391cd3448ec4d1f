"""In a container with an AMD GPU: everything that we want to know from one, in one archive.

    python experiments/gpu/amd.py RESULTS [--minutes 75] [--only graphs prove ...]

For an interpreter with torch for that GPU, as root, in a container that is thrown away: docs/amd.md
has the whole command. It installs our wheel and what the programs need, changes nothing that is
installed, runs run.py, and packs what was found into RESULTS/rocm-autopatch-results.tar.gz. A
second call goes on from what is in RESULTS.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# Our command writes its evidence there, and so would a user's policies decide what is measured.
SITE = Path("/etc/rocm-autopatch")
# By package, what must be there before: pip would take the torchvision of another GPU's torch.
PROGRAMS = {"pytest": "", "transformers": "", "timm": "torchvision", "diffusers": ""}
# Those of run.py, but for warmed_without_gpu, which is about CUDA's tables of a GPU.
STEPS = ("graphs", "prove", "proven", "warmed", "training", "fuzz", "faults", "alarms")
ABOUT = {
    "status.json": ("status", "--json"),
    "probe.json": ("probe", "--json"),
}
# What is sent: results and logs, each of one step or of all. Caches lie deeper.
SENT = (".json", ".jsonl", ".log", ".stderr", ".txt")
LARGEST = 8 << 20


def pip(*arguments: str | Path) -> str:
    """What pip prints. Raises CalledProcessError if it fails; it has said why on stderr."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    env = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "ROCM_AUTOPATCH": "off"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    return done.stdout


def install(results: Path) -> None:
    """Our wheel and the programs' packages, with everything that is installed as it is."""
    installed = pip("list", "--format", "freeze")
    (results / "installed.txt").write_text(installed)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        # The image's own builds have versions that no index has: nothing may replace them.
        kept = [line for line in installed.splitlines() if not line.startswith("rocm_autopatch")]
        (work / "kept.txt").write_text("\n".join(kept))
        # The checkout may be mounted read-only, and a build writes beside its sources.
        shutil.copytree(
            CHECKOUT, work / "checkout", ignore=shutil.ignore_patterns(".git", ".work", "results")
        )
        pip("wheel", "-q", "--no-deps", "-w", work, work / "checkout")
        pip("install", "-q", "--no-deps", "--force-reinstall", next(work.glob("*.whl")))
        pip("install", "-q", "-c", work / "kept.txt", "PyYAML", "packaging")
        for program, needed in PROGRAMS.items():
            if needed and not any(line.startswith(f"{needed}==") for line in kept):
                print(f"no {needed} here: what needs {program} is left out")
                continue
            try:
                pip("install", "-q", "-c", work / "kept.txt", program)
            except subprocess.CalledProcessError:
                print(f"{program} does not go with what is installed: what needs it is left out")


def about(results: Path) -> None:
    """What is here before anything runs, and what a start does with it."""
    for name, words in ABOUT.items():
        command = [sys.executable, "-m", "rocm_autopatch", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        (results / name).write_text(done.stdout or done.stderr)


def pack(results: Path) -> Path:
    """The archive of what is sent. Says which files are too large for it."""
    target = results / "rocm-autopatch-results.tar.gz"
    left_out = []
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted((*results.glob("*"), *results.glob("*/*"))):
            name = path.relative_to(results)
            if path.suffix not in SENT or not path.is_file():
                continue
            if path.stat().st_size > LARGEST:
                left_out.append(str(name))
            else:
                archive.add(path, f"results/{name}", recursive=False)
    if left_out:
        print("too large, left out:", *left_out)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="All that an AMD GPU can tell, in one archive.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=75, help="for all of it (75)")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS)
    asked = parser.parse_args()
    results = asked.results.resolve()
    if os.getuid() != 0:
        sys.exit("this needs root: it is for a container of its own (docs/amd.md)")
    if SITE.exists() and any(SITE.glob("*.yaml")):
        sys.exit(f"{SITE} has policies: this is for a container of its own (docs/amd.md)")
    results.mkdir(parents=True, exist_ok=True)
    try:
        install(results)
    except subprocess.CalledProcessError as error:
        sys.exit(f"this failed, and said why above: {' '.join(map(str, error.cmd))}")
    about(results)
    # Evidence of an earlier call, from which prove goes on.
    for path in results.glob("*.json"):
        if path.name not in ABOUT and path.name != "training.json":
            (SITE / "evidence").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, SITE / "evidence" / path.name)
    command = [sys.executable, CHECKOUT / "experiments" / "gpu" / "run.py", results]
    subprocess.run([*command, "--seconds", str(asked.minutes * 60), "--only", *asked.only], cwd="/")
    print(f"send this file: {pack(results)}")


if __name__ == "__main__":
    main()
