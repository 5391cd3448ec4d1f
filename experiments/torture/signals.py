"""Signals at every step of a start and of an import: each must reach the program.

A case's name is ``signals/PYTHON/PHASE/...``. In ``start`` and ``import``, deliver.py raises the
signal at a step of our code. In ``any``, it is sent from outside after some microseconds.
"""

from __future__ import annotations

import itertools
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from random import Random

from experiments.torture import faults, oracle
from experiments.torture.bench import HERE, Bench
from experiments.torture.oracle import Outcome, Start

KINDS = ("Mine", "KeyboardInterrupt", "Own", "TimeoutError", "SystemExit")
SIGNALS = {"KeyboardInterrupt": signal.SIGINT, "Mine": signal.SIGALRM, "Own": signal.SIGUSR1}
# The kinds of start. A start that reads YAML has the most steps.
SCENES = ("default", "policy", "baked", "report")


def _victim(bench: Bench) -> str:
    """The program. A .pth file that ``site`` runs before ours delivers its signals."""
    program = bench.home / "victim.py"
    if not program.exists():
        shutil.copy(HERE / "victim.py", program)
        shutil.copy(HERE / "deliver.py", bench.library / "_aaa_torture.py")
        (bench.library / "aaa_torture.pth").write_text("import _aaa_torture\n")
    return str(program)


def _start(bench: Bench, scene: str, what: str, *arguments: str) -> Start:
    env = faults.SCENES[scene](bench)
    hits = str(bench.home / "hits")
    more = {"TORTURE_SIGNAL": what, "TORTURE_HITS": hits, "PYTHONDONTWRITEBYTECODE": "1"}
    return bench.start(*arguments, program=_victim(bench), env={**env, **more}, lines=6)


def _steps(bench: Bench, scene: str, event: str, phase: str) -> int:
    """How many steps there are to raise a signal at."""
    arguments = ("start",) if phase == "start" else ("import", "KeyboardInterrupt")
    bench.clean()
    with bench.broken("rocm_autopatch/baked.plan"):
        outcome = bench.run(_start(bench, scene, f"0:0:{event}:{phase}", *arguments))
    if not outcome.stdout.startswith(b"not reached"):
        raise AssertionError(str(outcome))
    return int((bench.home / "hits").read_text())


def names(bench: Bench, seed: int, count: int) -> Iterator[str]:
    """*count* cases: lines of each start and import, any opcode, and any time."""
    random = Random(seed)
    half = count // 2
    lines: list[list[str]] = []
    opcodes: list[str] = []
    for scene in SCENES:
        for phase in ("start", "import"):
            steps = _steps(bench, scene, "line", phase)
            found = [f"{phase}/{scene}/line/{number}" for number in range(1, steps + 1)]
            random.shuffle(found)
            lines.append(found)
            steps = _steps(bench, scene, "opcode", phase)
            # A start that reads YAML has millions; to count them takes seconds.
            wanted = min(steps, count // (50 if scene == "policy" else 10) + 1)
            opcodes += [
                f"{phase}/{scene}/opcode/{number}"
                for number in random.sample(range(1, steps + 1), wanted)
            ]
    random.shuffle(opcodes)
    # In turn, because an import has a hundred times as many steps as a start.
    turns = [one for turn in itertools.zip_longest(*lines) for one in turn if one]
    stepped = turns[:half] + opcodes[: count // 4]
    stepped = [
        f"{name}/{random.choice(KINDS)}" if name.startswith("import") else name for name in stepped
    ]
    for name in stepped:
        yield f"signals/{bench.version}/{name}"
    for _ in range(count - len(stepped)):
        scene = random.choice(SCENES)
        yield f"signals/{bench.version}/any/{scene}/SIGINT/{random.randrange(300, 120000)}"


def run(bench: Bench, name: str) -> list[str]:
    """What is wrong with one signal."""
    _, _, phase, scene, *rest = name.split("/")
    with bench.broken("rocm_autopatch/baked.plan"):
        if phase == "any":
            return _sent(bench, scene, rest[0], int(rest[1]) / 1e6)
        event, number, *kind = rest
        if phase == "start":
            start = _start(bench, scene, f"{int(signal.SIGINT)}:{number}:{event}:start", "start")
            return _reached_start(start, bench.run(start))
        sent = int(SIGNALS.get(kind[0], signal.SIGALRM))
        start = _start(bench, scene, f"{sent}:{number}:{event}:import", "import", kind[0])
        outcome = bench.run(start)
        where = bench.home / "hits"
        return _reached_import(start, outcome, kind[0], where.read_text() if where.exists() else "")


def _reached_start(start: Start, outcome: Outcome) -> list[str]:
    said = outcome.stdout.decode(errors="replace").strip()
    if outcome.status is None:
        return ["hangs"]
    if said == "not reached":
        return oracle.lines(start, outcome, outcome)
    if said == "interrupted" or oracle.interrupted(outcome):
        return []
    return [f"status {outcome.status}: {said or 'no word of the interrupt'}"]


def _reached_import(start: Start, outcome: Outcome, kind: str, where: str) -> list[str]:
    said = outcome.stdout.decode(errors="replace").strip()
    if said == "swallowed" and kind == "TimeoutError" and where.startswith("<frozen "):
        # importlib itself swallows an OSError of a handler, such as TimeoutError: it takes it for a
        # path that it can't look at or list. This happens at any import, also without us.
        return []
    if outcome.status is None:
        return ["hangs"]
    wrong = [] if outcome.status == 0 else [f"status {outcome.status}"]
    if said != "reached" and not said.startswith("not reached"):
        wrong.append(said or "nothing printed")
    # Nothing but our own lines.
    return wrong + oracle.lines(start, outcome, Outcome(0, b"", b""))


def _sent(bench: Bench, scene: str, which: str, after: float) -> list[str]:
    """A real signal after some time, whatever the process does then."""
    start = _start(bench, scene, "0:0:line:", "wait")
    process = subprocess.Popen(
        start.command, env=start.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    time.sleep(after)
    process.send_signal(getattr(signal, which))
    try:
        out, err = process.communicate(timeout=oracle.PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return ["hangs"]
    outcome = Outcome(process.returncode, out, err)
    bench.last.append((start, outcome))
    if b"interrupted" in out or oracle.interrupted(outcome) or _dropped_by_python(err):
        return []
    return [f"status {outcome.status}: {out.decode(errors='replace').strip() or 'nothing printed'}"]


def _dropped_by_python(err: bytes) -> bool:
    """Whether Python says that it drops the interrupt, in code of its own.

    It does so in importlib's weak references, and while it looks whether the program is an archive.
    """
    files = re.findall(rb'^  File "(.*?)", line', err, re.MULTILINE)
    said = b"Exception ignored in: " in err or b"Failed checking if argv[0]" in err
    return said and bool(files) and all(file.startswith(b"<frozen ") for file in files)
