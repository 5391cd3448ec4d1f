"""``python -m demo.ranks``: a job of two ranks that hangs, as one has another setting.

The job runs three times: without us, with us, and with ``ROCM_AUTOPATCH_RANKS=abort``.
It uses the copies of the environment that ``python -m demo`` makes. Progress goes to stderr, the
table to stdout. If anything is not as it should be, one line says why, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from demo.__main__ import ROOT, DemoError, install_both
from surroundings import hip_torch

# After so many seconds without an answer, gloo ends the job. Its own limit is 30 minutes.
PATIENCE_S = 20
ODD = {"TORCH_COMPILER_COLLECTIVES": "1"}
SIDES = {
    "without rocm_autopatch": ("without", {}),
    "with rocm_autopatch": ("with", {}),
    "with ROCM_AUTOPATCH_RANKS=abort": ("with", {"ROCM_AUTOPATCH_RANKS": "abort"}),
}


class Ended(NamedTuple):
    """A job: its seconds, and of each rank the exit status and stderr."""

    seconds: float
    statuses: list[int]
    stderr: list[str]

    def lines(self, word: str) -> list[str]:
        return [line for text in self.stderr for line in text.splitlines() if word in line]


def main() -> int:
    """Run the demonstration and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.ranks", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".work", help="where to build (default: %(default)s)"
    )
    work = parser.parse_args().work.resolve()
    try:
        with hip_torch.lock(work / "demo.lock"):
            venvs = install_both(work)
            found = {name: _run(venvs[side], env) for name, (side, env) in SIDES.items()}
    except (DemoError, hip_torch.SurroundingsError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print("\n".join(_table(found)))
    failure = _failure(found)
    if failure:
        print(f"demo: {failure}", file=sys.stderr)
    return 1 if failure else 0


def _run(venv: Path, env: Mapping[str, str]) -> Ended:
    with tempfile.TemporaryDirectory() as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        common = {**os.environ, **env}
        command = [str(hip_torch.python(venv)), str(ROOT / "demo" / "hang.py")]
        began = time.monotonic()
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(port), str(PATIENCE_S)],
                env={**common, **(ODD if rank else {})},
                cwd=directory,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        stderr = [rank.communicate()[1] for rank in ranks]
    return Ended(time.monotonic() - began, [rank.returncode for rank in ranks], stderr)


def _failure(found: Mapping[str, Ended]) -> str:
    """Why the demonstration does not show what it should, or ""."""
    without, say, abort = found.values()
    for failed, text in (
        (without.seconds < PATIENCE_S or say.seconds < PATIENCE_S, "the job did not hang"),
        (0 in without.statuses + say.statuses + abort.statuses, "a rank ended with status 0"),
        (len(say.lines(next(iter(ODD)))) != 1, "the line is not there once"),
        (len(abort.lines("DifferentRanks: ")) != 2, "not both ranks raised"),
    ):
        if failed:
            return text
    return ""


def _table(found: Mapping[str, Ended]) -> Iterator[str]:
    odd = " ".join(f"{name}={value}" for name, value in ODD.items())
    yield from wrap(
        f"Two ranks on a CPU (gloo); rank 1 alone has {odd}. Ranks that wait end after "
        f"{PATIENCE_S} s here; torch's own limit is 30 minutes.",
        99,
    )
    for name, one in found.items():
        yield ""
        yield f"{name}: the job ended after {one.seconds:.0f} s"
        ours = one.lines("rocm_autopatch: the ranks") or one.lines("DifferentRanks: ")[:1]
        theirs = [line for line in one.stderr[0].splitlines() if "Error" in line][-1:]
        for line in ours or theirs:
            yield from wrap(line, 99, initial_indent="  ", subsequent_indent="  ")


if __name__ == "__main__":
    sys.exit(main())
