"""The best configs of kernels stay in the place of the caches, wherever a graph was compiled.

A graph in Inductor's cache may have its kernels ready to launch, with the absolute paths of their
files where it was compiled (from torch 2.8 on, on ROCm 2.11). Beside such a file torch looks for
the config that was measured best, and writes it there after the first launch. Nothing handles an
error. So if a place was filled elsewhere, packed and seeded, or is a layer of the image, a user who
may not read there finds no graph, and for one who may not write there the first call of the program
raises PermissionError. Here such a path leads to the same file in the place.

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
_SINCE = (2, 8)


def keep_configs(module: "ModuleType") -> None:
    """Let configs be read and written in the place. *module* is Inductor's codecache."""
    record = _RECORD["caches"]
    assert record is not None  # Only caches.add_rows() arms the hook.
    if startup.release(record["of"]["torch"]) < _SINCE:
        return
    cache: Any = getattr(getattr(module, "autotune_cache", None), "AutotuneCache", None)
    found = vars(cache) if cache else {}
    create, restore = found.get("create"), found.get("__setstate__")
    if not (isinstance(create, staticmethod) and callable(restore)):
        text = "a place that was filled elsewhere may fail: this torch keeps configs another way"
        startup.fail("caches", text)
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
    """Let a config be kept in the place, if it has a file. Others have none, and None is no cache.

    *made* is an AutotuneCache. Its local_cache is what reads and writes, and the path.
    """
    local = getattr(made, "local_cache", None)
    if local:
        made.local_cache = (local[0], _path_in_place(local[1]))


def _path_in_place(path: str) -> str:
    """Where a config is kept: beside its kernel's file, in the directory that torch uses now.

    That is the place's, or what the program or a framework has made of it.
    """
    directory = os.environ.get(_VARIABLE, "").rstrip("/")
    if not directory or path.startswith(directory + "/"):
        return path
    # torch names the directory of a kernel by two letters of its hash. A file that is elsewhere was
    # not in a cache.
    above, name = os.path.split(path)
    letters = os.path.basename(above)
    return os.path.join(directory, letters, name) if len(letters) == 2 else path
