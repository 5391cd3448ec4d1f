"""Jobs whose ranks join again: how often that fails on this torch, without us and with ``ranks``.

    python experiments/live/rejoins.py PYTHON [--runs 50] [--only env tcp elastic store]
        [--limit 60] [--results .work/rejoins.jsonl]

PYTHON has torch and our wheel. The kinds, each with ROCM_AUTOPATCH=off and with ``ranks: say``, by
turns, one job at a time:

- ``env``, ``tcp``: three processes join by gloo three times, each time at a port of its own. At the
  same port, torch's store hangs without us, too: a rank that is early finds the store of before.
- ``elastic``: torchrun restarts two workers once, which join by gloo.
- ``store``: the same restart, and no rank connects to another one: the store is all that they use.

Gloo's own failures are on both sides: a rank that is early finds the address of a rank that has
ended. What is ours would be on one side only.

Each job is one line of the results as soon as it has ended. A second call goes on after the last
one; lines of another torch or package are left alone, and not counted. Run it on a machine that
does nothing else: each line has how busy others were just before. Where that was more than a tenth
of the cores, the line is not counted, however the job ended, and a second call runs it again.

The summary has how many jobs ended well, failed and hung, the range in which the true rate of bad
jobs lies (Wilson, 95 %), how probable the difference is by chance (Fisher's exact test, one side),
and the rate that so many runs would have told from that without us (in 80 % of such trials). The
exit status is 1 if a kind is worse with us by more than chance explains: 1 % in all, shared by the
kinds.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import comb, sqrt
from pathlib import Path
from typing import Any

SIDES = {"without": {"ROCM_AUTOPATCH": "off"}, "with": {}}
KINDS = ("env", "tcp", "elastic", "store")
POLICY = "version: 1\nname: job\nextends: safe\npatches: {ranks: say}\n"
WELL, FAILED, HUNG = ENDS = ("well", "failed", "hung")
# Errors that chance explains so rarely are ours.
CHANCE = 0.01
POWER = 0.8
# Of an error, what is the same in other jobs. torchrun's own one says only that a rank failed.
ERROR = re.compile(r"\b(?!ChildFailedError)\w+Error: (?:\[\S+ )?.{1,100}")
# A job counts if others used no more than this part of the cores just before it.
QUIET = 0.1
# What a result is of: the torch, and the code of our package.
OF = """
import hashlib, pathlib, rocm_autopatch, torch
files = sorted(pathlib.Path(rocm_autopatch.__file__).parent.rglob("*.py"))
code = b"".join(map(pathlib.Path.read_bytes, files))
print(torch.__version__, hashlib.sha256(code).hexdigest()[:12])
"""
AGAIN = Path(__file__).with_name("programs") / "again.py"
RESTARTED = """
import datetime, os, sys, torch, torch.distributed as distributed
import torch.testing._internal.distributed.fake_pg
if sys.argv[1] == "elastic":
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    distributed.barrier()
else:
    store, rank, size = next(distributed.rendezvous("env://"))
    distributed.init_process_group("fake", store=store, rank=rank, world_size=size)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""


def commands(python: str, kind: str) -> list[tuple[list[str], dict[str, str]]]:
    """The processes of a job, and what each has in its environment."""
    if kind in ("elastic", "store"):
        # A file, because torchrun has no -c.
        file = Path(f"restarted-{kind}.py")
        file.write_text(RESTARTED)
        options = ["--nproc-per-node=2", "--max-restarts=1", str(file), kind]
        return [([python, "-m", "torch.distributed.run", *options], {})]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [str(one.getsockname()[1]) for one in sockets]
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    return [
        ([python, str(AGAIN), kind, str(rank), *ports], {**common, "RANK": str(rank)})
        for rank in range(3)
    ]


def job(python: str, kind: str, env: Mapping[str, str], limit: float) -> tuple[str, str]:
    """How a job ended, and the last error that a rank wrote."""
    with open("stderr", "w+", encoding="utf-8", errors="replace") as stream:
        processes = [
            subprocess.Popen(
                command,
                env={**env, **own},
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )
            for command, own in commands(python, kind)
        ]
        ended = WELL
        for process in processes:
            try:
                if process.wait(limit if ended != HUNG else 0.1) and ended == WELL:
                    ended = FAILED
            except subprocess.TimeoutExpired:
                ended = HUNG
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        stream.seek(0)
        errors = ERROR.findall(stream.read())
    return ended, re.sub(r"\d+", "N", errors[-1]) if errors and ended != WELL else ""


def busy() -> float:
    """The part of all cores that others use, while nothing of ours runs: in one second."""

    def ticks() -> tuple[int, int]:
        numbers = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]))
        # idle and iowait
        return sum(numbers[:8]), sum(numbers[3:5])

    all_before, idle_before = ticks()
    time.sleep(1)
    every, idle = ticks()
    return 1 - (idle - idle_before) / max(1, every - all_before)


def read(path: Path) -> list[dict[str, Any]]:
    """The results so far. A line that a kill has cut off is not there."""
    if not path.exists():
        return []
    *lines, cut = path.read_text().split("\n")
    if cut:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]


def counted(rows: Sequence[dict[str, Any]], of: str) -> list[dict[str, Any]]:
    """The rows of a torch and a package, whose jobs ran on a quiet machine."""
    return [row for row in rows if row["of"] == of and row["busy"] <= QUIET]


