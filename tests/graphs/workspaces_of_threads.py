"""Two threads capture on one stream of a GPU: the bytes for workspaces after each of four captures.

A program of tests/graphs/test_graphs.py: its process must have no graphs of others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from rocm_autopatch.graphs import capture


def main() -> None:
    pools = capture.CapturePools()
    pool, x = pools.of(torch.device("cuda", 0)), torch.ones(64, 64, device="cuda")
    kept: list[tuple[Callable[[], None], torch.Tensor]] = []

    def work() -> None:
        kept.append(pool.capture(lambda _: x @ x, list, pools.memory))
        own = capture._workspaces[x.device].id
        print(
            sum(one["total_size"] for one in capture._segments() if one["segment_pool_id"] == own)
        )

    for _ in range(2):
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    for replay, result in kept:
        replay()
        assert bool((result == 64).all())
    assert not capture._may_have_graphs_of_others(x.device.index)
    graph = torch.cuda.CUDAGraph()
    assert capture._may_have_graphs_of_others(x.device.index)
    del graph


if __name__ == "__main__":
    main()
