# mypy: disable-error-code="no-any-return"
"""On a machine with a GPU: what ``tune`` finds, beside what trying everything by hand finds.

    python experiments/gpu/tune.py WORK [--only NAME ...] [--gpus N] [--first N] [--budget TIME]
        [--fill N] [--repeat N] [--workers N] [--tolerance PART] [--limit SECONDS] [--small]
        [--try NAME=VALUE ...]

For an interpreter that has torch for that GPU, transformers, torchvision and our wheel. The
programs are in experiments/gpu/tuned/: transformers' ``generate`` with a static cache, a small
convolution net, a training step, and one that compiles nothing. By hand means: each switch alone,
then all sets of up to four that helped (by_hand.py). On a GPU its programs time their calls in
turns, so one times while others import and compile, and these are stopped meanwhile
(tuned/turns.py). On one GPU ``tune`` comes after it, one program after the other. With more, what
is by hand has the last one, and ``tune`` the others, all at the same time. Then the policies of
both run in turns, in rounds of both.

WORK keeps the runs: after ``--limit`` seconds it ends with status 3, and the same command goes on.
It prints what it knows each minute. ``--small`` is for a CPU, and with ``--try`` only these
switches are tried: that tries the machinery. On a GPU that is not AMD's, the hook is opened by an
assumed fact: this shows what Inductor does, and nothing of HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from by_hand import BASE, PROGRAMS, Found, OutOfTime, Pool, Program, search, so_far

from rocm_autopatch.measure.ab import RequestRefused, WrongRequest, bootstrap

_ROUNDS = 7
_GOES_ON = 3
_EACH_S = 60.0


class Job:
    """A program, what was asked, and the GPU of its ``tune``; *pool* is for what is by hand."""

    def __init__(self, name: str, asked: argparse.Namespace, gpu: int, pool: Pool) -> None:
        self.asked, self.gpu, self.pool = asked, gpu, pool
        self.program = Program(name, asked.work, asked.caches, asked.small, asked.tolerance)

    def tune(self) -> Mapping[str, Any]:
        """What tune finds. Raises OutOfTime."""
        program = self.program
        kept = program.work / "tuned.json"
        if not kept.exists():
            words = ["tune", "--budget", self.asked.budget, "--metric", program.metric]
            words += ["--fill", str(self.asked.fill), "--same", program.same]
            words += ["--seed", "1", "--out", "tuned.yaml", "--json"]
            words += ["--tolerance", str(program.tolerance)]
            if self.asked.wanted:
                words += ["--only", ",".join(one.partition("=")[0] for one in self.asked.wanted)]
                words += [w for one in self.asked.wanted for w in ("--toggle", one)]
            printed = program.work / "tuned.json.part"
            with printed.open("w") as stdout, (program.work / "log").open("a") as log:
                command = subprocess.Popen(
                    [sys.executable, "-m", "rocm_autopatch", *words, "--", *program.command],
                    cwd=program.work,
                    env={**os.environ, **_on(self.asked, self.gpu)},
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
        """Both policies by turns, where ``tune`` ran. Raises OutOfTime."""
        if not tuned["helps"] and hand.name == BASE:
            return "both: nothing helps"
        program = self.program
        names = [
            program.add_policy(program.write(hand.name)) if hand.name != BASE else BASE,
            program.add_policy(program.work / "tuned.yaml") if tuned["helps"] else BASE,
        ]
        with Pool(self.asked.workers, self.pool.until, _on(self.asked, self.gpu)) as pool:
            program.measure("both", names, _ROUNDS, pool, anew=True)
        if any(map(program.wrong, names)):
            return f"wrong: {[program.wrong(name) for name in names]}"
        one, other = (program.costs("both", name) for name in names)
        found = bootstrap.compare_medians(one, other, 1)
        assert found.interval is not None
        low, high = found.interval
        return f"tune's is {found.ratio:.3f}x of the hand's ({low:.3f} to {high:.3f})"

    def line(self, hand: Found, tuned: Mapping[str, Any], compared: str) -> str:
        """All of it, in a line."""
        said = ", ".join(entry["switch"] for entry in tuned["entries"] if tuned["helps"])
        hand_runs = [kind for _, kind, _ in self.hand_rows()]
        tune_runs = [kind for _, kind, _ in self.tune_rows()]
        return (
            f"{self.program.name}: by hand {hand.name} ({hand.ratio:.3f}x, {_count(hand_runs)}); "
            f"tune {said or 'nothing'} ({tuned['ratio'] or 1:.3f}x, {_count(tune_runs)}, "
            f"{len(tune_runs) / max(1, len(hand_runs)):.0%} of the runs by hand); {compared}"
        )

    def hand_rows(self) -> list[tuple[str, str, float | None]]:
        """The runs by hand: the set, the kind, the number."""
        rows = [(row["name"], row["key"], row["value"]) for row in [*self.program.rows]]
        # The last step, in which both policies run, has its own caches to fill, too.
        return [row for row in rows if "both" not in row[1].split()]

    def tune_rows(self) -> list[tuple[str, str, float | None]]:
        """The runs of tune that are kept, as those by hand."""
        file = self.program.work / "tuned.yaml.runs" / "runs.jsonl"
        # The last line may not be complete yet.
        lines = file.read_text().split("\n")[1:-1] if file.exists() else []
        return [(row["trial"], row["kind"], row["value"]) for row in map(json.loads, lines)]

    def known(self) -> Iterator[str]:
        """What is known up to now."""
        yield f"{self.program.name}, by hand: {so_far(self.hand_rows())}"
        yield f"{self.program.name}, tune: {so_far(self.tune_rows())}"


def _count(kinds: list[str]) -> str:
    fills = sum(kind.startswith(("fill", "first")) for kind in kinds)
    return f"{len(kinds)} runs, {len(kinds) - fills} of them measured"


def _on(asked: argparse.Namespace, gpu: int) -> dict[str, str]:
    """Variables for a program that runs on a GPU."""
    return {
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "TUNED_TURNS": str(asked.work / f"turns{gpu}"),
        # Where packages have no bytecode, each run would compile torch's sources again.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(asked.caches / "bytecode"),
    }


def _watch(jobs: list[Job], over: threading.Event) -> None:
    """Print what is known, each minute and at the end."""
    began = time.monotonic()
    while True:
        ended = over.wait(_EACH_S)
        lines = [line for job in jobs for line in job.known()]
        print(f"-- {time.monotonic() - began:.0f} s", *lines, sep="\n", flush=True)
        if ended:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description="tune beside trying everything by hand.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--budget", default="15m", help="of tune, for each program")
    parser.add_argument("--fill", type=int, default=1, help="of tune")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="of the GPUs")
    parser.add_argument("--repeat", type=int, default=5, help="runs of a set by hand")
    parser.add_argument("--workers", type=int, default=1, help="runs by hand at the same time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds of this call")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--toggle", dest="wanted", action="append", default=[])
    asked = parser.parse_args()
    asked.work = asked.work.absolute()
    try:
        asked.work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"tune.py: {asked.work} can't be written: {error.strerror}")
    asked.caches = Path(tempfile.gettempdir()) / f"tuned-caches-{asked.work.name}"
    late, wrong, over = False, False, threading.Event()
    found = []
    until = time.monotonic() + asked.limit
    alone = asked.gpus == 1
    with Pool(asked.workers, until, _on(asked, asked.first + asked.gpus - 1)) as pool:
        jobs = [
            Job(name, asked, asked.first + number % max(1, asked.gpus - 1), pool)
            for number, name in enumerate(asked.only)
        ]
        watch = threading.Thread(target=_watch, args=(jobs, over), daemon=True)
        watch.start()
        with (
            ThreadPoolExecutor(len(jobs)) as threads,
            ThreadPoolExecutor(1 if alone else len(jobs)) as others,
        ):
            hands = [threads.submit(job.by_hand) for job in jobs]
            if alone:
                wait(hands)
            tunes = [others.submit(job.tune) for job in jobs]
        for job, tune, hand in zip(jobs, tunes, hands):
            try:
                found.append((job, hand.result(), tune.result()))
            except OutOfTime:
                late = True
            except (SystemExit, RequestRefused, WrongRequest) as error:
                wrong = True
                print(f"{job.program.name}: {error}", flush=True)
    over.set()
    watch.join()
    with ThreadPoolExecutor(max(1, len(found))) as threads:
        lines = [threads.submit(job.compare, hand, tuned) for job, hand, tuned in found]
    for (job, hand_, tuned), line in zip(found, lines):
        try:
            print(job.line(hand_, tuned, line.result()), flush=True)
        except OutOfTime:
            late = True
            print(job.line(hand_, tuned, "both: the time was over"), flush=True)
    return 1 if wrong else _GOES_ON if late else 0


if __name__ == "__main__":
    sys.exit(main())
