"""Changes to torch, one file each, applied by a post-import hook.

Each file has ``FIELDS``, the names of the first values in its plan entries, and
``apply(module, entries, keep, observe)``: *module* is the patch's target, just executed, *entries*
what the plan holds for it, *keep* the names that the user keeps out of our hands, and *observe*
asks for a record without a change. It returns one row of the record per entry, and may raise: the
import goes on, and the patch is recorded as failed.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def row(fields: "tuple[str, ...]", entry: "tuple[Any, ...]", **more: "Any") -> "dict[str, Any]":
    """A row of the record: the entry by its fields, and what became of it.

    ``status`` is waiting, applied, observed, kept, skipped or failed; ``reason`` says why where
    that is not plain.
    """
    return {**dict(zip(fields, entry)), "before": None, "after": None, "reason": "", **more}


def kept(name: str, keep: "tuple[str, ...]") -> bool:
    """Whether ROCM_AUTOPATCH_KEEP takes this name, by the whole of it or its end after a dot."""
    return any(name == word or name.endswith("." + word) for word in keep)
