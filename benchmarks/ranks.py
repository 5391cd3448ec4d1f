"""What comparing costs ranks and their store: virtual ranks against one real TCPStore.

    python benchmarks/ranks.py [--ranks 10000] [--processes 2] [--rounds 5]

It needs torch (a ROCm build, or the label) and rocm_autopatch. A process of its own has the store.
The other processes share the ranks among them; each has one connection, and its ranks come one
after the other. Nobody waits for anybody but for the answers of the store.

It prints Markdown: for each job the messages, bytes and CPU time of a rank, of the last rank and of
the store, the seconds that all ranks took, and what was said. A last line has what making the
digest costs a process, which the other figures leave out.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import rocm_autopatch
from rocm_autopatch.patches.ranks import content, meeting

# By name: the ranks that have another content, and those that do not come.
JOBS: dict[str, tuple[int, int]] = {
    "all equal": (0, 0),
    "2 differ": (2, 0),
    "half of them differ": (-1, 0),
    "3 do not come": (0, 3),
}


class Counting:
    """A store that counts what is asked of it, and the bytes of keys and values."""

    def __init__(self, store: Any) -> None:
        self.store, self.messages, self.size = store, 0, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.store, name)

        def call(*arguments: Any) -> Any:
            answer = method(*arguments)
            self.messages += 1
            self.size += _size(arguments) + _size(answer)
            return answer

        return call


def _size(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (str, bytes)) else 8


class Share(NamedTuple):
    """What the ranks of one process came to: of all, and of the last rank of the job."""

    messages: list[int]
    size: int
    cpu: float
    last: tuple[int, int, float] | None
    said: list[str]


def serve(pipe: Connection) -> None:
    """Have the store, and tell its CPU time whenever it is asked."""
    distributed: Any = importlib.import_module("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while pipe.recv():
        pipe.send(time.process_time())


def attend(pipe: Connection, port: int, kinds: list[dict[str, str]]) -> None:
    """Be some of the ranks of a job, for each job that the pipe names."""
    distributed: Any = importlib.import_module("torch.distributed")
    patience = timedelta(seconds=60)
    store = Counting(distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=patience))
    pipe.send("ready")
    while asked := pipe.recv():
        job, ranks, size, odd = asked
        messages, said, cpu, last = [], [], 0.0, None
        store.size = 0
        for rank in ranks:
            mine = kinds[rank in odd]
            # Made once a process: a real rank makes its own, which is measured by itself.
            content.digest_content = lambda mine=mine: mine  # type: ignore[misc]
            store.messages, before = 0, store.size
            began = time.process_time()
            here = meeting.RankMeeting(store, job, rank, size)
            text = here.attend()
            took = time.process_time() - began
            if here.over:
                last = (store.messages, store.size - before, took)
                store.size = before
            else:
                messages.append(store.messages)
                cpu += took
            said += [text] if text else []
        pipe.send(Share(messages, store.size, cpu, last, said))


def ask(port: int, job: int, size: int) -> tuple[int, int, float, str]:
    """The first compile of one rank asks who has not come."""
    distributed: Any = importlib.import_module("torch.distributed")
    store = Counting(distributed.TCPStore("127.0.0.1", port, is_master=False))
    began = time.process_time()
    text = meeting.RankMeeting(store, job, 0, size).missing()
    return store.messages, store.size, time.process_time() - began, text or ""


def rows(options: argparse.Namespace) -> Iterator[str]:
    """A row for each kind of job: the median of its rounds."""
    mine = content.digest_content()
    kinds = [mine, {**mine, "TORCHINDUCTOR_FREEZING": "1"}]
    context = multiprocessing.get_context("spawn")
    server, its = context.Pipe()
    processes = [context.Process(target=serve, args=(its,), daemon=True)]
    processes[0].start()
    port = server.recv()
    workers = []
    for _ in range(options.processes):
        pipe, its = context.Pipe()
        processes.append(context.Process(target=attend, args=(its, port, kinds), daemon=True))
        processes[-1].start()
        workers.append(pipe)
    for pipe in workers:
        pipe.recv()
    # How long the first compile waits for ranks that may be on their way is no cost of the store.
    meeting.ON_THEIR_WAY = 1
    size, job = options.ranks, 0
    for name, (odd, absent) in JOBS.items():
        found = []
        for _ in range(options.rounds):
            job += 1
            server.send("cpu")
            cpu_before, began = server.recv(), time.monotonic()
            others = range(size // 2) if odd < 0 else range(5, 5 + odd)
            for number, pipe in enumerate(workers):
                ranks = range(size - absent)[number :: options.processes]
                pipe.send((job, ranks, size, others))
            shares: list[Share] = [pipe.recv() for pipe in workers]
            seconds = time.monotonic() - began
            server.send("cpu")
            store_cpu = server.recv() - cpu_before
            last = [share.last for share in shares if share.last]
            said = [text for share in shares for text in share.said]
            if absent:
                *asked, text = ask(port, job, size)
                last, said = [tuple(asked)], [text]  # type: ignore[list-item]
            count = sum(len(share.messages) for share in shares)
            found.append(
                (
                    max(max(share.messages) for share in shares),
                    sum(share.size for share in shares) / count,
                    sum(share.cpu for share in shares) / count * 1e6,
                    *(last[0][0], last[0][1] / 1024, last[0][2] * 1e3),
                    store_cpu / count * 1e6,
                    seconds,
                    said,
                )
            )
        *numbers, texts = zip(*found)
        most, size_of, cpu, *its_last, store_us, seconds = map(statistics.median, numbers)
        yield (
            f"| {name} | {most:.0f} | {size_of:.0f} | {cpu:.0f} | {its_last[0]:.0f}, "
            f"{its_last[1]:.0f} KiB, {its_last[2]:.0f} ms | {store_us:.0f} | {seconds:.1f} | "
            f"{texts[0][0][:150] + '...' if texts[0] else 'nothing'} |"
        )
    for pipe in (server, *workers):
        pipe.send(None)
    for process in processes:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="What comparing costs ranks and their store.")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    importlib.import_module("torch")
    if not rocm_autopatch.status()["active"]:
        parser.error("no policy applies to this Python, so its digest would be that of nothing")
    head = "job|messages of a rank, at most|bytes|CPU, us|of the last one or the one that asks"
    print("|".join(["", *head.split("|"), "CPU of the store a rank, us", "seconds", "said", ""]))
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for row in rows(options):
        print(row, flush=True)
    times = []
    for _ in range(200):
        began = time.process_time()
        content.digest(content.digest_content())
        times.append((time.process_time() - began) * 1e6)
    print(f"\nThe digest: {statistics.median(times):.0f} us of CPU time, once a process.")
    print(f"{options.processes} processes, {options.rounds} rounds, {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
