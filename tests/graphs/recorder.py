"""A stand-in whose captures are lists of operations, and whose replays execute these again.

The other one calls the function again, so that a replay sees what the function sees. With this one,
a replay that should not have been one gives what was right at its capture, as on a GPU. It keeps
alive what it has recorded, and shows nothing of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import stand_in
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.buffers import dense_part
from rocm_autopatch.graphs.captured_ops import CapturedOps
from rocm_autopatch.graphs.layout import storage_key
from rocm_autopatch.graphs.memory import GraphMemory


def _tensors(value: Any) -> list[Any]:
    return [one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


class _Operation:
    """One operation with its operands, and the results that it has made."""

    def __init__(self, func: Any, args: Any, kwargs: Any, results: list[Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        given = {storage_key(one) for one in _tensors((args, kwargs))}
        # What lies in an operand is written there by the operation itself.
        self._made = [one if storage_key(one) not in given else None for one in results]
        self.is_view = not (any(one is not None for one in self._made) or _writes(func))

    def execute(self) -> None:
        again = _tensors(self._func(*self._args, **self._kwargs))
        for there, value in zip(self._made, again):
            if there is not None:
                dense_part(there).copy_(dense_part(value))


def _writes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is None or schema.is_mutable


class _Recording(TorchDispatchMode):
    """Lists what runs. The modes that are in force write to *current*."""

    current: ClassVar[list[_Recording]] = []

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []

    def __enter__(self) -> _Recording:
        self.current.append(self)
        entered: _Recording = super().__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.current.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(func, args, kwargs or {}, result)
        return result

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.current[-1:] == [self]:
            operation = _Operation(func, args, kwargs, _tensors(result))
            if not operation.is_view:
                self.operations.append(operation)


def _execute_whole(self: CapturedOps, func: Any, tensors: list[Any], args: Any, kwargs: Any) -> Any:
    """Record an operation, and not those inside: a kernel may call none for what it writes."""
    if not _Recording.current or _Recording.current[-1] is _PAUSED:
        return _execute(self, func, tensors, args, kwargs)
    recording = _Recording.current[-1]
    _Recording.current.append(_PAUSED)
    try:
        result = _execute(self, func, tensors, args, kwargs)
    finally:
        _Recording.current.pop()
    recording.note(func, args, kwargs, result)
    return result


_PAUSED = _Recording()
_execute = CapturedOps._execute


class Recorder(stand_in.StandIn):
    """The device, with captures that are lists of operations."""

    def capture(
        self,
        function: Callable[[list[Any]], Any],
        enter: Callable[[], list[Any]],
        memory: GraphMemory,
        size: int = 0,
    ) -> tuple[Callable[[], None], Any]:
        leaves, recording = enter(), _Recording()
        with stand_in.undone(), recording:
            result = function(leaves)
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def replay() -> None:
            with torch.inference_mode(modes[1]), torch.set_grad_enabled(modes[0]):
                for operation in recording.operations:
                    operation.execute()

        return replay, result


def install() -> None:
    """Replace the GPU by this stand-in, in this process."""
    stand_in.install()
    capture.CapturePool = Recorder  # type: ignore[misc]
    CapturedOps._execute = _execute_whole  # type: ignore[method-assign]
