"""Programs of other people's frameworks, unmodified, without us and under the default policy.

    python -m experiments.frameworks [--work DIRECTORY] [--surroundings DIRECTORY] [--commands]
                               [--only NAME ...]

A program is a file of ``programs/``, which Python runs, or a directory with a ``run.sh``, which sh
runs in a copy of the directory: it starts a server, builds a package, or does what else users of a
framework do. It finds a free port in PORT, and ``python -m frameworks_ask URL`` asks a server.

The first lines of the file, or of the ``run.sh``, are comments about it:

- ``# requires:`` names what pip installs, into a venv of the program's own that is kept in
  ``--work``: a copy of the torch that says that it is a ROCm build (surroundings/hip_torch.py),
  with our wheel;
- ``# compiles: no`` is said of a program in which Inductor compiles nothing. In any other program
  it must compile something.

Each program runs with the variables of a ROCm image, with ROCM_AUTOPATCH=off and without it, twice
each: with an empty cache of compiled code, then with the one that the first run left. Between the
two arms nothing may differ but what the policy is for:

- the exit status and what the program prints (numbers within TOLERANCE),
- stderr, apart from the tables of Inductor's autotuning and from our line, which is there once for
  each process tree of Python's,
- the config: keys that the policy pins have their value wherever inside.py looked.

For each program it prints the seconds, what it and its framework changed in the config of torch,
and what differs. If anything differs, the exit status is 1.

With ``--commands``, the programs that are files run by ``rocm-autopatch run --report`` instead,
cold and warm. What ``rocm-autopatch report`` then says of graphs, graph breaks, recompiles and
caches must be what torch itself counted in the process. What ``status`` and ``probe`` say in the
program's venv must be what a bare import of torch has there, with us and without us.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from experiments.frameworks import commands
from experiments.live import run as live
from surroundings import hip_torch, image_env

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARMS = {"off": {"ROCM_AUTOPATCH": "off"}, "safe": {}}
STARTS = ("cold", "warm")
# GEMMs of different kernels differ in rounding.
TOLERANCE = 1e-3
LIMIT_S = 600
HEAD = re.compile(r"# (requires|compiles): *(.*)")
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")
# What a trainer prints of its own speed.
SPEED = re.compile(r"'\w+_(runtime|per_second)': '[\d.]+'")
# What Inductor prints of its benchmarks: without us only, as the policy turns them off.
AUTOTUNING = re.compile(
    r"AUTOTUNE |strides: |dtypes: |SingleProcess AUTOTUNE|\s*\w+ [\d.]+ ms [\d.]+%"
)
INDUCTOR = "torch._inductor.config."
OURS = re.compile(
    r"rocm_autopatch: policy safe applies \(image: not named\): unset TORCHINDUCTOR_MAX_AUTOTUNE, "
)


class Program(NamedTuple):
    """A file that Python runs, or a directory whose run.sh runs."""

    path: Path
    requires: list[str]
    compiles: bool

    def command(self, venv: Path) -> list[str | Path]:
        return ["sh", "run.sh"] if self.path.is_dir() else [hip_torch.python(venv), self.path]


class Run(NamedTuple):
    """One run of a program: how it ended, what it wrote, what inside.py noted."""

    status: int
    stdout: str
    stderr: str
    rows: list[dict[str, Any]]
    trees: int
    seconds: float


def programs(directory: Path = HERE / "programs") -> dict[str, Program]:
    """The programs of a directory by name."""
    found = {}
    for path in sorted([*directory.glob("*.py"), *directory.glob("*/run.sh")]):
        comments = itertools.takewhile(
            lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()
        )
        head = {line[1]: line[2] for line in map(HEAD.fullmatch, comments) if line}
        program = path.parent if path.name == "run.sh" else path
        requires, compiles = head["requires"].split(), head.get("compiles") != "no"
        found[program.stem] = Program(program, requires, compiles)
    return found


def make(venv: Path, requirements: list[str], hip: Path) -> None:
    """The venv of a program, made anew only if its requirements changed."""
    stamp = venv / "frameworks.json"
    wanted = json.dumps([hip_torch.TORCH, requirements])
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    live.say(f"{venv.name}: installing {' '.join(requirements) or 'torch alone'}")
    hip_torch.copy(hip, venv)
    constraint = venv / "constraints.txt"
    constraint.write_text(f"torch=={hip_torch.TORCH}\n")
    if requirements:
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
    for name in ("inside", "ask"):
        shutil.copy(HERE / f"{name}.py", site / f"frameworks_{name}.py")
    (site / "frameworks_inside.pth").write_text(
        "import frameworks_inside; frameworks_inside.start()\n"
    )


def versions(venv: Path, requirements: list[str]) -> str:
    code = (
        "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    names = [re.split(r"[\[=<>]", name)[0] for name in requirements]
    return live.command(hip_torch.python(venv), "-I", "-c", code, *names).strip()


def start(venv: Path, arm: str, place: Path, program: Path | None, *command: str | Path) -> Run:
    """Run a command in a venv, in the directory *place*, which has the arm's cache.

    The command starts in an empty directory, or in a copy of the directory *program*.
    """
    inside, cwd = place / "inside", place / "cwd"
    for directory in (inside, cwd):
        shutil.rmtree(directory, ignore_errors=True)
    inside.mkdir(parents=True)
    if program and program.is_dir():
        shutil.copytree(program, cwd)
    else:
        cwd.mkdir()
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        **image_env.load().env,
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(cwd),
        "PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
        "FRAMEWORKS_INSIDE": str(inside),
        **ARMS[arm],
    }
    began = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            # It also waits for a server that was left behind, which has the pipes.
            texts = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as late:
            last = (late.stderr or b"").decode(errors="replace")[-2000:]
            raise live.LiveError(f"{place}: not done after {LIMIT_S} s\n{last}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    stdout, stderr = (
        text.replace(str(place), "PLACE").replace(f":{port}", ":PORT") for text in texts
    )
    files = sorted(inside.glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    trees = len(list(inside.glob("*.tree")))
    return Run(running.returncode, stdout, stderr, rows, trees, time.monotonic() - began)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def import_torch(venv: Path, arm: str, place: Path) -> Run:
    """What a process has that imports torch's config and does nothing else."""
    code = "import torch._inductor.config, torch._dynamo.config"
    return start(venv, arm, place, None, hip_torch.python(venv), "-c", code)


