"""Programs of other people's frameworks, unmodified, without us and under the default policy.

    python -m tests.frameworks [--work DIRECTORY] [--surroundings DIRECTORY] [--only NAME ...]

A program is a file of ``programs/``. Its first line names what pip installs for it, into a venv of
its own that is kept in ``--work``: a copy of the torch that says that it is a ROCm build
(surroundings/hip_torch.py), with our wheel. Each program runs with the variables of a ROCm image,
with ROCM_AUTOPATCH=off and without it, twice each: with an empty cache of compiled code, then with
the one that the first run left. Between the two arms nothing may differ but what the policy is for:

- the exit status and what the program prints (numbers within TOLERANCE),
- stderr, apart from our line and the tables of Inductor's autotuning,
- the config: keys that the policy pins have their value wherever inside.py looked.

For each program it prints the seconds, what it and its framework changed in the config of torch,
and what differs. If anything differs, the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from surroundings import hip_torch, image_env
from tests.live import run as live

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARMS = {"off": {"ROCM_AUTOPATCH": "off"}, "safe": {}}
STARTS = ("cold", "warm")
# GEMMs of different kernels differ in rounding.
TOLERANCE = 1e-3
LIMIT_S = 600
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")
# What a trainer prints of its own speed.
SPEED = re.compile(r"'\w+_(runtime|per_second)': '[\d.]+'")
# What Inductor prints of its benchmarks: without us only, as the policy turns them off.
AUTOTUNING = re.compile(
    r"AUTOTUNE |strides: |dtypes: |SingleProcess AUTOTUNE|\s*\w+ [\d.]+ ms [\d.]+%"
)
INDUCTOR = "torch._inductor.config."


class Run(NamedTuple):
    """One run of a program: how it ended, what it wrote, what inside.py noted."""

    status: int
    stdout: str
    stderr: str
    rows: list[dict[str, Any]]
    seconds: float


def programs() -> dict[str, list[str]]:
    """The programs, and what pip installs for each."""
    found = {}
    for path in sorted((HERE / "programs").glob("*.py")):
        first, _, _ = path.read_text(encoding="utf-8").partition("\n")
        found[path.stem] = first.removeprefix("# requires:").split()
    return found


def make(venv: Path, requirements: list[str], hip: Path) -> None:
    """The venv of a program, made anew only if its requirements changed."""
    stamp = venv / "frameworks.json"
    wanted = json.dumps([hip_torch.TORCH, requirements])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    live.say(f"{venv.name}: installing {' '.join(requirements)}")
    hip_torch.copy(hip, venv)
    constraint = venv / "constraints.txt"
    constraint.write_text(f"torch=={hip_torch.TORCH}\n")
    pip(venv, "-c", constraint, *requirements)
    label = hip_torch.site_packages(venv) / "torch" / "version.py"
    if "+rocm" not in label.read_text():
        raise live.LiveError(f"{venv.name}: pip replaced torch, which lost its label")
    stamp.write_text(wanted)


def pip(venv: Path, *words: str | Path) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    live.command(hip_torch.python(venv), "-I", "-m", "pip", "install", *quiet, *words)


def equip(venv: Path, wheel: Path) -> None:
    """Install our wheel as it is now, and what looks on."""
    pip(venv, "--no-deps", "--force-reinstall", wheel)
    site = hip_torch.site_packages(venv)
    shutil.copy(HERE / "inside.py", site / "frameworks_inside.py")
    (site / "frameworks_inside.pth").write_text(
        "import frameworks_inside; frameworks_inside.start()\n"
    )


def versions(venv: Path, requirements: list[str]) -> str:
    code = (
        "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    names = [re.split(r"[\[=<>]", name)[0] for name in requirements]
    return live.command(hip_torch.python(venv), "-I", "-c", code, *names).strip()


def start(venv: Path, arm: str, place: Path, *command: str | Path) -> Run:
    """Run a command in a venv, in the directory *place*, which has the arm's cache."""
    inside, cwd = place / "inside", place / "cwd"
    for directory in (inside, cwd):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    environment = {
        **image_env.load().env,
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(cwd),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
        "FRAMEWORKS_INSIDE": str(inside),
        **ARMS[arm],
    }
    began = time.monotonic()
    try:
        done = subprocess.run(
            [hip_torch.python(venv), *command],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise live.LiveError(f"{place}: not done after {LIMIT_S} s") from None
    files = sorted(inside.glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return Run(done.returncode, done.stdout, done.stderr, rows, time.monotonic() - began)


def lines(stderr: str) -> set[str]:
    """What stderr says that could be the same in another run, line by line."""
    found = set()
    # A progress bar writes its states one over the other.
    for line in re.split(r"[\r\n]+", stderr):
        if line.startswith("rocm_autopatch: ") or AUTOTUNING.match(line):
            continue
        found.add(re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", line).strip())
    return found - {""}


def output(one: str, other: str) -> list[str]:
    """Where two outputs differ, numbers apart by no more than TOLERANCE aside."""
    found = []
    mine, theirs = (SPEED.sub("", text).splitlines() for text in (one, other))
    if len(mine) != len(theirs):
        found.append(f"{len(mine)} lines of output, not {len(theirs)}")
    for left, right in zip(mine, theirs):
        close = NUMBER.sub("#", left) == NUMBER.sub("#", right) and all(
            abs(float(a) - float(b)) <= TOLERANCE * max(1, abs(float(a)))
            for a, b in zip(NUMBER.findall(left), NUMBER.findall(right))
        )
        if not close:
            found.append(f"printed {right!r}, not {left!r}")
    return found


def pinned() -> dict[str, str]:
    """The keys of Inductor's config that the policy pins, with the values that inside.py notes."""
    policy = yaml.safe_load((ROOT / "policies" / "safe.yaml").read_text(encoding="utf-8"))
    entries = policy["config"]["torch._inductor.config"]
    return {
        f"{INDUCTOR}{key}": repr(entry["pin"]) for key, entry in entries.items() if "pin" in entry
    }


def inside(run: Run, pins: dict[str, str]) -> list[str]:
    """What is wrong inside the processes of a run with us."""
    found = []
    for row in run.rows:
        where = f"{row['event']} of {' '.join(row['command'][-2:])[-60:]}"
        for side in ("here", "elsewhere"):
            for key, value in pins.items():
                if row[side][key] != value:
                    found.append(f"{key} is {row[side][key]}, not {value} ({where}, {side})")
        if row["event"] == "exit" and row["policy"] != "safe":
            found.append(f"policy {row['policy']} ({where})")
        found += [f"error of ours: {error} ({where})" for error in row["errors"]]
    return found


def differences(runs: dict[tuple[str, str], Run]) -> Iterable[str]:
    """What differs between the arms, and what is wrong in any run."""
    first = runs["off", "cold"]
    pins = pinned()
    for (arm, when), run in runs.items():
        named = f"{arm}, {when}: "
        if run.status:
            yield named + f"status {run.status}\n" + "\n".join(run.stderr.splitlines()[-12:])
        if not any(row["event"] == "compiled" for row in run.rows):
            yield named + "nothing was compiled"
        for text in output(first.stdout, run.stdout):
            yield named + text
        if arm != "off":
            for text in inside(run, pins):
                yield named + text
    for when in STARTS:
        off, ours = lines(runs["off", when].stderr), lines(runs["safe", when].stderr)
        yield from (f"{when}: only without us on stderr: {line}" for line in sorted(off - ours))
        yield from (f"{when}: only with us on stderr: {line}" for line in sorted(ours - off))


def changed(run: Run, bare: Run) -> dict[str, set[str]]:
    """By key and by variable, the values in a run that a bare import of torch does not have."""
    (plain,) = bare.rows
    found: dict[str, set[str]] = {}
    for row in run.rows:
        for key, value in row["here"].items():
            if value != plain["here"].get(key) and "0x" not in value:
                found.setdefault(key, set()).add(f"{value} ({row['event']})")
        for name, value in row["variables"].items():
            if value != plain["variables"].get(name):
                found.setdefault(f"${name}", set()).add(f"{value} ({row['event']})")
    return found


def tell(runs: dict[tuple[str, str], Run], bare: dict[str, Run]) -> None:
    """Print what a program and its framework changed, in each arm."""
    by_arm = {arm: changed(runs[arm, "cold"], bare[arm]) for arm in ARMS}
    for key in sorted({key for some in by_arm.values() for key in some}):
        cells = (f"{arm} {', '.join(sorted(by_arm[arm].get(key, {'-'})))}" for arm in ARMS)
        print(f"    {key}:", "; ".join(cells))
    for arm in ARMS:
        events = [row["event"] for when in STARTS for row in runs[arm, when].rows]
        print(f"    looked, {arm}:", *(f"{events.count(e)} {e}" for e in dict.fromkeys(events)))


def check(name: str, requirements: list[str], work: Path, hip: Path, wheel: Path) -> list[str]:
    """Run one program in both arms, print what was seen, and return what differs."""
    venv = work / "venvs" / name
    make(venv, requirements, hip)
    equip(venv, wheel)
    bare, runs = {}, {}
    for arm in ARMS:
        place = work / "runs" / name / arm
        shutil.rmtree(place, ignore_errors=True)
        code = "import torch._inductor.config, torch._dynamo.config"
        bare[arm] = start(venv, arm, place, "-c", code)
        for when in STARTS:
            live.say(f"{name}: {arm}, {when}")
            runs[arm, when] = start(venv, arm, place, HERE / "programs" / f"{name}.py")
            (place / f"{when}.stdout").write_text(runs[arm, when].stdout)
            (place / f"{when}.stderr").write_text(runs[arm, when].stderr)
    found = list(dict.fromkeys(differences(runs)))
    seconds = ", ".join(f"{arm} {when} {run.seconds:.0f} s" for (arm, when), run in runs.items())
    print(f"{name}: {'DIFFERS' if found else 'ok'} ({versions(venv, requirements)}; {seconds})")
    tell(runs, bare)
    for text in found:
        print("  !", text.replace("\n", "\n    "))
    sys.stdout.flush()
    return found


def main() -> int:
    """Run what was asked for, and print what was seen."""
    known = programs()
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks")
    parser.description = (__doc__ or "").split("\n\n")[0]
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "frameworks")
    parser.add_argument(
        "--surroundings",
        type=Path,
        default=ROOT / ".work",
        help="where hip_torch.py makes its venvs, on the same filesystem as --work",
    )
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", default=list(known))
    asked = parser.parse_args()
    work = asked.work.resolve()
    # pip, and the look at versions, in venvs that have our wheel.
    os.environ["ROCM_AUTOPATCH"] = "off"
    wrong = False
    try:
        with hip_torch.lock(work / "run.lock"):
            _, hip = hip_torch.create(asked.surroundings)
            wheel = live.build_wheel(work)
            for name in asked.only:
                try:
                    wrong = bool(check(name, known[name], work, hip, wheel)) or wrong
                except live.LiveError as problem:
                    print(f"{name}: FAILED, {problem}", flush=True)
                    wrong = True
    except (live.LiveError, hip_torch.SurroundingsError) as problem:
        print(f"frameworks: {problem}", file=sys.stderr)
        return 1
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
