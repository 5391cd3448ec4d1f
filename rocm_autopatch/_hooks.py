"""Post-import hooks: call a function when a named module has just been executed.

The finder at the head of ``sys.meta_path`` is the module ``_start``: it knows exact names, passes
everything else through, and comes here for a name that waits. The other finders are asked for its
spec then, and the real loader is shadowed for one call.

``exec_module`` is set on the *instance* of the loader that they returned. The loader is never
wrapped or replaced: ``__loader__``, ``__spec__``, ``importlib.resources``, ``inspect`` and
``isinstance`` see what they always see, and the shadow is gone before the module's first line runs.
Until then it can't be seen either, in ``vars(loader)``, a comparison, a copy or a pickle: many
programs ask for a spec (``importlib.util.find_spec``) and never execute it.

There are no locks here. A module is executed under its own import lock, so a hook runs once, and
before any other thread gets the module; ``dict.pop`` decides between a reload and a first import.
"""

import sys

from rocm_autopatch import _say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional


def find_spec(
    finder: "Any", name: str, path: "Optional[Sequence[str]]", target: "Optional[ModuleType]"
) -> "Optional[ModuleSpec]":
    """The spec that the finders other than *finder*, which is ours, have for a module that waits.

    Its loader is shadowed.
    """
    # Not importlib.util.find_spec: it imports the parents again, under their locks, and costs
    # 4 ms of imports of its own.
    for other in sys.meta_path:
        # A program that took us out of sys.modules may have another copy of us there.
        if other is finder or getattr(other, "__name__", "") == finder.__name__:
            continue
        find = getattr(other, "find_spec", None)
        spec: Optional[ModuleSpec] = None if find is None else find(name, path, target)
        if spec is not None:
            _shadow(finder, name, spec)
            return spec
    return None


def catch_up(finder: "Any", names: "Iterable[str]") -> None:
    """Call the hooks of those modules that have been executed already."""
    for name in names:
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _run_hook(finder, name, module)


def _shadow(finder: "Any", name: str, spec: "ModuleSpec") -> None:
    """Have the hook *name* called when the spec's module has been executed."""
    loader: Any = spec.loader
    # A namespace package has no loader or one that executes nothing. A loader that is a class
    # (BuiltinImporter, FrozenImporter) serves other modules too: shadowing it would reach them.
    if not hasattr(loader, "exec_module") or isinstance(loader, type):
        return
    attributes = getattr(loader, "__dict__", None)
    if isinstance(attributes, _Attributes):
        # Asked for again, or one loader for many modules, as zipimporter is.
        attributes.waiting[spec.name] = name
        return
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        its: Any = getattr(module.__spec__, "name", None)
        hook = hidden.waiting.pop(its, None)
        if not hidden.waiting and vars(loader) is hidden:
            object.__setattr__(loader, "__dict__", hidden.seen())
        # A module that raises here goes on waiting: the program may mend it and import it again.
        execute(module)
        if hook is not None:
            _run_hook(finder, hook, module)

    # This frame stands between importlib's own while the module executes. By this file name the
    # interpreter counts it as one of them: it is left out of the traceback of a failing import
    # (CPython Python/import.c, remove_importlib_frames), and warnings' stacklevel passes over it
    # (Lib/warnings.py, _is_internal_frame).
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    try:
        hidden = _Attributes(loader, exec_module)
        hidden.waiting[spec.name] = name
        # Past a __setattr__ of its own.
        object.__setattr__(loader, "__dict__", hidden)
    except (AttributeError, TypeError):
        # A loader with __slots__: the module is imported as without us, and stays on the record
        # as waiting.
        pass


class _Attributes(dict):  # type: ignore[type-arg]
    """The attributes of a loader, with an ``exec_module`` that nobody sees who looks at them.

    The interpreter takes an instance's attributes from the dict itself, and asks no method of it.
    """

    __slots__ = ("own", "waiting")
    __hash__ = None

    def __init__(self, loader: "Any", exec_module: "Callable[[ModuleType], None]") -> None:
        super().__init__(vars(loader))
        # By the name of a spec, the hook of the module.
        self.waiting: dict[str, str] = {}
        # Somebody else may have set one.
        self.own = {name: self[name] for name in ("exec_module",) if name in vars(loader)}
        super().__setitem__("exec_module", exec_module)

    def seen(self) -> "dict[str, Any]":
        """What is seen of the attributes, as a dict of its own."""
        seen = {name: dict.__getitem__(self, name) for name in dict.__iter__(self)}
        del seen["exec_module"]
        return {**seen, **self.own}

    def __eq__(self, other: object) -> bool:
        return self.seen() == (other.seen() if isinstance(other, _Attributes) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __iter__(self) -> "Iterator[str]":
        return iter(self.seen())

    def __len__(self) -> int:
        return len(self.seen())

    def __contains__(self, name: object) -> bool:
        return name in self.seen()

    def __getitem__(self, name: str) -> "Any":
        return self.seen()[name]

    def __repr__(self) -> str:
        return repr(self.seen())

    def __reduce_ex__(self, protocol: "Any") -> "tuple[Any, ...]":
        return dict, (self.seen(),)

    def get(self, name: str, default: "Any" = None) -> "Any":
        return self.seen().get(name, default)

    def keys(self) -> "Any":
        return self.seen().keys()

    def values(self) -> "Any":
        return self.seen().values()

    def items(self) -> "Any":
        return self.seen().items()

    def copy(self) -> "dict[str, Any]":
        return self.seen()


def _run_hook(finder: "Any", name: str, module: "ModuleType") -> None:
    """Call the hook that waits for a module, if one still does."""
    hook = finder.waiting.pop(name, None)
    if hook is None:
        return
    its = hook
    try:
        # The import system binds a submodule on its parent after executing it; patches may look
        # for torch._inductor.config there already. A parent that refuses is the import system's to
        # complain about, in a moment.
        package, _, attribute = name.rpartition(".")
        if package in sys.modules:
            try:
                setattr(sys.modules[package], attribute, module)
            except Exception as error:
                if _say.programs_own(error):
                    raise
        if isinstance(its, str):
            home, _, attribute = its.partition(":")
            its = getattr(__import__(home, fromlist=[attribute]), attribute)
        its(module)
    except BaseException as error:
        if _say.programs_own(error):
            # The import fails by it. The module may be imported again.
            finder.waiting[name] = hook
            raise
        # A file of ours is gone, say.
        _say.fail("hooks", "%s is left as it is: %s" % (name, _say.describe(error)))
    if not finder.waiting:
        _leave(finder)


def _leave(finder: "Any") -> None:
    """Take the finder off sys.meta_path, when nothing waits any more."""
    before = sys.meta_path
    # A program's own kind of list is left alone: there the finder stays, and answers None.
    if type(before) is not list:
        return
    # A new list, because another thread may be walking this one.
    sys.meta_path = after = [one for one in before if one is not finder]
    # What another thread has added to the old one meanwhile.
    known = [id(one) for one in (*after, finder)]
    after[:0] = [one for one in before if id(one) not in known]
