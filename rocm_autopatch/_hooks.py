"""Post-import hooks: call a function when a named module has just been executed.

The finder at the head of ``sys.meta_path`` is ``_start``: it knows exact names, passes everything
else through, and comes here for a name that waits. The other finders are asked for its spec then,
and the real loader is shadowed for one call.

``exec_module`` is set on the *instance* of the loader that they returned. The loader is never
wrapped or replaced: ``__loader__``, ``__spec__``, ``importlib.resources``, ``inspect`` and
``isinstance`` see what they always see, and the shadow is gone before the module's first line runs.

There are no locks here. A module is executed under its own import lock, so a hook runs once, and
before any other thread gets the module; ``dict.pop`` decides between a reload and a first import.
"""

import sys

from rocm_autopatch import _start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional


def find_spec(
    name: str, path: "Optional[Sequence[str]]", target: "Optional[ModuleType]"
) -> "Optional[ModuleSpec]":
    """The spec that the other finders have for a module that waits, its loader shadowed."""
    # Not importlib.util.find_spec: it imports the parents again, under their locks, and costs
    # 4 ms of imports of its own.
    for other in sys.meta_path:
        find = None if other is _start else getattr(other, "find_spec", None)
        spec: Optional[ModuleSpec] = find and find(name, path, target)
        if spec is not None:
            _shadow(spec)
            return spec
    return None


def catch_up(names: "Iterable[str]") -> None:
    """Call the hooks of those modules that have been executed already."""
    for name in names:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _run_hook(name, module)


def _shadow(spec: "ModuleSpec") -> None:
    """Have the hook of the spec's module called when the module has been executed."""
    loader: Any = spec.loader
    # A namespace package has no loader or one that executes nothing. A loader that is a class
    # (BuiltinImporter, FrozenImporter) serves other modules too: shadowing it would reach them.
    if not hasattr(loader, "exec_module") or isinstance(loader, type):
        return
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        # zipimporter is one instance for all modules of an archive, so check whose turn it is.
        if module.__spec__ is not spec and getattr(module.__spec__, "name", None) != spec.name:
            execute(module)
            return
        loader.__dict__.pop("exec_module", None)
        # A module that raises here goes on waiting: the program may mend it and import it again.
        execute(module)
        _run_hook(spec.name, module)

    # This frame stands between importlib's own while the module executes. By this file name the
    # interpreter counts it as one of them: it is left out of the traceback of a failing import
    # (CPython Python/import.c, remove_importlib_frames), and warnings' stacklevel passes over it
    # (Lib/warnings.py, _is_internal_frame).
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    try:
        loader.exec_module = exec_module
    except AttributeError:
        # A loader with __slots__: the module is imported as without us, and stays on the record
        # as waiting.
        pass


def _run_hook(name: str, module: "ModuleType") -> None:
    """Call the hook that waits for a module, if one still does."""
    hook = _start.waiting.pop(name, None)
    if hook is None:
        return
    if not _start.waiting:
        try:
            sys.meta_path.remove(_start)
        except ValueError:
            pass
    # The import system binds a submodule on its parent after executing it; patches may look for
    # torch._inductor.config there already.
    package, _, attribute = name.rpartition(".")
    if package in sys.modules:
        try:
            setattr(sys.modules[package], attribute, module)
        except Exception:
            pass  # A parent that refuses is the import system's to complain about, in a moment.
    if isinstance(hook, str):
        home, _, attribute = hook.partition(":")
        hook = getattr(__import__(home, fromlist=[attribute]), attribute)
    hook(module)
