"""A mode that stands for lite, where torch has none.

This torch has it, so it is taken away. Those before 2.10 lack it: modes_versions.py of the matrix
asks them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor
from shown import show

from rocm_autopatch import startup
from rocm_autopatch.patches import compile_modes

inductor: Any = torch._inductor
torchs = inductor.list_mode_options


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    if mode == "lite":
        raise RuntimeError("Unrecognized mode=lite")
    found: dict[str, Any] = torchs(mode, dynamic)
    found.pop("lite", None)
    return found


inductor.list_mode_options = list_mode_options
entries: Any = [("reduce-overhead", "lite", "layer", "why")]
(row,) = compile_modes.apply(torch, entries, (), False)
wrapper: Any = torch._TorchCompileInductorWrapper  # type: ignore[attr-defined]
# Before the mode is asked for, and what it stands for is found to be missing.
answer = inductor.list_mode_options("reduce-overhead")
fast: Any = torch.compile(lambda x: x + 1, mode="reduce-overhead")
asked = wrapper("reduce-overhead", None, None)
try:
    wrapper("lite", None, None)
except RuntimeError as error:
    said = str(error)
show(
    fast(torch.ones(2)).tolist(),
    asked.config,
    answer,
    inductor.list_mode_options("reduce-overhead"),
    inductor.list_mode_options()["reduce-overhead"],
    row,
    startup._RECORD["errors"],
    said,
)
