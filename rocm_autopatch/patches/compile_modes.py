"""The mode table: what ``torch.compile(mode=...)`` means here.

The change is made in ``torch._TorchCompileInductorWrapper.apply_mode``, where every torch from 2.4
on turns a mode's name into Inductor options, and not by replacing ``torch.compile``: its
signature, docstring and errors stay, ``from torch import compile`` and ``Module.compile`` are
covered, other backends and ``options=`` never get here, and Dynamo traces a ``torch.compile``
inside a compiled region as before.
"""

import functools

from rocm_autopatch.patches import kept, row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


FIELDS = ("name", "wanted", "layer", "why")


def apply(
    module: "ModuleType",
    entries: "list[tuple[Any, ...]]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[dict[str, Any]]":
    """Put the table of *entries* into ``torch``.

    A row's ``uses`` counts how often the program asked for the mode in this process.
    """
    rows = []
    for entry in entries:
        done = row(FIELDS, entry, status="applied", uses=0)
        done["before"] = done["after"] = done["name"]
        if kept(done["name"], keep):
            done.update(status="kept", reason="ROCM_AUTOPATCH_KEEP")
        elif observe:
            done["status"] = "observed"
        else:
            done["after"] = done["wanted"]
        rows.append(done)
    _install(module, {done["name"]: done for done in rows})
    return rows


def _install(torch: "Any", table: "dict[str, dict[str, Any]]") -> None:
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        # getattr: while torch is being imported, its own AttributeError blames a circular import.
        raise AttributeError("this torch has no _TorchCompileInductorWrapper")
    original = wrapper.apply_mode

    @functools.wraps(original)
    def apply_mode(self: "Any", mode: "Any") -> "Any":
        asked = table.get(mode) if isinstance(mode, str) else None
        if asked is not None:
            asked["uses"] += 1
            mode = asked["after"]
        return original(self, mode)

    wrapper.apply_mode = apply_mode