def lines(stderr: str) -> set[str]:
    """What stderr says that could be the same in another run, line by line."""
    found = set()
    # A progress bar writes its states one over the other.
    for line in re.split(r"[\r\n]+", stderr):
        if OURS.match(line) or AUTOTUNING.match(line):
            continue
        found.add(re.sub(r"(0x)?[0-9a-f]{8,}|\d+(\.\d+)?", "N", line).strip())
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
    # Of alternatives, the first one counts without evidence.
    entries = {
        key: entry[0] if isinstance(entry, list) else entry
        for key, entry in policy["config"]["torch._inductor.config"].items()
    }
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


def differences(runs: dict[tuple[str, str], Run], compiles: bool) -> Iterable[str]:
    """What differs between the arms, and what is wrong in any run."""
    first = runs["off", "cold"]
    pins = pinned()
    for (arm, when), run in runs.items():
        named = f"{arm}, {when}: "
        if run.status:
            yield named + f"status {run.status}\n" + "\n".join(run.stderr.splitlines()[-12:])
        if compiles != any(row["event"] == "compiled" for row in run.rows):
            yield named + ("nothing was compiled" if compiles else "something was compiled")
        said = sum(bool(OURS.match(line)) for line in run.stderr.splitlines())
        if said != (0 if arm == "off" else run.trees):
            yield named + f"our line {said} times on stderr, in {run.trees} process trees"
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


