# mypy: disable-error-code="no-any-return"
"""On a machine with a GPU: what ``tune`` finds, beside what trying everything by hand finds.

    python tests/gpu/tune.py WORK [--only NAME ...] [--budget TIME] [--repeat N] [--workers N]
        [--tolerance PART] [--limit SECONDS] [--small] [--try NAME=VALUE ...]

For an interpreter that has torch for that GPU, transformers, timm, optuna and our wheel. The
programs are in tests/gpu/tuned/: transformers' ``generate`` with a static cache, a convolution net
of timm, a training step, and one that compiles nothing. By hand means: each switch alone, then all
sets of up to four that helped (by_hand.py). Then both policies run by turns, with nothing beside
them but the other programs' pairs. All programs run at the same time on one GPU. They time their
calls in turns, so one times while others import and compile. WORK keeps the runs: after ``--limit``
seconds it ends with status 3, and a second call goes on. ``--small`` is for a CPU, and with
``--try`` only these switches are tried: that tries the machinery. On a GPU that is not AMD's, the
hook is opened by an assumed fact: this shows what Inductor does, and nothing of HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from by_hand import BASE, PROGRAMS, Found, OutOfTime, Pool, Program, search

from rocm_autopatch.ab import bootstrap

_ROUNDS = 7
_GOES_ON = 3


class Job:
    """A program, and what was asked."""

    def __init__(self, name: str, asked: argparse.Namespace, pool: Pool) -> None:
        self.asked, self.pool = asked, pool
        self.program = Program(name, asked.work, asked.caches, asked.small, asked.tolerance)

    def tune(self) -> Mapping[str, Any]:
        """What tune finds. Raises OutOfTime."""
        program = self.program
        kept = program.work / "tuned.json"
        if not kept.exists():
            words = ["tune", "--budget", self.asked.budget, "--metric", program.metric]
            words += ["--seed", "1", "--same", program.same, "--out", "tuned.yaml", "--json"]
            words += ["--tolerance", str(program.tolerance)]
            if self.asked.wanted:
                words += ["--only", *(w for one in self.asked.wanted for w in ("--try", one))]
            printed = program.work / "tuned.json.part"
            with printed.open("w") as stdout, (program.work / "log").open("a") as log:
                command = subprocess.Popen(
                    [sys.executable, "-m", "rocm_autopatch", *words, "--", *program.command],
                    cwd=program.work,
                    stdout=stdout,
                    stderr=log,
                )
                try:
                    command.wait(max(1.0, self.pool.until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    command.send_signal(signal.SIGINT)
                    command.wait()
                    raise OutOfTime from None
            if not printed.stat().st_size:
                raise SystemExit(f"{program.name}: tune: see {program.work / 'log'}")
            printed.rename(kept)
        return json.loads(kept.read_text())

    def by_hand(self) -> Found:
        """What trying everything finds. Raises OutOfTime."""
        return search(
            self.program, self.program.find(self.asked.wanted), self.asked.repeat, self.pool
        )

    def compare(self, hand: Found, tuned: Mapping[str, Any]) -> str:
        """Both policies by turns. Raises OutOfTime."""
        if not tuned["helps"] and hand.name == BASE:
            return "both: nothing helps"
        program = self.program
        names = [
            program.add_policy(program.write(hand.name)) if hand.name != BASE else BASE,
            program.add_policy(program.work / "tuned.yaml") if tuned["helps"] else BASE,
        ]
        program.measure("both", names, _ROUNDS, self.pool)
        if any(map(program.wrong, names)):
            return f"wrong: {[program.wrong(name) for name in names]}"
        one, other = (program.costs("both", name) for name in names)
        found = bootstrap.compare(one, other, 1)
        assert found.interval is not None
        low, high = found.interval
        return f"tune's is {found.ratio:.3f}x of the hand's ({low:.3f} to {high:.3f})"

    def line(self, hand: Found, tuned: Mapping[str, Any], compared: str) -> str:
        """All of it, in a line."""
        said = ", ".join(entry["switch"] for entry in tuned["entries"]) or "nothing"
        runs = sum(row["key"].partition(" ")[0] != "both" for row in self.program.rows)
        return (
            f"{self.program.name}: by hand {hand.name} ({hand.ratio:.3f}x, {runs} runs); tune "
            f"{said} ({tuned['ratio'] or 1:.3f}x, {tuned['runs']} runs, "
            f"{tuned['runs'] / max(1, runs):.0%}); {compared}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="tune beside trying everything by hand.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--budget", default="15m", help="of tune, for each program")
    parser.add_argument("--repeat", type=int, default=2, help="runs of a set by hand")
    parser.add_argument("--workers", type=int, default=1, help="runs by hand at the same time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds of this call")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--try", dest="wanted", action="append", default=[])
    asked = parser.parse_args()
    asked.work = asked.work.absolute()
    asked.work.mkdir(parents=True, exist_ok=True)
    asked.caches = Path(tempfile.gettempdir()) / f"tuned-caches-{asked.work.name}"
    os.environ["TUNED_TURNS"] = str(asked.work / "turns")
    pool = Pool(asked.workers, time.monotonic() + asked.limit)
    with pool:
        jobs = [Job(name, asked, pool) for name in asked.only]
        with ThreadPoolExecutor(2 * len(jobs)) as threads:
            tunes = [threads.submit(job.tune) for job in jobs]
            hands = [threads.submit(job.by_hand) for job in jobs]
        late = False
        found = []
        for job, tune, hand in zip(jobs, tunes, hands):
            try:
                found.append((job, hand.result(), tune.result()))
            except OutOfTime:
                late = True
        with ThreadPoolExecutor(len(jobs)) as threads:
            lines = [threads.submit(job.compare, hand, tuned) for job, hand, tuned in found]
        for (job, hand_, tuned), line in zip(found, lines):
            try:
                print(job.line(hand_, tuned, line.result()), flush=True)
            except OutOfTime:
                late = True
    return _GOES_ON if late else 0


if __name__ == "__main__":
    sys.exit(main())
