"""Whether our graphs compare some later replays with plain calls.

Our graphs read the row of this patch when they are made (``graphs/soundness.py``). Without it, they
compare on ROCm, and nowhere else.
"""

from rocm_autopatch.patches import row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import WordRow


TITLE = "Checks of graphs"
TARGETS = ("torch",)
SETTINGS = {"graph_check": ("off", "on")}
NOUN = ""
CHANGES_CODE = False
FIELDS = ("name", "wanted", "layer", "why")


def apply(
    module: "ModuleType",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[WordRow]":
    """Put the setting on the record, where graphs look for it."""
    default = "on" if getattr(getattr(module, "version", None), "hip", None) else "off"
    rows = []
    for entry in entries:
        done: WordRow = row(FIELDS, entry, keep, observe, before=default, after=default)
        if done["status"] == "applied":
            done["after"] = done["wanted"]
        rows.append(done)
    return rows
