"""The modules of C code by which Triton loads and launches kernels.

A start on the GPU would compile them: a second for the driver's, and before Triton 3.7 one for each
signature of kernels that torch does not launch itself. No GPU is needed for that.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Where a stand-in for CUDA has what Triton's modules are linked to.
LIBCUDA = Path(__file__).with_name("libcuda.so.1")
# What Triton's drivers raise where a compiler or a library is missing, or they have another shape.
_NOT_HERE = (
    *(AssertionError, AttributeError, ImportError, OSError, RuntimeError, TypeError),
    subprocess.CalledProcessError,
)


class _Unloaded:
    """A module that was compiled and not loaded: it has all functions, and nobody calls them."""

    def __getattr__(self, name: str) -> object:
        return self


def keep_host_module(vendor: str, make: Callable[[Any], object]) -> None:
    """Have Triton's own driver put into its cache what *make* needs of it.

    *vendor* is ``amd`` or ``nvidia``, and *make* is called with the module of that driver. Where
    it can't be compiled here, as without the library of the runtime, a start compiles it.
    """
    try:
        driver: Any = importlib.import_module(f"triton.backends.{vendor}.driver")
        if vendor == "nvidia":
            driver.libcuda_dirs = lambda: [str(LIBCUDA.parent)]
        with _nothing_loaded():
            make(driver)
    except _NOT_HERE:
        pass


@contextmanager
def _nothing_loaded() -> Iterator[None]:
    """Compile modules without loading them: the stand-in lacks functions that they are linked to.

    Before Triton 3.5, a module that is in the cache already is loaded all the same.
    """
    build: Any = importlib.import_module("triton.runtime.build")
    load = getattr(build, "_load_module_from_path", None)
    if load is None:
        yield
        return
    build._load_module_from_path = lambda name, path: _Unloaded()
    try:
        yield
    finally:
        build._load_module_from_path = load
