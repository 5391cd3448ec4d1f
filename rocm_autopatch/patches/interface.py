"""What a patch describes itself by, as ``rocm_autopatch.patches`` says it in words.

Only a type checker imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import EntryRow


class TorchPatch(Protocol):
    """The module of a patch."""

    TITLE: str
    TARGETS: tuple[str, ...]
    FIELDS: tuple[str, ...]
    SETTINGS: Mapping[str, Any]
    NOUN: str
    CHANGES_CODE: bool

    def apply(
        self, module: ModuleType, entries: list[PatchEntry], keep: tuple[str, ...], observe: bool
    ) -> list[EntryRow]:
        """Change a module of torch. Returns a row for each entry."""
