"""Paths in the files of a place that has moved.

Triton finds the files of a kernel by a JSON file with their absolute paths. Where they do not
exist, it compiles anew and does not say so; and Inductor, which has a copy of them, does not bring
them back as long as their directory is there (research/caches-torch.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Triton's group files, and the key in them.
_GROUP = ("__grp__", ".json")
_CHILDREN = "child_paths"


def is_group(name: str) -> bool:
    """Whether a file has paths that have to be put right, by its name."""
    last = name.rpartition("/")[2]
    return last.startswith(_GROUP[0]) and last.endswith(_GROUP[1])


def rewrite_paths(path: Path, old: str, new: str) -> bool:
    """Put the paths in a group file right that begin with the place *old*: it is *new* now.

    Returns whether there were any. A file that is not what Triton writes stays as it is. Raises
    OSError.
    """
    try:
        group: Any = json.loads(path.read_bytes())
        children = group[_CHILDREN]
        found = {name: _moved_path(child, old, new) for name, child in children.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    if found == children:
        return False
    path.write_text(json.dumps({**group, _CHILDREN: found}), encoding="utf-8")
    return True


def _moved_path(path: Any, old: str, new: str) -> Any:
    if isinstance(path, str) and path.startswith(old + "/"):
        return new + path[len(old) :]
    return path
