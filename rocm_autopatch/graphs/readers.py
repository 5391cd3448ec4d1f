"""Who reads results that are handed out without a copy, and does not count as their user.

A replay overwrites such a result once nothing refers to its memory. That is too early for what
reads it without a reference: collectives on streams of their own, a stream that a program names
with ``Tensor.record_stream``, and another process that has got the memory.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

from rocm_autopatch.graphs.layout import storage_key

_OURS = "_rocm_autopatch"
# By memory: what was handed out there, whoever has done that.
_lenders: weakref.WeakValueDictionary[int, ResultLender] = weakref.WeakValueDictionary()
# The pools whose replays wait for the streams that read results.
_pools: weakref.WeakSet[ReplayOrder] = weakref.WeakSet()
# Memory that another process has got: it is never let go.
_given_away: list[torch.Tensor] = []
# Some builds of torch have no such groups.
_has_process_group: Callable[[], bool] = getattr(torch.distributed, "is_initialized", bool)


class ResultLender(Protocol):
    """What hands results out: ``states.ReplayResults`` or ``buffers.AbandonedOutputs``."""

    def result_memories(self) -> list[int]:
        """What the results lie in."""


class ReplayOrder(Protocol):
    """A pool of graphs: ``capture.CapturePool``."""

    device: torch.device

    def add_reader(self, stream: torch.Stream) -> None:
        """Have each replay wait for what the stream does at that time."""


def are_counted() -> bool:
    """Whether who reads a result has a reference to it. Collectives of other ranks have none."""
    return not _has_process_group()


def watch_readers(lender: ResultLender, pool: ReplayOrder) -> None:
    """Look after readers of what *lender* hands out."""
    _install()
    _pools.add(pool)
    _lenders.update(dict.fromkeys(lender.result_memories(), lender))


def _install() -> None:
    # Two threads may do it at once: then a reader is noted twice.
    _wrap(torch.Tensor, "record_stream", _note_stream)
    _wrap(torch.UntypedStorage, "_share_cuda_", _note_process)


def _wrap(owner: Any, name: str, note: Any) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, _OURS):
        return

    @functools.wraps(original)
    def call_and_note(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        # Dynamo would trace what follows. What it compiles calls the op, and does not come here.
        if not torch.compiler.is_compiling():
            # Tensors of other kinds have no memory, and need not be shown what is called here.
            with torch._C.DisableTorchFunction(), suppress(Exception):
                note(*args, *kwargs.values())
        return result

    # A pickle has a function's name.
    call_and_note.__module__ = owner.__module__
    call_and_note.__qualname__ = f"{owner.__qualname__}.{name}"
    setattr(call_and_note, _OURS, True)
    setattr(owner, name, call_and_note)


def _is_lent(memory: int) -> bool:
    # Results may have got other memory since.
    lender = _lenders.get(memory)
    return lender is not None and memory in lender.result_memories()


def _note_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    # The program may destroy a stream of its own, and nobody could wait for it any more.
    if isinstance(stream, torch.cuda.ExternalStream):
        _note_process(tensor.untyped_storage())
    elif _is_lent(storage_key(tensor)):
        for pool in [*_pools]:
            if pool.device == tensor.device:
                pool.add_reader(stream)


def _note_process(memory: torch.UntypedStorage, *_: object) -> None:
    if _is_lent(memory._cdata):
        # A tensor counts as a user of its memory, and Python's object for the memory does not.
        _given_away.append(torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory))
