"""Jobs whose ranks join again: how often that fails on this torch, without us and with ``ranks``.

    python tests/live/rejoins.py PYTHON [--runs 50] [--only env tcp elastic store] [--limit 60]

PYTHON has torch and our wheel. The kinds, each with ROCM_AUTOPATCH=off and with ``ranks: say``, by
turns, one job at a time:

- ``env``, ``tcp``: three processes join by gloo three times, at the same port.
- ``elastic``: torchrun restarts two workers once, which join by gloo.
- ``store``: the same restart, and no rank connects to another one: the store is all that they use.

Gloo's own failures are on both sides: a rank that is early finds the store of before, or the
address of a rank that has ended. What is ours would be on one side only. The table has how many
jobs ended well, failed and hung. The exit status is 1 if more fail or hang with us than without, by
more than chance explains (Fisher's exact test, 1 %).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from math import comb
from pathlib import Path

SIDES = {"without": {"ROCM_AUTOPATCH": "off"}, "with": {}}
POLICY = "version: 1\nname: job\nextends: safe\npatches: {ranks: say}\n"
WELL, FAILED, HUNG = "well", "failed", "hung"
AGAIN = """
import datetime, sys, torch, torch.distributed as distributed
for _ in range(3):
    distributed.init_process_group(
        "gloo", init_method=sys.argv[1], timeout=datetime.timedelta(seconds=20), **({}
        if sys.argv[1] == "env://" else {"rank": int(sys.argv[2]), "world_size": 3}))
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    distributed.barrier()
    distributed.destroy_process_group()
"""
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    method = "env://" if kind == "env" else f"tcp://127.0.0.1:{port}"
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        ([python, "-c", AGAIN, method, str(rank)], {**common, "RANK": str(rank)})
        for rank in range(3)
    ]


def job(python: str, kind: str, env: Mapping[str, str], limit: float) -> str:
    """How a job ended."""
    processes = [
        subprocess.Popen(
            command,
            env={**env, **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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
    return ended


def chance(bad: int, of: int, bad_with: int, of_with: int) -> float:
    """How probable so many bad ones or more are on the second side, if both sides are alike."""
    both, all_bad = of + of_with, bad + bad_with
    ways = range(bad_with, min(all_bad, of_with) + 1)
    return sum(comb(of_with, k) * comb(of, all_bad - k) for k in ways) / comb(both, all_bad)


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs whose ranks join again.")
    parser.add_argument("python")
    parser.add_argument("--runs", type=int, default=50)
    kinds = ("env", "tcp", "elastic", "store")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a job (60)")
    asked = parser.parse_args()
    python = os.path.abspath(asked.python)
    found: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        policy = Path(directory, "job.yaml")
        policy.write_text(POLICY)
        policy.chmod(0o644)
        for run in range(asked.runs):
            for kind in asked.only:
                for side in list(SIDES)[:: 1 if run % 2 else -1]:
                    env = {**os.environ, "OMP_NUM_THREADS": "1", **SIDES[side]}
                    env["ROCM_AUTOPATCH_POLICY"] = str(policy)
                    ended = job(python, kind, env, asked.limit)
                    found[kind, side, ended] += 1
                    print(f"{run} {kind} {side}: {ended}", file=sys.stderr, flush=True)
    worse = 0
    print("| kind | side | well | failed | hung |\n|---|---|---:|---:|---:|")
    for kind in asked.only:
        bad = {}
        for side in SIDES:
            counts = [found[kind, side, ended] for ended in (WELL, FAILED, HUNG)]
            bad[side] = sum(counts[1:])
            print(f"| {kind} | {side} | {' | '.join(map(str, counts))} |")
        probable = chance(bad["without"], asked.runs, bad["with"], asked.runs)
        worse += probable < 0.01
        print(f"| {kind} | probability of this if both are alike | {probable:.2f} | | |")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
