# mypy: allow-subclassing-any
"""DistributedDataParallel on two GPUs, by torchrun and NCCL or RCCL: training graphs beside torch.

    python experiments/gpu/data_parallel.py [--backend nccl] [--ranks 2] [--limit 240]
        [--only mlp ...]

It needs that many GPUs, torch, transformers and our wheel. ``--backend gloo`` runs the same with
small models on a CPU, with the stand-in (tests/graphs/stand_in.py).

Each case is trained by two jobs with the same data and seeds: under torch.compile without graphs,
where nothing of ours is imported, and in a mode that stands for ``training-graphs``. Then

- all ranks of a job have the same weights, to the bit;
- losses and weights of both jobs are near: losses to 1e-4 of themselves, each weight to 1e-3 of the
  way that training has moved it. Both run the same kernels, but some add up in any order, which
  makes 1e-6. A gradient that is stale or lost in one of the 32 steps makes 1e-2. A millionth is
  allowed beside, for weights whose gradient is only what rounding leaves. The optimizer is SGD:
  Adam would make large steps of that;
- forwards and backwards were replays, nothing of training was refused, and no collective ran in a
  capture.

It prints a line for each case: what was a replay, the milliseconds of a step of both jobs and their
ratio, and the largest difference as a share of what is allowed. If something is wrong, or torch
alone fails, the exit status is 1. In the case ``static`` torch alone may fail. ``--spoil`` shows
that the script can fail: it has replays give wrong values (with gloo), a rank change its weights,
a collective run in a capture, or a rank hang.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jobs

# The steps that are compared; and those that are timed after them.
COMPARED, BLOCKS, STEPS = 32, 5, 20
SIDES = ("compiled", "ours")
SPOILS = ("value", "rank", "collective", "hang")
LOSS, WEIGHT, LEAST = 1e-4, 1e-3, 1e-6
MODE = "reduce-overhead"
SHARED = "the result shares memory with an argument or a weight"


class Case(NamedTuple):
    """A model, how it is wrapped, and what a step does."""

    model: str
    # DDP(torch.compile(model)) instead of torch.compile(DDP(model)).
    inside: bool = False
    # How many batches make a step: all but the last are under no_sync().
    batches: int = 1
    # Each fourth batch is smaller.
    uneven: bool = False
    # Each second step is followed by an evaluation.
    evaluates: bool = False
    static: bool = False
    # Gradients are views of the buckets, and stay.
    views: bool = False


CASES = {
    "mlp": Case("mlp"),
    "inside": Case("mlp", inside=True),
    "no_sync": Case("mlp", batches=3),
    "inside_no_sync": Case("mlp", inside=True, batches=3),
    "views": Case("mlp", views=True),
    "static": Case("mlp", static=True),
    "uneven": Case("mlp", uneven=True),
    "evaluates": Case("norms", evaluates=True),
    "inside_evaluates": Case("norms", inside=True, evaluates=True, uneven=True),
    "bert": Case("bert"),
    "inside_bert": Case("bert", inside=True, evaluates=True),
    "gpt2": Case("gpt2", batches=2),
    "inside_gpt2": Case("gpt2", inside=True, batches=2, uneven=True),
}


class Parts(NamedTuple):
    """A model, its batch of so many rows, and the loss of a call for a batch."""

    model: Any
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    rows: int
    # Megabytes of a bucket: there are several.
    bucket: float


def made(name: str, small: bool, generator: Any) -> Parts:
    import torch

    functional = torch.nn.functional
    if name in ("mlp", "norms"):
        width, layers = (16, 3) if small else (512, 8)
        parts: list[Any] = []
        for _ in range(layers):
            parts += [torch.nn.Linear(width, width), torch.nn.GELU()]
            parts += [torch.nn.BatchNorm1d(width)] if name == "norms" else []

        class Net(torch.nn.Module):
            """Dynamo compiles no forward of torch's own, such as that of Sequential, inside DDP."""

            def __init__(self) -> None:
                super().__init__()
                self.parts = torch.nn.Sequential(*parts, torch.nn.Linear(width, 8))

            def forward(self, x: Any) -> Any:
                return self.parts(x)

        return Parts(
            Net(),
            lambda rows: (
                torch.randn(rows, width, generator=generator),
                torch.randn(rows, 8, generator=generator),
            ),
            lambda call, batch: functional.mse_loss(call(batch[0]), batch[1]),
            8 if small else 64,
            width * width * 4 * 1.5 / (1 << 20),
        )
    import transformers

    length, words = (8, 100) if small else (128, 8000)
    if name == "bert":
        size = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
        config: Any = transformers.BertConfig(
            vocab_size=words, num_hidden_layers=2 if small else 4, **(size if small else {})
        )
        model: Any = transformers.BertForMaskedLM(config)
    else:
        sizes = {"n_embd": 32, "n_head": 2} if small else {}
        config = transformers.GPT2Config(vocab_size=words, n_layer=2 if small else 4, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    return Parts(
        model,
        lambda rows: (torch.randint(0, words, (rows, length), generator=generator),),
        lambda call, batch: call(input_ids=batch[0], labels=batch[0]).loss,
        4 if small else 8,
        0.02 if small else 20,
    )


def watch_captures(spoil: str) -> dict[str, int]:
    """How many collectives run while graphs are captured, as they come."""
    import torch
    import torch.distributed as distributed

    from rocm_autopatch.graphs import capture

    found = {"captures": 0, "collectives": 0}
    pool: Any = capture.CapturePool
    original = pool.capture

    def watched(self: Any, *args: Any) -> Any:
        before = collectives()
        if spoil == "collective":
            distributed.all_reduce(torch.zeros(1, device=self.device))
        try:
            return original(self, *args)
        finally:
            found["captures"] += 1
            found["collectives"] += collectives() - before

    pool.capture = watched
    return found


def collectives() -> int:
    """How many collectives this rank has begun."""
    from torch.distributed import distributed_c10d

    count: int = distributed_c10d._get_default_group()._get_sequence_number_for_group()
    return count


def rank(asked: argparse.Namespace, directory: Path) -> None:
    """Be one rank of a job."""
    # If it hangs, it tells where, and ends: nobody else ends it if torchrun is killed.
    faulthandler.dump_traceback_later(asked.limit, exit=True)
    import datetime

    import torch
    import torch.distributed as distributed

    number, small = int(os.environ["RANK"]), asked.backend == "gloo"
    case: Case = CASES[asked.only[0]]
    ours = asked.side == "ours"
    # It is imported in a job of ours only.
    stand_in: Any = None
    if ours:
        from rocm_autopatch.patches import compile_modes

        if small:
            sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "graphs"))
            import stand_in

            stand_in.install()
        row = (MODE, compile_modes.TRAINING_GRAPHS, "data_parallel", "")
        compile_modes.apply(torch, [row], (), False)
    device = torch.device("cpu")
    if small:
        torch.set_num_threads(1)
    else:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=asked.limit)
    distributed.init_process_group(asked.backend, timeout=patience)
    captures = watch_captures(asked.spoil) if ours else {}
    if small:
        # The first bucket has a megabyte, in which all of a small model would lie.
        distributed._DEFAULT_FIRST_BUCKET_BYTES = 1024

    # The weights are the same on each rank, and the data are not.
    torch.manual_seed(0)
    parts = made(case.model, small, torch.Generator().manual_seed(number))
    model = parts.model.to(device).train()
    torch.manual_seed(number)
    mode = {"mode": MODE} if ours else {}
    parallel = torch.nn.parallel.DistributedDataParallel(
        torch.compile(model, **mode) if case.inside else model,
        device_ids=None if small else [device.index],
        bucket_cap_mb=parts.bucket,
        static_graph=case.static,
        gradient_as_bucket_view=case.views,
    )
    call = parallel if case.inside else torch.compile(parallel, **mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps = [
        [
            [
                one.to(device)
                for one in parts.batch(
                    parts.rows // 2 if case.uneven and at % 4 == 3 else parts.rows
                )
            ]
            for _ in range(case.batches)
        ]
        for at in range(COMPARED)
    ]
    began_with = [one.detach().clone() for one in model.parameters()]
    losses: list[Any] = []

    def step(at: int) -> None:
        batches = steps[at % COMPARED]
        for batch in batches:
            with contextlib.nullcontext() if batch is batches[-1] else parallel.no_sync():
                loss = parts.loss(call, batch) / case.batches
                loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=not case.views)
        if case.evaluates and at % 2:
            model.eval()
            with torch.no_grad():
                losses.append(parts.loss(call, batches[0]))
            model.train()

    for at in range(COMPARED):
        if ours and number and at == COMPARED - 4:
            spoil(asked.spoil, model, stand_in)
        step(at)
    weights = [one.detach().cpu() for one in model.parameters()]
    said: dict[str, Any] = {
        "losses": torch.stack(losses).cpu(),
        "digest": hashlib.sha256(b"".join(one.numpy().tobytes() for one in weights)).hexdigest(),
        "buffers": {name: one.detach().cpu().clone() for name, one in model.named_buffers()},
    }
    if not number:
        said["weights"] = [one.clone() for one in weights]
        moved = zip(model.parameters(), began_with)
        said["moved"] = [(one.detach() - was).abs().max().item() for one, was in moved]

    def block(count: int) -> float:
        distributed.barrier()
        began = time.perf_counter()
        for at in range(count):
            step(at)
        torch.cuda.synchronize() if not small else None
        return 1000 * (time.perf_counter() - began) / count

    # A whole turn of the uneven batches.
    count = 4 if small else STEPS
    said["ms"] = median(block(count) for _ in range(2 if small else BLOCKS))
    if ours:
        from rocm_autopatch.graphs import record

        said |= {"graphs": record.render_rows(), **captures, "all_collectives": collectives()}
    torch.save(said, directory / f"{asked.side}-{number}.pt")
    distributed.barrier()
    if small:
        # The end of a process with gloo aborts now and then, also without us.
        os._exit(0)
    distributed.destroy_process_group()