def check(name: str, program: Program, work: Path, hip: Path, wheel: Path) -> list[str]:
    """Run one program in both arms, print what was seen, and return what differs."""
    venv = work / "venvs" / name
    make(venv, program.requires, hip)
    equip(venv, wheel)
    bare, runs = {}, {}
    for arm in ARMS:
        place = work / "runs" / name / arm
        shutil.rmtree(place, ignore_errors=True)
        bare[arm] = import_torch(venv, arm, place)
        for when in STARTS:
            live.say(f"{name}: {arm}, {when}")
            command = program.command(venv)
            runs[arm, when] = start(venv, arm, place, program.path, *command)
            (place / f"{when}.stdout").write_text(runs[arm, when].stdout)
            (place / f"{when}.stderr").write_text(runs[arm, when].stderr)
    found = list(dict.fromkeys(differences(runs, program.compiles)))
    seconds = ", ".join(f"{arm} {when} {run.seconds:.0f} s" for (arm, when), run in runs.items())
    print(f"{name}: {'DIFFERS' if found else 'ok'} ({versions(venv, program.requires)}; {seconds})")
    tell(runs, bare)
    for text in found:
        print("  !", text.replace("\n", "\n    "))
    sys.stdout.flush()
    return found


def check_commands(name: str, program: Program, work: Path, hip: Path, wheel: Path) -> list[str]:
    """Run one program by our commands, and return where they differ from torch's own counts."""
    venv, place = work / "venvs" / name, work / "runs" / name / "commands"
    make(venv, program.requires, hip)
    equip(venv, wheel)
    shutil.rmtree(place, ignore_errors=True)
    ours = venv / "bin" / "rocm-autopatch"
    live.say(f"{name}: status, probe")
    (off,), (safe,) = (
        [row for row in import_torch(venv, arm, place).rows if row["event"] == "exit"]
        for arm in ARMS
    )
    found = []
    for one, differ in (("status", [safe]), ("probe", [off, safe])):
        told = start(venv, "safe", place, None, ours, one, "--json")
        if told.status:
            found.append(f"{one}: status {told.status}\n{told.stderr[-500:]}")
        found += getattr(commands, one)(json.loads(told.stdout), *differ)
    counts = []
    for when in STARTS:
        live.say(f"{name}: run --report, {when}")
        directory = place / f"{when}.report"
        run = start(
            venv, "safe", place, program.path,
            *(ours, "run", "--report", directory, "--", *program.command(venv)),
        )  # fmt: skip
        if run.status:
            found.append(f"{when}: status {run.status}\n{run.stderr[-500:]}")
        told = start(venv, "safe", place, None, ours, "report", directory, "--json")
        report = json.loads(told.stdout)
        found += [f"{when}: {text}" for text in commands.report(report, run.rows)]
        counts.append(f"{when}: {commands.summary(report)}")
    print(f"{name}, commands: {'DIFFERS' if found else 'ok'} ({'; '.join(counts)})")
    for text in found:
        print("  !", text.replace("\n", "\n    "))
    sys.stdout.flush()
    return found


def main() -> int:
    """Run what was asked for, and print what was seen."""
    known = programs()
    parser = argparse.ArgumentParser(prog="python -m experiments.frameworks")
    parser.description = (__doc__ or "").split("\n\n")[0]
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "frameworks")
    parser.add_argument(
        "--surroundings",
        type=Path,
        default=ROOT / ".work",
        help="where hip_torch.py makes its venvs, on the same filesystem as --work",
    )
    parser.add_argument("--commands", action="store_true", help="run programs by our commands")
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
                if asked.commands and (known[name].path.is_dir() or not known[name].compiles):
                    live.say(f"{name}: not run by our commands")
                    continue
                look = check_commands if asked.commands else check
                try:
                    wrong = bool(look(name, known[name], work, hip, wheel)) or wrong
                except live.LiveError as problem:
                    print(f"{name}: FAILED, {problem}", flush=True)
                    wrong = True
    except (live.LiveError, hip_torch.SurroundingsError) as problem:
        print(f"frameworks: {problem}", file=sys.stderr)
        return 1
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
