"""Changes to torch, one file or folder each, applied by a post-import hook.

Each states what it is, and everything else derives from that: the schema of a policy, the plan, the
record, the JSON Schema, ``rocm-autopatch ab`` and the table in docs/patches.md. A patch has

- ``TITLE``, the heading of its rows in ``rocm-autopatch status``;
- ``TARGETS``, the modules of torch that it is applied to, each when it has just been executed;
- ``FIELDS``, the names of the first values in its plan entries; ``plan.RANGE_FIELDS`` follow;
- ``SETTINGS``, what a policy may set under ``patches``: by name, the words to choose from or a kind
  of ``policy.settings``. A patch with one setting calls it by its own name, one with several
  ``PATCH.FIELD``. It is empty where a policy has a section of its own for the patch;
- ``NOUN``, by which the one line on stderr counts its entries; "" where the patch is just named;
- ``CHANGES_CODE``, whether it changes what is compiled;
- ``apply(module, entries, keep, observe)``: *module* is the target, *entries* what the plan holds
  for it, *keep* the names that the user keeps out of our hands, and *observe* asks for a record
  without a change. It returns one row of the record per entry, and may raise: the import goes on,
  and the patch is recorded as failed.

A new patch is one file here, its name in ``NAMES``, its section in docs/patches.md, and its test.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("config", "compile_modes", "capture", "watchdog", "recompiles")


def load(name: str) -> "Any":
    """The module of a patch. A process loads a patch when its target is imported, and no other."""
    return __import__("rocm_autopatch.patches." + name, fromlist=["apply"])


def row(fields: "tuple[str, ...]", entry: "tuple[Any, ...]", **more: "Any") -> "dict[str, Any]":
    """A row of the record: the entry by its fields, and what became of it.

    ``status`` is waiting, applied, observed, kept, skipped or failed; ``reason`` says why where
    that is not plain.
    """
    return {**dict(zip(fields, entry)), "before": None, "after": None, "reason": "", **more}


def kept(name: str, keep: "tuple[str, ...]") -> bool:
    """Whether ROCM_AUTOPATCH_KEEP takes this name, by the whole of it or its end after a dot."""
    return any(name == word or name.endswith("." + word) for word in keep)
