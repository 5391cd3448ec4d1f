"""``graphed``: a model or function whose calls become replays of captured graphs."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils._device import DeviceContext

from rocm_autopatch import startup
from rocm_autopatch.graphs import record, soundness
from rocm_autopatch.graphs.buckets import Bucket, Buckets
from rocm_autopatch.graphs.calls import GraphOptions
from rocm_autopatch.graphs.capture import is_capturing
from rocm_autopatch.graphs.guards import GuardedGraphs
from rocm_autopatch.graphs.promise import PromisedGraphs
from rocm_autopatch.graphs.pytrees import (
    FLAT,
    TENSORS,
    SignatureLookup,
    flatten_value,
    tensors_of,
    unflatten_call,
)
from rocm_autopatch.graphs.refusal import GRADIENTS, Refused
from rocm_autopatch.graphs.settings import current_settings

# Each call uses these, so they are looked up once. Dynamo knows the first one by this name, too.
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.maybe_current_level
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled
OUTPUTS = ("clone", "alias")
GUARDS = ("all", "none")
CAPTURING = "another capture is under way and records the function's kernels"
# From torch 2.8 on, a program can choose among the guards.
_FILTERS = startup.release(torch.__version__) >= (2, 8)


class GraphedFunction:
    """A callable that runs *function* as a graph if possible. :func:`graphed` makes it.

    All other attributes are the function's. So those of a wrapped model can be read and set.
    """

    function: Callable[..., Any]
    _graphs: GuardedGraphs | PromisedGraphs
    _signatures: SignatureLookup
    _buckets: Buckets | None
    _given: tuple[object, ...]
    _fallback: bool
    _never: str | None

    def __init__(
        self,
        function: Callable[..., Any],
        options: GraphOptions,
        buckets: Sequence[Bucket],
        fallback: bool,
        name: str,
        guards: str,
        guard_filter_fn: Callable[..., object] | None,
    ) -> None:
        plain, name = _plain_twin(function), name or _function_name(function)
        graphs: GuardedGraphs | PromisedGraphs
        if guards == "none":
            graphs = PromisedGraphs(function, name, options)
        else:
            graphs = GuardedGraphs(function, name, options, fallback, guard_filter_fn)
        parameters = inspect.signature(plain).parameters if buckets else {}
        self.__dict__.update(
            function=function,
            _graphs=graphs,
            _signatures=SignatureLookup(strict=guards == "none"),
            _buckets=Buckets(buckets, parameters, _function_name(function)) if buckets else None,
            _given=(options, tuple(buckets), fallback, name, guards, guard_filter_fn),
            _fallback=fallback,
            _never=_objection_to(plain),
        )
        functools.update_wrapper(self, plain, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # If a compiled function makes this call, Dynamo traces it and sees only the function.
        if _is_compiling():
            return self.function(*args, **kwargs)
        try:
            if self._never or is_capturing():
                raise Refused(self._never or CAPTURING)
            settings = _settings_here()
            structure: Hashable
            shapes = finish = None
            if not kwargs and self._buckets is None:
                shapes = self._signatures.again(args)
            if shapes is not None or (not kwargs and TENSORS.issuperset(map(type, args))):
                # Most calls are like this: there is nothing to flatten.
                structure, leaves = FLAT, list(args)
            else:
                leaves = []
                structure = flatten_value((args, kwargs), leaves)
            if self._buckets is not None:
                finish = self._buckets.pad_arguments(args, kwargs, leaves)
                args, kwargs = unflatten_call(structure, leaves)
            if shapes is None:
                shapes = self._signatures.of(leaves)
            if _grad_enabled() and any(one.requires_grad for one in tensors_of(leaves)):
                raise Refused(GRADIENTS)
            key = self._graphs.find_key(settings, structure, shapes)
        except Refused as refused:
            if not self._fallback:
                raise
            record.count_plain_call(self._graphs.row, str(refused))
            return self.function(*args, **kwargs)
        result = self._graphs.run(key, structure, leaves, args, kwargs)
        return result if finish is None else finish(result)

    def __getattr__(self, name: str) -> Any:
        if "function" not in self.__dict__:
            raise AttributeError(name)  # It is being unpickled.
        return getattr(self.function, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__ or name.startswith("__"):
            self.__dict__[name] = value
            return
        try:
            setattr(self.function, name, value)
        except AttributeError:
            # A bound method has none. So nothing that it does depends on this.
            self.__dict__[name] = value

    def __reduce__(self) -> tuple[Callable[..., GraphedFunction], tuple[object, ...]]:
        # A copy has its own graphs.
        function, owner = self.function, getattr(self.function, "__self__", None)
        name = getattr(function, "__name__", "")
        method = getattr(type(owner), name, None)
        if method is not None and method is getattr(function, "__func__", None):
            # The owner may have this very object as its attribute of that name.
            return _of_method, (owner, name, *self._given)
        return GraphedFunction, (function, *self._given)

    @property
    def row(self) -> record.CallableRow:
        """This callable's row of ``rocm_autopatch.status()["graphs"]``."""
        return record.finished_row(self._graphs.row)

    def clear(self) -> None:
        """Drop all graphs and free their memory. Later calls capture anew."""
        self._graphs.clear()


