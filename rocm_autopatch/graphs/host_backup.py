"""The content of memory on the GPU, kept on the host while a call overwrites that memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rocm_autopatch.graphs.capture import no_other
from rocm_autopatch.graphs.layout import place_of, storage_key, view_at
from rocm_autopatch.graphs.pytrees import TENSORS

# Limits of a container, and what it uses: control groups of version 2, then of version 1.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


class HostBackup:
    """All that lies in the memories of some leaves of a call, by their *indices*.

    The memories are those of what the list has at these indices when they are needed: a leaf may
    own its memory no more.
    """

    def __init__(self, leaves: Sequence[Any], indices: Iterable[int]) -> None:
        self._leaves = leaves
        first: dict[int, int] = {}
        for index in sorted(indices):
            first.setdefault(storage_key(leaves[index]), index)
        self._kept: dict[int, torch.Tensor] = {}
        with no_other():
            for index in first.values():
                whole = _bytes_of(leaves[index])
                self._kept[index] = torch.empty_like(whole, device="cpu").copy_(whole)

    def copy_leaves(self) -> list[Any]:
        """The leaves; those in the memories lie in new ones, which have the same content."""
        leaves = self._leaves
        with no_other():
            new = {
                storage_key(leaves[index]): torch.empty_like(kept, device=leaves[index].device)
                for index, kept in self._kept.items()
            }
            for whole, kept in zip(new.values(), self._kept.values()):
                whole.copy_(kept)
        return [
            view_at(new[storage_key(leaf)], leaf.dtype, place_of(leaf))
            if type(leaf) in TENSORS and storage_key(leaf) in new
            else leaf
            for leaf in leaves
        ]

    def restore(self) -> None:
        """Write to the memories what was there."""
        with no_other():
            for index, kept in self._kept.items():
                _bytes_of(self._leaves[index]).copy_(kept)


def fits_on_host(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether the host may keep what lies in the memories of tensors.

    All processes that one launcher has started on this machine get half of what is free.
    """
    needed = sum({storage_key(one): one.untyped_storage().nbytes() for one in tensors}.values())
    if not needed:
        return True
    # Of torchrun: how many processes of the job this machine has.
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return needed <= _free_host_bytes() // 2 // (
        int(ranks) if ranks.isdecimal() and int(ranks) else 1
    )


def _free_host_bytes() -> int:
    """The bytes of the host that this process may take, as far as is known."""
    found = []
    with suppress(OSError, ValueError, LookupError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        words = {line.partition(":")[0]: line.split() for line in lines}
        found.append(int(words["MemAvailable"][1]) << 10)
    for limit, used in _GROUPS:
        # The limit is "max" if there is none.
        with suppress(OSError, ValueError):
            most, current = (int(Path(one).read_text(encoding="ascii")) for one in (limit, used))
            found.append(most - current)
    return max(0, min(found, default=0))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    memory = tensor.untyped_storage()
    return tensor.new_empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,))