def spoil(how: str, model: Any, stand_in: Any) -> None:
    """Have this rank do something wrong, as it is asked for."""
    import torch

    if how == "value":
        stand_in.StandIn.wrong = True
    elif how == "rank":
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)
    elif how == "hang":
        time.sleep(1e6)


def job(
    name: str, side: str, asked: argparse.Namespace, directory: Path
) -> tuple[str, list[dict[str, Any]]]:
    """Why a job has failed, if it has; what its ranks said."""
    import torch

    # Nothing of ours but what the job itself turns on.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ROCM_AUTOPATCH": "off"}
    place = [f"--master-port={jobs.free_ports(1)[0]}", "--master-addr=127.0.0.1"]
    own = ["--rank", str(directory), "--side", side, "--only", name]
    own += ["--backend", asked.backend, "--limit", str(asked.limit)]
    own += ["--spoil", asked.spoil] if asked.spoil else []
    # The ranks end themselves at the limit. Then torchrun has some time to tell it.
    status, stderr = jobs.run(
        [f"--nproc-per-node={asked.ranks}", *place, __file__, *own],
        directory,
        env,
        asked.limit + 30,
    )
    with asked.log.open("a") as stream:
        stream.write(f"--- {name} {side}: status {status}\n{stderr}\n")
    if status is None or "Timeout (" in stderr:
        return f"not over after {asked.limit:.0f} s", []
    if status:
        # That of a rank comes first, and then that of torchrun.
        errors = re.findall(r"^(?:\[rank\d+\]: )?((?:\w+\.)*\w*Error: .*)", stderr, re.MULTILINE)
        return f"status {status}: {(errors or [stderr[-200:]])[0][:300]}", []
    paths = [directory / f"{side}-{number}.pt" for number in range(asked.ranks)]
    return "", [torch.load(path) for path in paths]


