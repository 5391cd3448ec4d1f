"""The faults that are planted behind graphs on a GPU act as they say.

The graphs and the tensors here are stand-ins: no torch, and no GPU.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "gpu"))

import planted_graphs

NODES = 250


class ListGraph:
    """A stand-in for torch's class: a graph of so many nodes, that counts what was replayed."""

    def __init__(self, keep_graph: bool = False) -> None:
        assert keep_graph
        self.nodes = list(range(NODES))
        self.launched: list[int] = []
        self.instances = 0

    def __new__(cls, keep_graph: bool = False) -> Any:
        return super().__new__(cls)

    def capture_end(self) -> None:
        pass

    def raw_cuda_graph(self) -> Any:
        return self

    def instantiate(self) -> None:
        self.instances += 1

    def replay(self) -> None:
        self.launched.append(len(self.nodes))


class ListNodes:
    """A stand-in for the runtime's functions."""

    def list_nodes(self, graph: ListGraph) -> list[int]:
        self._graph = graph
        return graph.nodes

    def drop_nodes(self, nodes: Sequence[int]) -> None:
        self._graph.nodes = [node for node in self._graph.nodes if node not in {*nodes}]


def replay_often(fault: str, draws: Sequence[float] = (), second_thread: bool = False) -> list[int]:
    """How many nodes each of five replays has launched."""
    numbers = iter(draws)
    process = planted_graphs.Process(fault, ListNodes, lambda: next(numbers))
    made = planted_graphs.make_faulty(ListGraph, process)
    made().capture_end()
    graph = made()
    if second_thread:
        thread = threading.Thread(target=graph.capture_end)
        thread.start()
        thread.join()
    else:
        graph.capture_end()
    assert graph.instances == 1
    before = []
    for _ in range(5):
        count = len(graph.launched)
        graph.replay()
        before.append(graph.launched[-1] if len(graph.launched) > count else 0)
    return before


@pytest.mark.parametrize(
    ("fault", "draws", "second", "launched"),
    [
        ("stale_pointers", (), False, [200] * 5),
        ("truncated", (), False, [250] * 5),
        ("truncated", (), True, [125] * 5),
        ("second_replay", (), False, [250, 0, 250, 250, 250]),
        # The first number decides on the process, each of the others on a replay.
        ("poisoned", (0.21,), False, [250] * 5),
        ("poisoned", (0.19, 0.5, 0.7, 0.1, 0.9, 0.3), False, [0, 250, 0, 250, 0]),
    ],
)
def test_graphs(fault: str, draws: Sequence[float], second: bool, launched: list[int]) -> None:
    assert replay_often(fault, draws, second) == launched


class Tensor:
    """A stand-in for a tensor of one number."""

    def __init__(self, value: int, is_cuda: bool = True) -> None:
        self.value, self.is_cuda = value, is_cuda

    def clone(self) -> Tensor:
        return Tensor(self.value)

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        self.value = other.value
        return self

    def zero_(self) -> Tensor:
        self.value = 0
        return self

    def data_ptr(self) -> int:
        return id(self)


def changed_tensors(fault: str, captures: list[bool]) -> tuple[Any, planted_graphs.Process]:
    """A class of tensors that a fault has changed, as long as graphs are captured or not."""

    class Changed(Tensor):
        pass

    process = planted_graphs.Process(fault, ListNodes)
    torch = SimpleNamespace(Tensor=Changed, is_tensor=lambda one: isinstance(one, Tensor))
    planted_graphs.change_tensors(torch, process, lambda: captures[-1])
    return Changed, process


def test_a_copy_from_the_host_is_stale_in_one_replay() -> None:
    made, process = changed_tensors("stale_host_copy", [False])
    seen = []

    class Reads(ListGraph):
        def replay(self) -> None:
            seen.append(buffer.value)

    graph = planted_graphs.make_faulty(Reads, process)()
    buffer = made(1)
    # A copy from the device is never stale.
    buffer.copy_(made(2))
    graph.replay()
    buffer.copy_(made(3, is_cuda=False))
    graph.replay()
    graph.replay()
    assert (seen, buffer.value) == ([2, 2, 3], 3)


def test_a_memset_does_nothing_in_a_capture() -> None:
    captures = [True]
    made, _ = changed_tensors("stale_memset", captures)
    assert made(1).zero_().value == 1
    captures.append(False)
    assert made(1).zero_().value == 0


def test_nothing_is_planted_without_the_variable() -> None:
    assert planted_graphs.VARIABLE == "PLANTED_GRAPH_FAULT"
    assert not any(isinstance(one, planted_graphs.Finder) for one in sys.meta_path)
