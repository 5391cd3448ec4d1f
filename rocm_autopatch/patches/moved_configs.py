"""The best configs of kernels stay in the caches of now, wherever a graph was compiled.

A graph in Inductor's cache may have its kernels ready to launch, with the absolute paths of their
files where it was compiled (from torch 2.8 on, on ROCm 2.11). Beside such a file torch looks for
the config that was measured best, and writes it there after the first launch. It handles no error:
a user who may not read there finds no graph, and one who may not write there has a PermissionError
from the first call. So such a path leads to the same file in the directory that torch uses now.

``AutotuneCache.create`` makes these paths, and ``__setstate__`` brings them from a graph, on every
torch from 2.8 to 2.15 (experiments/matrix/cache_versions.py).
"""

import functools
import os

from rocm_autopatch import _RECORD, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_configs(module: "ModuleType") -> None:
    """Let configs be read and written in the place. *module* is Inductor's codecache."""
    record = _RECORD["caches"]
    assert record is not None  # Only caches.add_rows() arms the hook.
    if startup.release(record["of"]["torch"]) < (2, 8):
        return
    cache: Any = getattr(getattr(module, "autotune_cache", None), "AutotuneCache", None)
    found = vars(cache) if cache else {}
    create, restore = found.get("create"), found.get("__setstate__")
    if not (isinstance(create, staticmethod) and callable(restore)):
        startup.fail(
            "caches", "best configs stay where they were: this torch keeps them another way"
        )
        return
    make = create.__func__

    @functools.wraps(make)
    def _create(*args: "Any", **kwargs: "Any") -> "Any":
        made = make(*args, **kwargs)
        _bring_into_place(made)
        return made

    @functools.wraps(restore)
    def _setstate(self: "Any", state: "Any") -> None:
        restore(self, state)
        _bring_into_place(self)

    cache.create = staticmethod(_create)
    cache.__setstate__ = _setstate


def _bring_into_place(made: "Any") -> None:
    """*made* is an AutotuneCache, or None. Its local_cache is what reads and writes, and a path."""
    local = getattr(made, "local_cache", None)
    if local:
        made.local_cache = (local[0], _path_in_place(local[1]))


def _path_in_place(path: str) -> str:
    """Where a config is kept: beside its kernel's file, in the directory that torch uses now."""
    directory = os.environ.get(_VARIABLE, "").rstrip("/")
    if not directory or path.startswith(directory + "/"):
        return path
    # torch names the directory of a kernel by two letters of its hash. Others are in no cache.
    above, name = os.path.split(path)
    letters = os.path.basename(above)
    return os.path.join(directory, letters, name) if len(letters) == 2 else path
