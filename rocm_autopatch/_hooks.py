"""Post-import hooks: call a function when a named module has just been executed.

One finder at the head of ``sys.meta_path`` knows exact names and passes everything else through.
For a name that waits it asks the other finders, and shadows ``exec_module`` on the *instance* of
the real loader they return. The loader is never wrapped or replaced: ``__loader__``, ``__spec__``,
``importlib.resources``, ``inspect`` and ``isinstance`` see what they always see, and the shadow is
gone before the module's first line runs.

There are no locks here. A module is executed under its own import lock, so a hook runs once, and
before any other thread gets the module; ``dict.pop`` decides between a reload and a first import.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

    Hook = Callable[[ModuleType], None]

_waiting: "dict[str, Hook]" = {}


class _Finder:
    __slots__ = ()

    @staticmethod
    def find_spec(
        name: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None
    ) -> "Optional[ModuleSpec]":
        if name not in _waiting:
            return None
        # Not importlib.util.find_spec: it imports the parents again, under their locks, and costs
        # 4 ms of imports of its own.
        for finder in sys.meta_path:
            find_spec = None if finder is _finder else getattr(finder, "find_spec", None)
            spec: Optional[ModuleSpec] = find_spec and find_spec(name, path, target)
            if spec is not None:
                _shadow(spec)
                return spec
        return None


_finder = _Finder()


def arm(hooks: "dict[str, Hook]") -> None:
    """Call each hook with its module as soon as that module is executed, or now if it has been.

    A hook must not raise: it runs inside the program's import statement.
    """
    _waiting.update(hooks)
    for name in hooks:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _run_hook(name, module)
    if _waiting and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def waiting() -> "tuple[str, ...]":
    """The names of the modules that have not been imported yet."""
    return tuple(_waiting)


def _shadow(spec: "ModuleSpec") -> None:
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
    hook = _waiting.pop(name, None)
    if hook is None:
        return
    if not _waiting:
        try:
            sys.meta_path.remove(_finder)
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
    hook(module)
