"""A stand-in for the graphs of the self-test, so that it can be tried on a CPU.

A "capture" on it notes the operations of torch, and executes none. A "replay" executes them, in
order and with the same tensors. It shows nothing about CUDA or HIP: no streams, no memory of the
runtime's own, no errors of its own. Faults are planted by name: ``PLANTED``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    import pytest

    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")
    from torch.utils._python_dispatch import TorchDispatchMode

# What graphs on ROCm are known to do wrong, by the name of the fault.
PLANTED = {
    "stale memset": "a memset inside does nothing, pytorch#197017",
    "stale host copy": "a replay reads what was there before the last copy, ROCm/hip#3902",
    "truncated": "the second half of a graph is not there, ROCm/rocm-systems#6888",
    "stale pointers": "from node 200 on, a kernel writes nothing, ROCm/hip#3887",
    "second replay": "an operation is wrong from its second replay on, pytorch#184265",
    "poisoned": "most of what a replay writes is garbage, ROCm/clr#279",
}
_FIRST_STALE_NODE = 200


class Node:
    """An operation, with the tensors that it reads and writes."""

    def __init__(self, function: Any, arguments: Any, options: Any) -> None:
        self.function, self.arguments, self.options = function, arguments, options

    @property
    def is_memset(self) -> bool:
        return "zero_" in self.function.name()

    def written(self) -> list[Any]:
        """The tensors that it writes."""
        to = self.options.get("out", self.arguments[0])
        return list(to) if isinstance(to, (list, tuple)) else [to]

    def execute(self) -> None:
        self.function(*self.arguments, **self.options)


class _Recording(TorchDispatchMode):
    """Notes operations that write into a tensor that is there, and executes views only."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if not function._schema.is_mutable:
            return function(*args, **options)
        node = Node(function, args, options)
        self.nodes.append(node)
        return node.written()[0] if function._schema.returns else None


class _Copies(TorchDispatchMode):
    """Notes what a tensor had before the last copy into it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.copy_.default:
            self.before[id(args[0])] = args[0], args[0].clone()
        return function(*args, **(kwargs or {}))


class NodeList:
    """In the place of GraphRecorder. *planted* is the name of a fault, "" for none."""

    planted = ""
    #: What a capture raises.
    raised: BaseException | None = None
    #: Graphs that were recorded, and how often one was replayed.
    recorded: list[list[Node]]
    replays: int

    def __init__(self, device: Any) -> None:
        type(self).recorded, type(self).replays = [], 0
        self._copies = _Copies()

    def record_graph(self, function: Callable[[], object]) -> Callable[[], None]:
        function()
        if self.raised is not None:
            raise self.raised
        with _Recording() as recording:
            function()
        nodes = recording.nodes
        self.recorded.append(nodes)
        if self.planted == "truncated":
            nodes = nodes[: len(nodes) // 2]
        elif self.planted == "stale pointers":
            nodes = nodes[:_FIRST_STALE_NODE]
        elif self.planted == "stale memset":
            nodes = [node for node in nodes if not node.is_memset]
        own = 0

        def replay() -> None:
            nonlocal own
            own += 1
            type(self).replays += 1
            self._replay(nodes, own)

        return replay

    def _replay(self, nodes: list[Node], number: int) -> None:
        new = []
        if self.planted == "stale host copy":
            new = [(to, to.clone()) for to, _ in self._copies.before.values()]
            for to, old in self._copies.before.values():
                to.copy_(old)
        for node in nodes:
            node.execute()
        for to, values in new:
            to.copy_(values)
        if self.planted == "poisoned" or (self.planted == "second replay" and number == 2):
            for to in nodes[-1].written():
                to.bitwise_not_()

    def use_side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def pin_memory(self, tensor: Any) -> Any:
        return tensor.clone()

    def use_device(self) -> AbstractContextManager[object]:
        return self._copies if self.planted == "stale host copy" else nullcontext()

    def wait_for_work(self) -> None:
        pass