def share(one: Any, other: Any, allowed: Any) -> float:
    """The largest difference, as a share of what is allowed. What is not a number is infinite."""
    found = float(((one - other).abs() / allowed).max()) if one.numel() else 0.0
    return found if found == found else float("inf")


def compared(plain: list[dict[str, Any]], ours: list[dict[str, Any]]) -> tuple[list[str], float]:
    """What is wrong with ours, and the largest difference."""
    wrong = [
        f"the ranks' weights differ ({side})"
        for side, ranks in zip(SIDES, (plain, ours))
        if len({one["digest"] for one in ranks}) > 1
    ]
    shares = {"losses": 0.0, "buffers": 0.0, "weights": 0.0}
    for one, other in zip(plain, ours):
        allowed = LOSS * one["losses"].abs() + LEAST
        shares["losses"] = max(shares["losses"], share(one["losses"], other["losses"], allowed))
        for name, value in one["buffers"].items():
            allowed = WEIGHT * value.abs() + LEAST
            differs = share(value.double(), other["buffers"][name].double(), allowed.double())
            shares["buffers"] = max(shares["buffers"], differs)
    shares["weights"] = max(
        share(one, other, WEIGHT * moved + LEAST)
        for one, other, moved in zip(plain[0]["weights"], ours[0]["weights"], plain[0]["moved"])
    )
    wrong += [
        f"{name} differ: {much:.3g} of what is allowed" for name, much in shares.items() if much > 1
    ]
    if max(plain[0]["moved"]) < 1000 * LEAST:
        wrong.append("training has moved nothing, so this shows nothing")
    return wrong, max(shares.values())


