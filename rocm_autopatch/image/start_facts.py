"""What a start of this interpreter finds, for those who prepare an image.

The overlay's installer and ``rocm-autopatch bake`` ask in an interpreter of their own.
"""

from __future__ import annotations

from typing import Any

import rocm_autopatch
from rocm_autopatch import _RECORD, _decide, _find_torch, _read, _read_torch


def torch() -> dict[str, str]:
    """The facts in the torch/version.py of this interpreter's torch; {} if there is no torch.

    They are ``torch`` and ``accelerator``, and ``hip`` and ``rocm`` in a ROCm build. Nothing is
    imported.
    """
    facts: dict[str, tuple[str, str]] = {}
    path = _find_torch()
    if path:
        _read_torch(facts, path, _read(path).decode("utf-8", "replace"))
    return {name: value for name, (value, _) in facts.items()}


def torch_of_start() -> str | None:
    """The torch/version.py that the start of this process found, "" if it found none.

    None if there was no start. It may find less than this function's caller: ``site`` has not read
    all .pth files when it runs.
    """
    if not rocm_autopatch._started:
        return None
    _, path = _RECORD["facts"].get("torch", ("", ""))
    return str(path)


def decision() -> dict[str, Any]:
    """What a start decides here, whatever is baked: its ``facts``, ``reason`` and ``errors``.

    For a process in which no policy applies (``ROCM_AUTOPATCH=off``).
    """
    _decide()
    return {key: _RECORD[key] for key in ("facts", "reason", "errors")}
