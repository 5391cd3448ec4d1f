"""Post-import hooks: call a function when a named module has just been executed.

The finder at the head of ``sys.meta_path`` is the package ``startup``, which hands itself to the
functions here. It knows exact names, passes all others through, and calls :func:`find_spec` for a
name that waits. That asks the other finders for the spec, and the spec gets a class of ours, which
notices importlib's ``spec._initializing = False``. That is the last thing that importlib does to a
module that it has executed (``_load_unlocked`` in CPython's Lib/importlib/_bootstrap.py, 3.9 to
3.15), and it holds the module's import lock while it does. The class is then taken off, and the
hook is called.

So no loader is touched, and no frame of ours is on the stack while the module executes: tracebacks,
warnings, ``importlib.resources``, ``inspect``, copies and pickles are what they are without us.
There is one exception: if another finder fails while it looks for a module that waits, the
traceback shows two frames of ours.

A module of ``importlib.util.LazyLoader`` is executed later, by a function that takes the loader
from the spec, so ``spec.loader`` is a property. If a program executes a module by hand, we do not
see it. Its hook is called when the next module that waits is asked for: the first call of a
compiled function imports torch's config modules and its compiler.

There are no locks here. A module is executed under its own import lock, so a hook runs once, and
before any other thread gets the module; ``dict.pop`` decides between a reload and a first import.
"""

import _thread
import sys

from rocm_autopatch import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional

# The class importlib.machinery.ModuleSpec; not every program has loaded that module.
_Spec: "Any" = type(sys.__spec__)
_Module: "Any" = type(sys)
# The package startup.
_finder: "Any" = None
# Which thread asks the other finders for which name.
_asking: "set[tuple[int, str]]" = set()


class _Watched(_Spec):  # type: ignore[misc]
    """A spec while its module waits."""

    # Not a property: C code reads ``_initializing``, and drops what a signal raises in a getter.
    def __setattr__(self, name: str, value: "Any") -> None:
        ends = False
        try:
            ends = name == "_initializing" and not value
            module = sys.modules.get(self.name) if ends else None
            if ends and not _is_lazy(module):
                # Other threads wait for the module as long as this is not set.
                self._executed(module)
            _Spec.__setattr__(self, name, value)
        except BaseException:
            if ends:
                # From a signal handler: the import fails with it, and can be done again.
                sys.modules.pop(self.__dict__["name"], None)
                self.__dict__["_initializing"] = False
            raise

    @property
    def loader(self) -> "Any":
        loader = self.__dict__["loader"]
        caller = sys._getframe(1)
        if caller.f_code.co_name == "__getattribute__" and _is_of(caller, "importlib.util"):
            return _Execution(self, loader)
        return loader

    @loader.setter
    def loader(self, loader: "Any") -> None:
        self.__dict__["loader"] = loader

    def _executed(self, module: "Any") -> None:
        """Call the hook of the module. A module that failed is None; its hook goes on waiting."""
        self.__class__ = _Spec
        if module is not None:
            _run_hook(self.name, module)

    def __reduce_ex__(self, protocol: "Any") -> "Any":
        # Copies and pickles are of the plain class.
        return _Spec, (self.name, self.loader), dict(self.__dict__)


class _Execution:
    """A loader, for the one call in which LazyLoader has it execute a module."""

    def __init__(self, spec: _Watched, loader: "Any") -> None:
        self.spec = spec
        self.loader = loader

    def exec_module(self, module: "ModuleType") -> None:
        self.loader.exec_module(module)
        try:
            self.spec._executed(module)
        except BaseException:
            sys.modules.pop(self.spec.name, None)
            raise


_Watched.__name__, _Watched.__qualname__ = _Spec.__name__, _Spec.__qualname__
_Watched.__module__ = _Spec.__module__


def find_spec(
    finder: "Any", name: str, path: "Optional[Sequence[str]]", target: "Optional[ModuleType]"
) -> "Optional[ModuleSpec]":
    """The spec that the finders other than ours, *finder*, have for a module that waits."""
    me = (_thread.get_ident(), name)
    if me in _asking:
        # Another finder asks the others, as we do.
        return None
    _asking.add(me)
    try:
        catch_up(finder, [one for one in tuple(finder.waiting) if one != name])
        return _find_spec(finder, name, path, target)
    finally:
        _asking.discard(me)