def replayed(ranks: list[dict[str, Any]], evaluates: bool) -> tuple[list[str], str]:
    """What is wrong with the graphs of all ranks, and how many calls were replays."""
    wrong, words = [], []
    for direction in ("forward", "backward"):
        counts = [
            [
                sum(
                    row[key]
                    for row in one["graphs"]
                    if row["name"].startswith("backward of ") == (direction == "backward")
                )
                for one in ranks
            ]
            for key in ("replays", "calls")
        ]
        if not all(counts[0]):
            wrong.append(f"no {direction} was a replay on some rank")
        words.append(f"{direction} {sum(counts[0])} of {sum(counts[1])}")
    for number, one in enumerate(ranks):
        reasons = {refused["reason"] for row in one["graphs"] for refused in row["refused"]}
        # A bucket's part of a model may return its argument, which no graph of an evaluation can
        # have (docs/graphs.md).
        reasons = {one for one in reasons if not (evaluates and SHARED in one)}
        wrong += [f"refused on rank {number}: {reason}" for reason in sorted(reasons)]
        if one["collectives"]:
            wrong.append(f"{one['collectives']} collectives in captures of rank {number}")
        if one["all_collectives"] < COMPARED:
            wrong.append(f"rank {number} counts only {one['all_collectives']} collectives in all")
    graphs = sum(one["captures"] for one in ranks)
    return wrong, f"replays {', '.join(words)}, {graphs} captures"


def run(name: str, asked: argparse.Namespace, directory: Path) -> tuple[bool, str]:
    """Whether a case is right, and what to print of it."""
    began = time.monotonic()
    failed, plain = job(name, "compiled", asked, directory)
    if failed:
        said = f"torch alone fails: {failed}"
        return CASES[name].static, f"{'not run' if CASES[name].static else 'WRONG'}; {said}"
    failed, ours = job(name, "ours", asked, directory)
    if failed:
        return False, f"WRONG; {failed}"
    wrong, largest = compared(plain, ours)
    lacking, said = replayed(ours, CASES[name].evaluates)
    wrong += lacking
    times = [max(one["ms"] for one in ranks) for ranks in (plain, ours)]
    words = [
        "WRONG" if wrong else "ok",
        said,
        f"compiled {times[0]:.2f} ms a step, ours {times[1]:.2f} ({times[1] / times[0]:.3f})",
        f"differs by {largest:.2g} of what is allowed",
        f"{time.monotonic() - began:.0f} s",
    ]
    return not wrong, "\n    ".join(["; ".join(words), *wrong])


def main() -> int:
    parser = argparse.ArgumentParser(description="DistributedDataParallel under training graphs.")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240, help="seconds for a job (240)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--spoil", choices=SPOILS, default="", help="make something wrong")
    parser.add_argument("--log", type=Path, default=os.devnull, help="for all that jobs say")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank(asked, asked.rank)
        return 0
    if asked.backend == "nccl":
        import torch

        if torch.cuda.device_count() < asked.ranks:
            print(f"not run: {torch.cuda.device_count()} GPUs for {asked.ranks} ranks")
            return 1
    # The jobs end then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    for name in asked.only:
        with tempfile.TemporaryDirectory() as directory:
            right, said = run(name, asked, Path(directory))
        failed += not right
        print(f"{name}: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
