# mypy: disable-error-code="no-any-return"
"""On a machine with GPUs: what ``tune`` finds, beside what trying everything by hand finds.

    python tests/gpu/tune.py WORK [--only NAME ...] [--gpus N] [--budget TIME] [--repeat N]
        [--tolerance PART] [--small] [--try NAME=VALUE ...]

For an interpreter that has torch for that GPU, transformers, timm and our wheel. The programs are
in tests/gpu/tuned/: transformers' ``generate`` with a static cache, a convolution net of timm, a
training step, and one that compiles nothing. By hand means: ``ab`` runs each switch alone, then all
combinations of up to four that helped. The fastest arm is taken that computes the same and is
faster in seven new runs, too. Then ``ab`` compares the two policies. All of it for one program runs
on one GPU, and each program has its own. WORK keeps the results: a second call goes on. ``--small``
is for a CPU, and with ``--try`` only these switches are tried: that tries the machinery. On a GPU
that is not AMD's, the hook is opened by an assumed fact: this shows what Inductor does, and nothing
of HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from rocm_autopatch.ab import place
from rocm_autopatch.tune import candidates, policy_file, same
from rocm_autopatch.tune.candidates import Candidate

HERE = Path(__file__).parent / "tuned"
# Each program's number, and what has to be the same.
PROGRAMS = {
    "generate": ("token", "generate.pt"),
    "convolution": ("batch", "convolution.pt"),
    "training": ("step", "loss"),
    "eager": ("product", "sum"),
}
# What helps alone is combined, the best of it.
_COMBINED = 4
_HELPS = 0.98
# So many of the fastest arms are tried again.
_CONFIRMED = 3


class Job:
    """A program on one GPU."""

    def __init__(self, name: str, asked: argparse.Namespace, gpu: str) -> None:
        self.name, self.asked = name, asked
        self.metric, self.same = PROGRAMS[name]
        self.work = asked.work / name
        self.work.mkdir(parents=True, exist_ok=True)
        self.program = [sys.executable, str(HERE / f"{name}.py")]
        self.program += ["--small"] if asked.small else []
        self.environ = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}

    def ours(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of our commands, with its progress in a log."""
        with (self.work / "log").open("a") as log:
            return subprocess.run(
                [sys.executable, "-m", "rocm_autopatch", *words, "--", *self.program],
                cwd=self.work,
                env=self.environ,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def kept(self, name: str, *words: str) -> Any:
        """The JSON of one of our commands, from WORK if it is there."""
        file = self.work / f"{name}.json"
        if not file.exists():
            done = self.ours(*words, "--json")
            if not done.stdout:
                raise SystemExit(f"{self.name}: {name}: see {self.work / 'log'}")
            file.write_text(done.stdout)
        return json.loads(file.read_text())

    def tried(self) -> list[Candidate]:
        """What is tried, by hand and by tune."""
        wanted = self.asked.wanted
        with tempfile.TemporaryDirectory() as directory:
            found = candidates.find(
                place.find(self.program),
                self.program,
                wanted,
                (),
                bool(wanted),
                Path(directory),
            )
        return list(found.candidates)

    def right(self, chosen: Sequence[Candidate], file: Path) -> bool:
        """Whether the program computes the same under these switches as without them."""
        here = place.find(self.program)
        checked = same.Same([self.same], self.asked.tolerance, self.work, here)
        self.write(chosen, file)
        for policy in ("", str(file)):
            environ = self.environ
            if policy:
                environ = {**environ, "ROCM_AUTOPATCH_POLICY": policy}
                environ |= {} if here.is_rocm else {"ROCM_AUTOPATCH_ASSUME": "accelerator=rocm"}
            checked.begin()
            done = subprocess.run(
                self.program, cwd=self.work, env=environ, capture_output=True, text=True
            )
            if done.returncode or checked.end(_numbers(done.stdout)):
                return False
        return True

    def write(self, chosen: Sequence[Candidate], file: Path) -> None:
        """Write a policy of these switches."""
        here = place.find(self.program)
        file.write_text(
            policy_file.text(here, file.stem, "By hand.", [(one, "By hand.") for one in chosen])
        )

    def by_hand(self) -> Mapping[str, Any]:
        """Try everything: each switch alone, and all combinations of what helped."""
        how = ["--caches", "warm", "--repeat", str(self.asked.repeat), "--metric", self.metric]
        tried = self.tried()
        labels = {one.label: one for one in tried}
        runs, medians = 0, {}
        # ab takes one toggle for each switch; further values of it are further comparisons.
        rest = tried
        number = 0
        while rest:
            first = list({one.switch: one for one in reversed(rest)}.values())
            rest = [one for one in rest if one not in first]
            toggles = [word for one in first for word in ("--toggle", _text(one))]
            found = self.kept(f"alone{number}", "ab", *toggles, *how)
            runs += len(found["runs"])
            number += 1
            base = _medians(found)["base"]
            medians.update({k: m / base for k, m in _medians(found).items() if k != "base"})
        helped = sorted((m, label) for label, m in medians.items() if m < _HELPS)
        best = [labels[label] for _, label in helped if label in labels]
        best = list({one.switch: one for one in reversed(best)}.values())[::-1][:_COMBINED]
        arms = [[one] for one in best]
        if len(best) > 1:
            toggles = [word for one in best for word in ("--toggle", _text(one))]
            found = self.kept("grid", "ab", "--grid", *toggles, *how)
            runs += len(found["runs"])
            by_label = _medians(found)
            base = by_label["base"]
            medians.update({k: m / base for k, m in by_label.items() if k != "base"})
            arms = [[labels[part] for part in k.split(", ")] for k in by_label if k != "base"]
        arms.sort(key=lambda arm: medians.get(", ".join(one.label for one in arm), 9.0))
        file = self.work / "hand.yaml"
        confirmed = 0
        for arm in arms:
            runs += 2
            if not self.right(arm, file):
                continue
            # The fastest of many arms is partly luck, so it has to show it again.
            row, more = self.versus(f"confirmed{confirmed}", str(file))
            runs += more
            if row["interval"][1] < 1:
                names = [one.label for one in arm]
                return {"runs": runs, "best": names, "ratio": row["ratio"]}
            confirmed += 1
            if confirmed == _CONFIRMED:
                break
        self.write([], file)
        return {"runs": runs, "best": [], "ratio": 1.0}

    def versus(self, name: str, policies: str) -> tuple[Mapping[str, Any], int]:
        """ab's row that compares a policy with the base, or two of them; and how many runs."""
        words = ["--caches", "warm", "--repeat", "7", "--metric", self.metric]
        found = self.kept(name, "ab", "--toggle", f"policy={policies}", *words)
        return next(row for row in found["rows"] if "ratio" in row), len(found["runs"])

    def tune(self) -> Mapping[str, Any]:
        """What tune finds."""
        words = ["tune", "--budget", self.asked.budget, "--metric", self.metric, "--seed", "1"]
        words += ["--same", self.same, "--tolerance", str(self.asked.tolerance)]
        words += ["--out", "tuned.yaml"]
        if self.asked.wanted:
            words += ["--only", *(w for one in self.asked.wanted for w in ("--try", one))]
        return self.kept("tuned", *words)

    def compare(self, hand: Mapping[str, Any], tuned: Mapping[str, Any]) -> str:
        """Both policies side by side."""
        if not tuned["helps"]:
            self.write([], self.work / "tuned.yaml")
        if not tuned["helps"] and not hand["best"]:
            return "both: nothing helps"
        row, _ = self.versus("both", f"{self.work}/hand.yaml,{self.work}/tuned.yaml")
        low, high = row["interval"]
        return f"tune's is {row['ratio']:.3f}x of the hand's ({low:.3f} to {high:.3f})"

    def run(self) -> str:
        """All of it, as a line."""
        tuned = self.tune()
        hand = self.by_hand()
        said = ", ".join(entry["switch"] for entry in tuned["entries"]) or "nothing"
        part = tuned["runs"] / max(1, hand["runs"])
        return (
            f"{self.name}: by hand {', '.join(hand['best']) or 'nothing'} "
            f"({hand['ratio']:.3f}x, {hand['runs']} runs); tune {said} "
            f"({tuned['ratio'] or 1:.3f}x, {tuned['runs']} runs, {part:.0%}); "
            f"{self.compare(hand, tuned)}"
        )


def _text(one: Candidate) -> str:
    """A candidate as ab takes it."""
    value = one.toggle.says(one.value).partition("=")[2]
    prefix = "env." if one.toggle.kind == "variable" else ""
    return f"{prefix}{one.toggle.label}=" + (f'"{value}"' if "," in value else value)


def _medians(found: Mapping[str, Any]) -> dict[str, float]:
    """By the label of the arm, the median of the metric."""
    return {row["arm"]: row["median"] for row in found["rows"]}


def _numbers(text: str) -> Any:
    from rocm_autopatch.ab import numbers

    return numbers.find(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="tune beside trying everything by hand.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--gpus", type=int, default=1, help="programs at once, each on its own GPU")
    parser.add_argument("--budget", default="8m", help="of tune, for each program")
    parser.add_argument("--repeat", type=int, default=3, help="runs of an arm by hand")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--try", dest="wanted", action="append", default=[])
    asked = parser.parse_args()
    asked.work = asked.work.absolute()
    free: Queue[str] = Queue()
    for gpu in range(asked.gpus):
        free.put("" if asked.small else str(gpu))

    def run(name: str) -> str:
        gpu = free.get()
        try:
            return Job(name, asked, gpu).run()
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(asked.gpus) as pool:
        for line in pool.map(run, asked.only):
            print(line, flush=True)


if __name__ == "__main__":
    main()