def _of_method(owner: object, name: str, *given: Any) -> GraphedFunction:
    return GraphedFunction(types.MethodType(getattr(type(owner), name), owner), *given)


def graphed(
    function: Callable[..., Any] | None = None,
    *,
    limit: int = 16,
    warmup: int = 2,
    outputs: str = "clone",
    verify: bool | None = None,
    check: bool | None = None,
    buckets: Sequence[Bucket] = (),
    fallback: bool = True,
    name: str = "",
    guards: str = "all",
    guard_filter_fn: Callable[..., object] | None = None,
) -> Any:
    """Replay HIP or CUDA graphs for the calls of a function. Also a decorator.

    What decides whether a graph may be replayed is all that torch.compile's tracer guards: whatever
    the result depends on. What can't be compiled runs between the graphs in each call. With
    ``guards="none"`` the whole call is one graph, and you promise that nothing changes but the
    content of tensors: docs/graphs.md lists what is not looked at.

    Args:
        function: a module or any callable, compiled or not. What is not compiled keeps the kernels
            of eager mode. Compile with ``mode="default"``.
        limit: how many signatures of arguments have graphs. A new one replaces the one that was
            used least recently, if that was not used since the new one first appeared.
        warmup: how many calls of a signature run without a graph before the capture, at least 1.
            The last of them is observed.
        outputs: with ``"clone"``, each call returns tensors of its own. With ``"alias"``, the
            tensors are the graph's. Those that a caller still holds at the next call are then
            moved to memory of their own. A view can't be moved, and raises Refused.
        verify: compare the first replay with one more plain call, if the observed call wrote to no
            weight or buffer. This executes the graph's operations once more; with
            ``guards="none"``, the function. None: only on ROCm, where illegal work in a capture may
            go unnoticed (pytorch#155684).
        check: compare some later replays with plain calls, too, if the observed call wrote to no
            weight or buffer. A difference ends all graphs of the process. None: as the patch
            ``graph_check`` of the policy says, and without it only on ROCm.
        buckets: dimensions that are padded.
        fallback: if a call can't run as a graph, call the function itself. False: raise Refused for
            arguments that no graph can have, and for what Dynamo raises.
        name: its name on the record.
        guards: ``"all"`` or ``"none"``.
        guard_filter_fn: which of Dynamo's guards are kept, as ``torch.compile`` takes it in its
            options, from torch 2.8 on.

    Raises ValueError for a wrong option, and for a bucket of an argument that does not exist.
    """
    if outputs not in OUTPUTS:
        raise ValueError(f"outputs={outputs!r} is not one of {', '.join(OUTPUTS)}")
    if limit < 1 or warmup < 1:
        raise ValueError("limit and warmup must be at least 1")
    if buckets and outputs != "clone":
        raise ValueError('buckets cut the results, so they need outputs="clone"')
    if guards not in GUARDS:
        raise ValueError(f"guards={guards!r} is not one of {', '.join(GUARDS)}")
    if guard_filter_fn is not None and (guards == "none" or not _FILTERS):
        why = (
            'guards="none" has none' if guards == "none" else f"torch {torch.__version__} has none"
        )
        raise ValueError(f"guard_filter_fn chooses among Dynamo's guards, and {why}")
    verify = bool(torch.version.hip) if verify is None else verify
    check = soundness.checks_by_default() if check is None else check
    options = GraphOptions(limit, warmup, outputs == "clone", verify, check)

    def wrap(wrapped: Callable[..., Any]) -> GraphedFunction:
        return GraphedFunction(wrapped, options, buckets, fallback, name, guards, guard_filter_fn)

    return wrap if function is None else wrap(function)


def _settings_here() -> tuple[Hashable, ...]:
    """Torch's settings and modes in this thread. Raises Refused if no call can be a graph now."""
    settings = current_settings()
    if _function_modes() or _dispatch_modes() or _transforms() or _tracing():
        settings += _default_devices()
    return settings


def _default_devices() -> tuple[str, ...]:
    """Where tensors are made if nobody says it. Raises Refused if no call can be a graph now."""
    if _tracing() is not None:
        raise Refused("torch.jit traces this call, and would not see what a replay does")
    if _transforms() is not None:
        raise Refused("a transform such as torch.func.vmap is active")
    modes = [torch._C._get_function_stack_at(number) for number in range(_function_modes())]
    if _dispatch_modes() or any(type(one) is not DeviceContext for one in modes):
        raise Refused(
            "a torch dispatch mode or function mode is active, which needs to see each operation"
        )
    return tuple(str(one.device) for one in modes)


def _objection_to(plain: object) -> str | None:
    """Why no call of a function can be a graph, whatever its arguments; None if one may."""
    kinds = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    if any(is_of_kind(plain) for is_of_kind in kinds):
        return "it is a generator or a coroutine: it does its work after the call"
    return None


def _plain_twin(function: Callable[..., object]) -> Callable[..., object]:
    """What has the signature and the name: a module's forward, also of a compiled module."""
    original = getattr(function, "_orig_mod", function)
    return original.forward if isinstance(original, torch.nn.Module) else original


def _function_name(function: object) -> str:
    original = getattr(function, "_orig_mod", function)
    found = original if hasattr(original, "__qualname__") else type(original)
    return f"{found.__module__}.{found.__qualname__}"
