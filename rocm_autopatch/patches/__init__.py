"""Changes to torch, one file or folder each, applied by a post-import hook.

Each patch describes itself by the names below. All else is derived from them: the schema of a
policy, the plan, the record, the JSON Schema, ``rocm-autopatch ab`` and the list in
docs/patches.md. A patch has

- ``TITLE``, the heading of its rows in ``rocm-autopatch status``;
- ``TARGETS``, the modules of torch that it is applied to, each right after its execution;
- ``FIELDS``, the names of the first values in its plan entries; ``plan.RANGE_FIELDS`` follow;
- ``SETTINGS``, what a policy may set under ``patches``: for each name, the allowed words or a kind
  of ``policy.grammar.SETTING_TYPES``. If a patch has one setting, its name is the patch's own name.
  If it has several, their names are ``PATCH.FIELD``, and ``policy.grammar.SETTING_SENTENCES`` says
  what each means. If a policy has a section of its own for the patch, this is empty;
- ``NOUN``, what an entry is called in the one line on stderr, which counts them; "" if that line
  only names the patch;
- ``CHANGES_CODE``, whether it changes what is compiled;
- ``apply(module, entries, keep, observe)``: *module* is the target, *entries* what the plan holds
  for it, *keep* the names in ROCM_AUTOPATCH_KEEP, and *observe* asks for a record without a
  change. It returns one row of the record for each entry. If it raises, the import goes on, and
  the patch is recorded as failed.

It may also have

- ``OF_MODULE = True``, if its entries are keys of the target, whose name is a part of theirs;
- ``foresee_row(row)``, which gives what else a row says that waits for its target;
- ``look_at_values(target, rows)``, which gives the rows as they are now, and errors.

A new patch is one file here, its name in ``NAMES``, its section in docs/patches.md, and its test.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rocm_autopatch.patches.interface import TorchPatch
    from rocm_autopatch.plan import PatchEntry

NAMES = ("config", "compile_modes", "capture", "watchdog", "recompiles", "ranks", "graph_check")


def load(name: str) -> "TorchPatch":
    """The module of a patch. A process loads only the patches whose targets are imported."""
    patch: Any = __import__("rocm_autopatch.patches." + name, fromlist=["apply"])
    found: TorchPatch = patch
    return found


def full_name(patch: str, target: str, name: str) -> str:
    """What the record calls an entry of a patch in all its targets."""
    return "%s.%s" % (target, name) if getattr(load(patch), "OF_MODULE", False) else name


def row(
    fields: "tuple[str, ...]",
    entry: "PatchEntry",
    keep: "tuple[str, ...]" = (),
    observe: bool = False,
    **more: object,
) -> "Any":
    """A row of the record: the fields of the entry, and what becomes of it.

    It is a type of ``record.shapes``, and the patch says which one: the one with its *fields*.

    ``status`` is kept if the name is in *keep*, else observed or applied. A patch may change it to
    skipped or failed, and the record of a patch that was not applied yet has waiting. ``reason``
    says why, if that is not obvious.
    """
    made = {**dict(zip(fields, entry)), "before": None, "after": None, "reason": ""}
    made["status"] = "observed" if observe else "applied"
    if kept(str(made["name"]), keep):
        made.update(status="kept", reason="ROCM_AUTOPATCH_KEEP")
    return {**made, **more}


def kept(name: str, keep: "tuple[str, ...]") -> bool:
    """Whether ROCM_AUTOPATCH_KEEP has this name: the whole of it, or its end after a dot."""
    return any(name == word or name.endswith("." + word) for word in keep)
