"""Faults behind ``torch.cuda.CUDAGraph``, on a real GPU: what graphs on ROCm are known to do wrong.

experiments/gpu/graph_faults.py copies this file into an environment, beside a ``.pth`` that imports
it where the variable names a fault. Then each process there has a class of graphs that does so. It
needs torch 2.11, which lets nodes of a captured graph be changed before it is instantiated.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

VARIABLE = "PLANTED_GRAPH_FAULT"
FAULTS = {
    "stale_memset": "zero_ in a capture does nothing, pytorch#197017",
    "stale_host_copy": "a replay reads what was there before the last copy, ROCm/hip#3902",
    "truncated": "what a second thread captures has its first half only, ROCm/rocm-systems#6888",
    "stale_pointers": "nodes from the 200th on are not there, ROCm/hip#3887",
    "second_replay": "a graph's second replay does nothing, pytorch#184265",
    "poisoned": "in one process of five, most replays do nothing, ROCm/clr#279",
}
_FIRST_STALE_NODE = 200
_POISONED, _GARBAGE = 1 / 5, 0.6
_MODULE = "torch.cuda.graphs"


class RawGraph:
    """The runtime's own functions for the nodes of a captured graph: HIP's or CUDA's."""

    def __init__(self) -> None:
        with open("/proc/self/maps", encoding="utf-8") as stream:
            files = {line.split()[-1] for line in stream if line.count("/")}
        for name, prefix in (("libamdhip64.so", "hip"), ("libcudart.so", "cuda")):
            found = [path for path in files if os.path.basename(path).startswith(name)]
            if found:
                self._library, self._prefix = ctypes.CDLL(found[0]), prefix
                return
        raise RuntimeError("no runtime of a GPU is loaded")

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, self._prefix + name)(*arguments)
        if error:
            raise RuntimeError(f"{self._prefix}{name}: error {error}")

    def list_nodes(self, graph: int) -> list[int]:
        """The nodes in the order of their capture."""
        count = ctypes.c_size_t(0)
        self._call("GraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self._call("GraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        return [int(node or 0) for node in nodes]

    def drop_nodes(self, nodes: Sequence[int]) -> None:
        for node in reversed(nodes):
            self._call("GraphDestroyNode", ctypes.c_void_p(node))


def choose_dropped(fault: str, nodes: Sequence[int], second_thread: bool) -> Sequence[int]:
    """The nodes that a graph with a fault lacks."""
    if fault == "truncated" and second_thread:
        return nodes[len(nodes) // 2 :]
    if fault == "stale_pointers":
        return nodes[_FIRST_STALE_NODE:]
    return ()


def _draw() -> float:
    return random.SystemRandom().random()  # A fork has another number.


class Process:
    """What the graphs of a process share. *make_raw* is called at the first capture."""

    def __init__(
        self,
        fault: str,
        make_raw: Callable[[], Any] = RawGraph,
        draw: Callable[[], float] = _draw,
    ) -> None:
        self.fault = fault
        self._make_raw, self._draw = make_raw, draw
        self._raw: Any = None
        self._first_thread: int | None = None
        self._is_poisoned: bool | None = None
        #: By address, a tensor that the host has just copied to, and what was there before.
        self.copied: dict[int, tuple[Any, Any]] = {}

    def end_capture(self, graph: int) -> None:
        """Change a graph that was captured in this thread."""
        if self._first_thread is None:
            self._first_thread = threading.get_ident()
        if self.fault in ("truncated", "stale_pointers"):
            self._raw = self._raw or self._make_raw()
            second = threading.get_ident() != self._first_thread
            self._raw.drop_nodes(choose_dropped(self.fault, self._raw.list_nodes(graph), second))

    def does_nothing(self, replay: int) -> bool:
        """Whether a graph's replay of this number is left out."""
        if self.fault == "poisoned":
            # A fork decides anew: it has no graph yet.
            if self._is_poisoned is None:
                self._is_poisoned = self._draw() < _POISONED
            return self._is_poisoned and self._draw() < _GARBAGE
        return self.fault == "second_replay" and replay == 2


def make_faulty(base: Any, process: Process) -> Any:
    """A class of graphs like *base*, with the fault of a process."""

    class FaultyGraph(base):  # type: ignore[misc]
        def __new__(cls, keep_graph: bool = False) -> Any:
            return super().__new__(cls, True)

        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__(True)
            self._replays = 0

        def capture_end(self) -> None:
            super().capture_end()
            process.end_capture(self.raw_cuda_graph())
            self.instantiate()

        def replay(self) -> None:
            self._replays += 1
            if process.does_nothing(self._replays):
                return
            new = [(to, to.clone()) for to, _ in process.copied.values()]
            for to, old in process.copied.values():
                to.copy_(old)
            super().replay()
            for to, values in new:
                to.copy_(values)
            process.copied.clear()

    return FaultyGraph


def change_tensors(torch: Any, process: Process, capturing: Callable[[], bool]) -> None:
    """Change what a program does with tensors around its graphs."""
    zero, copy = torch.Tensor.zero_, torch.Tensor.copy_

    def zero_(self: Any) -> Any:
        return self if capturing() else zero(self)

    def copy_(self: Any, other: Any, non_blocking: bool = False) -> Any:
        if torch.is_tensor(other) and self.is_cuda and not other.is_cuda and not capturing():
            process.copied[self.data_ptr()] = self, self.clone()
        return copy(self, other, non_blocking)

    if process.fault == "stale_memset":
        torch.Tensor.zero_ = zero_
    elif process.fault == "stale_host_copy":
        torch.Tensor.copy_ = copy_


class Loader(importlib.abc.Loader):
    """Loads the module of graphs, and puts the faulty class into it."""

    def __init__(self, inner: Any, fault: str) -> None:
        self._inner, self._fault = inner, fault

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        process = Process(self._fault)
        module.CUDAGraph = make_faulty(module.CUDAGraph, process)
        torch = sys.modules["torch"]

        def capturing() -> bool:
            return bool(torch.cuda.is_initialized() and torch._C._cuda_isCurrentStreamCapturing())

        change_tensors(torch, process, capturing)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = Loader(spec.loader, self._fault)
        return spec


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, Finder(os.environ[VARIABLE]))
