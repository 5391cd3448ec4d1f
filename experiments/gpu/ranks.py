"""Ranks of one job on two GPUs, by torchrun and NCCL or RCCL: what is said of ranks that differ.

    python experiments/gpu/ranks.py [--backend nccl] [--ranks 2] [--limit 180]
        [--only equal odd ...]

It needs that many GPUs, torch and our wheel. ``--backend both`` needs one: the group has NCCL for
GPUs and gloo for CPUs, and gloo adds up, because NCCL takes one rank a GPU. That shows that ranks
join and compare under NCCL, and nothing of a collective. ``--backend gloo`` runs the same on a CPU,
with a ROCm torch or the label. On a GPU that is not AMD's, the fact that opens our gate is assumed:
that shows what NCCL does, and nothing of RCCL.

Each job joins, adds up a result of a compiled function over all ranks, and looks whether the sum
is right. The jobs: ``off`` and ``equal`` say nothing; in ``odd`` rank 1 has another setting;
``absent`` has no hook there; ``again`` joins three times, each time by another store; ``restart``
fails once, and torchrun starts it again (not with gloo, unless asked for); ``abort`` is ``odd``
under ROCM_AUTOPATCH_RANKS=abort. It prints what each job said, and the milliseconds that joining
took: the slowest rank of the first join. If something is not as it should be, the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jobs

POLICY = "version: 1\nname: job\nextends: safe\npatches: {ranks: say}\n"
ODD = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE=EXHAUSTIVE"
OFF = "ROCM_AUTOPATCH=off"
BOTH = "cpu:gloo,cuda:nccl"
DIFFER, MISSING = "the ranks of this job compile differently: on rank 1 ", "rank 1 of "


class Job(NamedTuple):
    """What all ranks and what rank 1 has in its environment, options of torchrun; how it ends, how
    often which line is written, and how often DifferentRanks is raised by the ranks."""

    env: Mapping[str, str] = MappingProxyType({})
    odd: str = ""
    options: tuple[str, ...] = ()
    well: bool = True
    line: str = ""
    lines: int = 0
    raised: bool = False


JOBS = {
    "off": Job({"ROCM_AUTOPATCH": "off"}),
    "equal": Job(),
    "odd": Job(odd=ODD, line=DIFFER, lines=1),
    "absent": Job(odd=OFF, line=MISSING, lines=1),
    "again": Job({"TIMES": "3"}, odd=ODD, line=DIFFER, lines=3),
    "restart": Job({"FAIL": "1"}, odd=ODD, options=("--max-restarts=1",), line=DIFFER, lines=2),
    "abort": Job({"ROCM_AUTOPATCH_RANKS": "abort"}, odd=ODD, well=False, raised=True),
}


def rank(backend: str, directory: Path) -> None:
    """Be one rank of a job."""
    import datetime

    import torch
    import torch.distributed as distributed

    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if backend != "gloo":
        device = torch.device("cuda", 0 if backend == "both" else int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    ports = json.loads(os.environ["PORTS"])
    for time_ in range(int(os.environ.get("TIMES", "1"))):
        where: dict[str, Any] = {"init_method": "env://"}
        if time_:
            # A store of their own: with torchrun's, an early rank finds what is left of the join
            # before, also without us.
            address = ("127.0.0.1", ports[time_], size, number == 0)
            where = {"store": distributed.TCPStore(*address), "rank": number, "world_size": size}
        began = time.perf_counter()
        try:
            patience = datetime.timedelta(seconds=60)
            backends = BOTH if backend == "both" else backend
            distributed.init_process_group(backends, timeout=patience, **where)
        except RuntimeError as error:
            (directory / f"raised-{number}").write_text(f"{type(error).__name__}: {error}")
            # torchrun ends all ranks as soon as one has failed. Each shall have told.
            time.sleep(5)
            raise
        took = (time.perf_counter() - began) * 1e3
        double = torch.compile(lambda x: (x * 2).sum(), backend="eager")
        total = double(torch.full((4,), float(number + 1), device=device))
        if backend == "both":
            total = total.cpu()
        distributed.all_reduce(total)
        expected = 8 * size * (size + 1) / 2
        if total.item() != expected:
            raise SystemExit(f"the sum is {total.item()}, expected {expected}")
        if not time_:
            (directory / f"joined-{number}").write_text(str(took))
        distributed.destroy_process_group()
    if os.environ.get("FAIL") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        # Not before all ranks are through.
        time.sleep(3)
        sys.exit(1)


def run(job: Job, asked: argparse.Namespace, directory: Path) -> tuple[list[str], str]:
    """What is wrong with a job, and what it did."""
    policy = directory / "job.yaml"
    policy.write_text(POLICY)
    policy.chmod(0o644)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ROCM_AUTOPATCH_POLICY": str(policy), **job.env}
    env["PORTS"] = json.dumps(jobs.free_ports(3))
    env["ODD"] = job.odd
    if asked.backend != "gloo":
        import torch

        if not torch.version.hip:
            env["ROCM_AUTOPATCH_ASSUME"] = "accelerator=rocm"
    # torchrun itself must not have what rank 1 alone has.
    shell = '[ "$RANK" = 1 ] && [ -n "$ODD" ] && export "$ODD"; exec "$@"'
    own = [sys.executable, __file__, "--rank", str(directory), "--backend", asked.backend]
    arguments = [f"--nproc-per-node={asked.ranks}", *job.options, "--no-python"]
    began = time.monotonic()
    status, stderr = jobs.run(
        [*arguments, "sh", "-c", shell, "sh", *own], directory, env, asked.limit
    )
    if status is None:
        return [f"not over after {asked.limit} s"], stderr[-2000:]
    seconds = time.monotonic() - began
    ours = [line for line in stderr.splitlines() if line.startswith("rocm_autopatch: ")]
    about = [line for line in ours if "rank" in line]
    raised = [path.read_text() for path in sorted(directory.glob("raised-*"))]
    wrong = []
    if (status == 0) != job.well:
        wrong.append(f"status {status}: {stderr[-2000:]}")
    if len(about) != job.lines or any(job.line not in line for line in about):
        wrong.append(f"expected {job.lines} lines about ranks, found {about}")
    if job.raised and not (
        len(raised) == asked.ranks
        and len(set(raised)) == 1
        and raised[0].startswith(f"DifferentRanks: {DIFFER}")
    ):
        wrong.append(f"expected {asked.ranks} times DifferentRanks, found {raised}")
    joined = [float(path.read_text()) for path in directory.glob("joined-*")]
    said = f"{seconds:.0f} s, joined in {max(joined):.0f} ms" if joined else f"{seconds:.0f} s"
    return wrong, "\n    ".join([said, *about, *raised[:1]])


def main() -> int:
    parser = argparse.ArgumentParser(description="Ranks of one job on two GPUs.")
    parser.add_argument("--backend", choices=("nccl", "both", "gloo"), default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=180, help="seconds for a job (180)")
    parser.add_argument("--only", nargs="+", choices=JOBS)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank(asked.backend, asked.rank)
        return 0
    failed = 0
    # gloo itself fails in half of such restarts: docs/patches.md.
    usual = [name for name in JOBS if name != "restart" or asked.backend == "nccl"]
    for name in asked.only or usual:
        with tempfile.TemporaryDirectory() as directory:
            wrong, said = run(JOBS[name], asked, Path(directory))
        failed += bool(wrong)
        print(f"{name}: {'WRONG' if wrong else 'ok'}, {said}", flush=True)
        for line in wrong:
            print("    " + line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
