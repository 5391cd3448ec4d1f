"""A shared object that a killed compiler has left cut off is removed, so that it is compiled again.

Inductor has the C++ compiler write a kernel to its final name, and takes a file that is there for
whole. If the process is killed while the linker writes, each later start fails with ``ImportError:
invalid ELF header``. In a directory that goes with its container this ends with the container; in
caches that are kept it would not. So a file that can't be loaded is removed. If AOTAutograd's cache
has led to it, Inductor then compiles the kernel. Else this start fails, as it would without us, and
the next one compiles it.

``CppCodeCache._load_library`` loads such a file on every torch from 2.4 to 2.15
(experiments/matrix/cache_versions.py).
"""

import functools
import os

from rocm_autopatch import _RECORD, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def watch_libraries(module: "ModuleType") -> None:
    """Look at what fails to load in the place of the caches. *module* is Inductor's codecache."""
    cache: Any = getattr(module, "CppCodeCache", None)
    load: Any = vars(cache).get("_load_library") if cache else None
    if not isinstance(load, classmethod):
        startup.fail("caches", "cut off files are not removed: this torch loads them another way")
        return
    original = load.__func__

    @functools.wraps(original)
    def _load_library(cls: "Any", path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        try:
            return original(cls, path, *args, **kwargs)
        except (ImportError, OSError):
            _remove_file(str(path))
            raise

    cache._load_library = classmethod(_load_library)


def _remove_file(path: str) -> None:
    # In the place only: a directory of the user's is not ours.
    caches = _RECORD["caches"]
    assert caches is not None  # Only caches.add_rows() arms the hook.
    if path.startswith((caches["node"] or caches["place"]) + "/"):
        try:
            os.unlink(path)
        except OSError:
            return
        text = "%s can't be loaded and is removed; it is compiled again, perhaps by the next start"
        startup.say("cut-library", text % path)
