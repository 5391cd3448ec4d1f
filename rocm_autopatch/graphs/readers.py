"""Who reads results that are handed out without a copy, and does not count as their user.

A replay overwrites such a result once nothing refers to its memory. That is too early for what
reads it without a reference: collectives on streams of their own, a stream that a program names
with ``Tensor.record_stream``, and another process that has got the memory.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch

from rocm_autopatch.graphs.layout import storage_key

_OURS = "_rocm_autopatch"
# By memory: what was handed out there, whoever has done that.
_lenders: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
# The pools whose replays wait for the streams that read results.
_pools: weakref.WeakSet[ReplayOrder] = weakref.WeakSet()
# Memory that another process has got: it is never let go.
_given_away: list[torch.Tensor] = []


class ReplayOrder(Protocol):
    """A pool of graphs: ``capture.CapturePool``."""

    device: torch.device

    def add_reader(self, stream: torch.cuda.Stream) -> None:
        """Have each replay wait for what the stream does at that time."""


def are_counted() -> bool:
    """Whether who reads a result has a reference to it. Collectives of other ranks have none."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def watch(lender: object, memories: list[int], pool: ReplayOrder) -> None:
    """Look after readers of these memories, which *lender* hands out."""
    _install()
    _pools.add(pool)
    _lenders.update(dict.fromkeys(memories, lender))


def _install() -> None:
    # Two threads may do it at once: then a reader is noted twice.
    _wrap(torch.Tensor, "record_stream", _note_stream)
    _wrap(torch.UntypedStorage, "_share_cuda_", _note_process)


def _wrap(owner: Any, name: str, note: Any) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, _OURS):
        return

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(noting, _OURS, True)
    setattr(owner, name, noting)


def _note_stream(tensor: torch.Tensor, stream: torch.cuda.Stream, *_: object) -> None:
    if tensor.layout is torch.strided and storage_key(tensor) in _lenders:
        for pool in [*_pools]:
            if pool.device == tensor.device:
                pool.add_reader(stream)


def _note_process(memory: torch.UntypedStorage, *_: object) -> None:
    if memory._cdata in _lenders:
        # A tensor counts as a user of its memory, and Python's object for the memory does not.
        _given_away.append(torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory))