def run_jobs(python: str, of: str, asked: argparse.Namespace, path: Path) -> None:
    """Run what is missing in the results, and add each job as it ends."""
    done = {(row["run"], row["kind"], row["side"]) for row in counted(read(path), of)}
    policy = Path("job.yaml").resolve()
    policy.write_text(POLICY)
    policy.chmod(0o644)
    for run in range(asked.runs):
        for kind in asked.only:
            for side in list(SIDES)[:: 1 if run % 2 else -1]:
                if (run, kind, side) in done:
                    continue
                others, began = busy(), time.monotonic()
                env = {**os.environ, "OMP_NUM_THREADS": "1", **SIDES[side]}
                env["ROCM_AUTOPATCH_POLICY"] = str(policy)
                ended, error = job(python, kind, env, asked.limit)
                seconds = round(time.monotonic() - began, 1)
                row = {"of": of, "run": run, "kind": kind, "side": side, "ended": ended}
                row.update(seconds=seconds, busy=round(others, 2), error=error)
                with path.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                print(f"{run} {kind} {side}: {ended}", file=sys.stderr, flush=True)


@functools.cache
def chance(bad: int, of: int, bad_with: int, of_with: int) -> float:
    """How probable so many bad ones or more are on the second side, if both sides are alike."""
    both, all_bad = of + of_with, bad + bad_with
    ways = range(bad_with, min(all_bad, of_with) + 1)
    return sum(comb(of_with, k) * comb(of, all_bad - k) for k in ways) / comb(both, all_bad)


def interval(bad: int, of: int) -> tuple[float, float]:
    """Wilson's range of the true rate, 95 %."""
    z = 1.96
    middle, width = (
        bad / of + z * z / 2 / of,
        z * sqrt(bad * (of - bad) / of**3 + (z / 2 / of) ** 2),
    )
    return (max(0, middle - width) / (1 + z * z / of), (middle + width) / (1 + z * z / of))


def seen(bad: int, of: int, of_with: int, limit: float) -> float:
    """The least rate with us that 80 % of trials tell from the rate without us; 0 if none."""

    def ways(count: int, rate: float) -> list[float]:
        return [comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(count + 1)]

    without = ways(of, bad / of)
    for percent in range(round(100 * bad / of) + 1, 101):
        found = sum(
            first * second
            for one, first in enumerate(without)
            for other, second in enumerate(ways(of_with, percent / 100))
            if first > 1e-9 and chance(one, of, other, of_with) < limit
        )
        if found >= POWER:
            return percent / 100
    return 0.0


def summary(rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Lines of Markdown, and whether a line says that it is worse with us."""
    limit = CHANCE / len(kinds)
    yield "| kind | side | well | failed | hung | bad, true rate | seconds of a good one |", False
    yield "|---|---|---:|---:|---:|---|---:|", False
    bad = {}
    for kind in kinds:
        for side in SIDES:
            its = [row for row in rows if (row["kind"], row["side"]) == (kind, side)]
            if not its:
                continue
            counts = [sum(row["ended"] == end for row in its) for end in ENDS]
            bad[kind, side] = (sum(counts[1:]), len(its))
            low, high = interval(*bad[kind, side])
            good = [row["seconds"] for row in its if row["ended"] == WELL]
            cells = [*map(str, counts), f"{low:.0%} to {high:.0%}"]
            cells.append(f"{statistics.median(good):.1f}" if good else "-")
            yield f"| {kind} | {side} | {' | '.join(cells)} |", False
    yield "", False
    for kind in kinds:
        if any((kind, side) not in bad for side in SIDES):
            continue
        (failed, of), (failed_with, of_with) = (bad[kind, side] for side in SIDES)
        probable = chance(failed, of, failed_with, of_with)
        worse = probable < limit
        least = seen(failed, of, of_with, limit)
        yield (
            f"- {kind}: {'WORSE with us' if worse else 'no difference shown'}. If both sides are "
            f"alike, so many bad ones with us have a probability of {probable:.3f}; the limit is "
            f"{limit:.4f}. "
            + (f"{least:.0%} bad ones with us" if least else "No rate")
            + " would have been told from this.",
            worse,
        )
    yield "", False
    bad_ones = [row for row in rows if row["ended"] != WELL]
    for error in sorted({row["error"] for row in bad_ones}):
        counts = [
            sum(row["error"] == error for row in bad_ones if row["side"] == side) for side in SIDES
        ]
        yield f"- {counts[0]} without, {counts[1]} with: {error or 'no error was written'}", False
    others = [row["busy"] for row in rows]
    if others:
        yield (
            f"\nOthers used {statistics.median(others):.0%} of the cores before a job (median; at "
            f"most {max(others):.0%}).",
            False,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs whose ranks join again.")
    parser.add_argument("python")
    parser.add_argument("--runs", type=int, default=50, help="of each kind and side (50)")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a job (60)")
    parser.add_argument("--results", type=Path, default=Path(".work", "rejoins.jsonl"))
    asked = parser.parse_args()
    python, path = os.path.abspath(asked.python), asked.results.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        env = {**os.environ, "ROCM_AUTOPATCH": "off"}
        try:
            of = subprocess.run(
                [python, "-c", OF], text=True, env=env, check=True, capture_output=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).splitlines()[-1]
            print(f"{asked.python} has no torch with the package: {said}", file=sys.stderr)
            return 1
        run_jobs(python, of, asked, path)
        os.chdir("/")
    rows = [row for row in counted(read(path), of) if row["run"] < asked.runs]
    rows = [row for row in rows if row["kind"] in asked.only]
    lines = list(summary(rows, asked.only))
    print(f"{of}, {asked.runs} runs of each kind and side\n")
    left = asked.runs * len(asked.only) * len(SIDES) - len(rows)
    if left:
        print(f"{left} jobs do not count, because others were BUSY: call it again\n")
    for line, _ in lines:
        print(line)
    return int(any(worse for _, worse in lines))


if __name__ == "__main__":
    sys.exit(main())