def _find_spec(
    finder: "Any", name: str, path: "Optional[Sequence[str]]", target: "Optional[ModuleType]"
) -> "Optional[ModuleSpec]":
    # Not importlib.util.find_spec: it imports the parents again, under their locks, and costs
    # 4 ms of imports of its own.
    for other in sys.meta_path:
        # A program that took us out of sys.modules may have another copy of us there.
        if other is finder or getattr(other, "__name__", "") == finder.__name__:
            continue
        try:
            find = other.find_spec
        except AttributeError:
            if hasattr(other, "find_module"):
                # Up to Python 3.11 it has its turn: importlib's own, without our hook.
                return None
            continue
        spec: Optional[ModuleSpec] = find(name, path, target)
        if spec is not None:
            # A spec of another class, or with another name, is not changed.
            if type(spec) is _Spec and spec.name == name:
                spec.__class__ = _Watched
            return spec
    return None


def add(finder: "Any", name: str, hook: "Callable[[ModuleType], None]") -> None:
    """Have a hook called for a module for which another one may wait already: that goes first."""
    first = finder.waiting.get(name)

    def both(module: "ModuleType") -> None:
        if first is not None:
            _function(first)(module)
        hook(module)

    finder.arm({name: both})


def _function(hook: "Any") -> "Callable[[ModuleType], None]":
    """A hook, imported from its place ``module:function`` if that is what is given."""
    if not isinstance(hook, str):
        return hook  # type: ignore[no-any-return]
    home, _, attribute = hook.partition(":")
    return getattr(__import__(home, fromlist=[attribute]), attribute)  # type: ignore[no-any-return]


def catch_up(finder: "Any", names: "Iterable[str]") -> None:
    """Call the hooks of those of the modules that have been executed already."""
    global _finder
    _finder = finder
    for name in names:
        module = sys.modules.get(name)
        # A test may have put something else there.
        if not isinstance(module, _Module) or _is_lazy(module):
            continue
        spec = vars(module).get("__spec__")
        if type(spec) not in (_Spec, _Watched) or spec.name != name:
            continue
        if not getattr(spec, "_initializing", False) and not _is_under_way(module):
            _run_hook(name, module)


def _is_lazy(module: "Any") -> bool:
    """Whether a module of importlib.util.LazyLoader waits for the first look at it."""
    return type(module).__name__ == "_LazyModule"


def _is_of(frame: "Any", module: str) -> bool:
    return bool(frame.f_globals.get("__name__") == module)


def _is_under_way(module: "ModuleType") -> bool:
    """Whether somebody executes the module by hand, further up in this thread."""
    frame: Any = sys._getframe(1)
    names = vars(module)
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back
    return frame is not None


def _run_hook(name: str, module: "ModuleType") -> None:
    """Call the hook that waits for a module, if one still does."""
    hook = _finder.waiting.pop(name, None)
    if hook is None:
        return
    try:
        # The import system binds a submodule on its parent after executing it; patches may look
        # for torch._inductor.config there already. If a parent refuses, the import system will
        # complain in a moment.
        package, _, attribute = name.rpartition(".")
        if package in sys.modules:
            try:
                setattr(sys.modules[package], attribute, module)
            except Exception as error:
                if failure.programs_own(error):
                    raise
        _function(hook)(module)
    except BaseException as error:
        # For example, a file of ours is gone.
        if failure.programs_own(error):
            # The module may be imported again.
            _finder.waiting[name] = hook
            raise
        _finder.fail("hooks", "%s is not changed: %s" % (name, failure.describe(error)))
    if not _finder.waiting:
        _leave(_finder)


def _leave(finder: "Any") -> None:
    """Take the finder off sys.meta_path, when nothing waits any more.

    The list is replaced by a new one, because somebody may be walking it. Where there are threads,
    the finder stays and answers None: a thread may be about to add to the list that it has. It also
    stays in a list of the program's own class.
    """
    if not _thread._count() and type(sys.meta_path) is list:
        sys.meta_path = [one for one in sys.meta_path if one is not finder]
