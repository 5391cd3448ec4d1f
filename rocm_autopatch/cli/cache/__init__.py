"""``rocm-autopatch cache``: the compile caches beneath one root."""

from __future__ import annotations

from rocm_autopatch.cli.command import CommandGroup
from rocm_autopatch.cli.statuses import WRONG_OR_DONE

COMMAND = CommandGroup(
    {
        "status": "the root, its places, and how they differ from the one of this environment",
        "warm": "run a command that fills the caches, and say what was in them",
        "fill": "run a command that fills the caches for a GPU that is not here",
        "pack": "write the place of this environment to a file",
        "seed": "unpack what pack has written",
        "gc": "remove the places that were not used for longest",
        "path": "print the directory of this environment's place",
    },
    description=(
        "Where a policy or ROCM_AUTOPATCH_CACHE asks for it, all compile caches are in one "
        "root, with a directory for each kind of place: torch, Triton, HIP, GPUs, Python and "
        "policy. These commands work on this root, or on its default where nobody asks."
    ),
    example="rocm-autopatch cache warm -- python serve.py --one-request",
    statuses=WRONG_OR_DONE,
)
