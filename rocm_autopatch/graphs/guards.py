"""Graphs by proof: Dynamo's guards decide whether a graph may be replayed.

The function is compiled by Dynamo with a backend of ours, which compiles nothing: it runs the
operations that Dynamo has recorded, with the kernels of eager mode, and what runs becomes a graph
as in the mode (``mode.py``). If the program has compiled the function already, its own backend
compiles the operations. Whatever else the result depends on, Dynamo guards, runs between the
graphs, or does not compile.

Each signature of arguments has a compile of its own, with static shapes. So Dynamo's limit of
recompiles is for what else changes, and what is dropped is dropped with its compile.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from rocm_autopatch import failure, startup
from rocm_autopatch.graphs import capture, mode, record
from rocm_autopatch.graphs.calls import GraphOptions
from rocm_autopatch.graphs.eviction import choose_evicted, choose_forgotten
from rocm_autopatch.graphs.graph_cache import WARMING, GraphCache
from rocm_autopatch.graphs.refusal import Refused

# Settings of Dynamo while it compiles for us, as far as this torch has them. With those that it has
# by default, its guards miss a hook that is registered later, other strides at the same address, a
# default of a function, and what numpy draws.
_CONFIG = {
    "skip_nnmodule_hook_guards": False,
    "guard_nn_modules": True,
    "skip_tensor_guards_with_matching_dict_tags": False,
    "skip_no_tensor_aliasing_guards_on_parameters": False,
    "skip_guards_on_constant_func_defaults": False,
    "assume_dunder_attributes_remain_unchanged": False,
    "use_recursive_dict_tags_for_guards": False,
    "use_numpy_random_stream": True,
}
if startup.release(torch.__version__) < (2, 5):
    # It is so by default from then on: modules are guarded like other objects.
    _CONFIG["inline_inbuilt_nn_modules"] = True
NOTHING = (
    "Dynamo compiled no part of it: it can't trace it, or it has compiled it anew too often "
    "(TORCH_LOGS=recompiles,graph_breaks says more)"
)
# So many characters of an error are told.
_LONGEST = 200
# Where no size may vary, a float must not become a tensor on the host either.
_STATIC = {"specialize_float": True}
# Errors of Dynamo that a program has asked for, and what says that it has skipped a frame.
_ASKED_FOR = ("RecompileError", "FailOnRecompileLimitHit", "RecompileLimitExceeded")
_SKIPPED = "ConvertFrameReturn"  # None, before torch 2.7.
# By this attribute, a backend says that a policy makes graphs of what it compiles.
_MODE = "_rocm_autopatch_mode"
# Dynamo's settings are the process's, so one thread at a time may have others.
_configuring = threading.RLock()
_numbers = itertools.count()


class _GuardState(threading.local):
    #: How many compiled regions this thread has run.
    regions = 0


_local = _GuardState()


@dataclass(frozen=True)
class CompileRequest:
    """How a function that the program gives is compiled for its graphs.

    *function* is what is compiled, and *backend* compiles what Dynamo has recorded of it; None: the
    kernels of eager mode run. *dynamic*, *fullgraph* and *guard_filter_fn* are those of
    ``torch.compile``.
    """

    function: Callable[..., object]
    backend: Callable[..., Callable[..., object]] | None = None
    dynamic: bool | None = False
    fullgraph: bool = False
    guard_filter_fn: Callable[..., object] | None = None


class CompiledSignature:
    """Calls with arguments that are alike: what is compiled for them, if anything is."""

    __slots__ = ("__weakref__", "calls", "compiled", "first", "refused", "regions", "used")

    def __init__(self, now: int) -> None:
        self.calls, self.first, self.used = 0, now, now
        self.refused: str | None = None
        self.compiled: Callable[..., object] | None = None
        self.regions: list[weakref.ref[GraphCache]] = []


class GuardedGraphs:
    """The graphs of one callable, made and chosen by Dynamo."""

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        options: GraphOptions,
        fallback: bool,
        guard_filter_fn: Callable[..., object] | None,
    ) -> None:
        self.row = record.new_row(name, "graphed")
        self.options = options
        self._fallback = fallback
        given = as_compiled(function)
        self._compile = CompileRequest(function) if given is None else given
        if guard_filter_fn is not None:
            self._compile = replace(self._compile, guard_filter_fn=guard_filter_fn)
        # What the program has compiled already is compiled at once, and never called itself.
        self._plain_calls = options.warmup - 1 if given is None else 0
        warmup = 1 if given is None else options.warmup
        self._of_regions = replace(options, warmup=warmup)
        self._pools = capture.CapturePools()
        self._lock = threading.RLock()
        self.signatures: dict[Hashable, CompiledSignature] = {}
        self._recent: tuple[Hashable, CompiledSignature | None] = (None, None)
        self._clock = 0
        # Dynamo keeps what it has compiled with the program's code, which may live for ever.
        weakref.finalize(self, _clear_entries, self.signatures).atexit = False

    def find_key(
        self, settings: tuple[object, ...], structure: Hashable, shapes: tuple[object, ...]
    ) -> Hashable:
        """What has a compile of its own. Where the program compiles, that is torch's decision."""
        return (settings, structure, shapes) if self._compile.dynamic is False else settings

    def run(
        self,
        key: Any,
        structure: Hashable,
        leaves: list[object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """The result for a call with what :meth:`find_key` has returned."""
        recent, entry = self._recent
        if entry is None or key != recent:
            with self._lock:
                entry = self.signatures.get(key)
                if entry is None:
                    self._forget_entries()
                    entry = self.signatures[key] = CompiledSignature(self._clock)
                self._recent = key, entry
        self._clock += 1
        entry.used = self._clock
        compiled = entry.compiled
        if compiled is None or entry.refused:
            why = self._why_without(entry)
            compiled = entry.compiled
            if why or compiled is None:
                # Another thread may have dropped it.
                record.count_plain_call(self.row, why or WARMING)
                return self._compile.function(*args, **kwargs)
        before = _local.regions
        result = compiled(*args, **kwargs)
        if _local.regions == before:
            record.count_plain_call(self.row, entry.refused or NOTHING)
        return result

    def _why_without(self, entry: CompiledSignature) -> str | None:
        """Compile for an entry that has no compile, or say why not yet, or not at all."""
        with self._lock:
            entry.calls += 1
            if entry.refused:
                return entry.refused
            if entry.calls <= self._plain_calls:
                return WARMING
            if entry.compiled is None:
                if not self._make_room(entry):
                    limit = self.options.limit
                    return f"the limit of {limit} graphs is reached, and all were used recently"
                entry.compiled = self._compiled_function(entry)
            return None

    def _compiled_function(self, entry: CompiledSignature) -> Callable[..., object]:
        how = self._compile
        backend = _RecordingBackend(
            how.backend, self.row, self._of_regions, self._pools, entry.regions
        )
        optional = {"guard_filter_fn": how.guard_filter_fn} if how.guard_filter_fn else {}
        context = torch._dynamo.optimize(
            backend, nopython=how.fullgraph, dynamic=how.dynamic, **optional
        )
        callback = getattr(context, "callback", None)
        if callback is not None:
            config = {**_CONFIG, **_STATIC} if how.dynamic is False else _CONFIG
            context.callback = _FrameCallback(
                callback, weakref.ref(entry), self.row, self._fallback, how.fullgraph, config
            )
        compiled: Callable[..., object] = context(_own_code(how.function))
        return compiled

    def _make_room(self, entry: CompiledSignature) -> bool:
        """Make room for one more compile. Returns whether there is some now."""
        evicted = choose_evicted(self.signatures, entry, self.options.limit, _is_compiled)
        for key in evicted or ():
            self._drop_entry(key)
            self.row["dropped"] += 1
        return evicted is not None

    def _forget_entries(self) -> None:
        """Limit the number of signatures without a compile."""
        for key in choose_forgotten(self.signatures, self.options.limit, _is_compiled):
            self._drop_entry(key)

    def _drop_entry(self, key: Hashable) -> None:
        _clear_entries({key: self.signatures.pop(key)})
        self._recent = (None, None)

    def clear(self) -> None:
        """Drop all graphs, and everything known about signatures."""
        with self._lock:
            for key in [*self.signatures]:
                self._drop_entry(key)


def _is_compiled(entry: CompiledSignature) -> bool:
    return entry.compiled is not None


def _clear_entries(entries: dict[Hashable, CompiledSignature]) -> None:
    for entry in [*entries.values()]:
        entry.compiled = None
        for reference in entry.regions:
            graphs = reference()
            if graphs is not None:
                graphs.clear()


class _RecordingBackend:
    """What Dynamo gives what it has recorded. It refers to nothing that refers to the compile."""

    def __init__(
        self,
        inner: Callable[..., Callable[..., object]] | None,
        row: record.CallableRow,
        options: GraphOptions,
        pools: capture.CapturePools,
        regions: list[weakref.ref[GraphCache]],
    ) -> None:
        self._inner, self._row, self._options = inner, row, options
        self._pools, self._regions = pools, regions
        # Dynamo's errors say it.
        self.__name__ = "graphed"

    def __call__(
        self,
        model: torch.fx.GraphModule,
        inputs: Sequence[object],
        *args: object,
        **kwargs: object,
    ) -> Callable[..., object]:
        def compile_one(
            part: torch.fx.GraphModule, given: Sequence[object]
        ) -> Callable[..., object]:
            inner = self._inner
            return part.forward if inner is None else inner(part, given, *args, **kwargs)

        owner = mode.RegionOwner(self._row, self._options, self._pools, self._regions)
        run = mode.compile_regions(model, inputs, compile_one, "graphed", False, owner)

        def call(*given: object) -> object:
            _local.regions += 1
            return run(*given)

        return call


class _FrameCallback:
    """Dynamo's callback for frames, with our settings, and errors as reasons for plain calls."""

    def __init__(
        self,
        callback: Callable[..., object],
        entry: weakref.ref[CompiledSignature],
        row: record.CallableRow,
        fallback: bool,
        fullgraph: bool,
        config: dict[str, bool],
    ) -> None:
        # Dynamo finds the backend by these. A __getattr__ would be a frame that it looks at.
        self.__dict__.update(vars(callback))
        self._callback, self._entry = callback, entry
        self._row, self._fallback, self._config = row, fallback, config
        # Then the program wants the error itself.
        self._raises = fullgraph

    def __call__(self, *args: object, **kwargs: object) -> object:
        try:
            with _with_config(self._config):
                return self._callback(*args, **kwargs)
        except Exception as error:
            entry = self._entry()
            asked_for = self._raises or type(error).__name__ in _ASKED_FOR
            if entry is None or asked_for or failure.programs_own(error):
                raise
            said = " ".join(failure.describe(error).split())[:_LONGEST]
            why = f"Dynamo can't compile it: {said}"
            if not self._fallback:
                raise Refused(why) from error
            entry.refused = why
            record.record_refusal(self._row, "", why)
            kind = getattr(importlib.import_module("torch._dynamo.types"), _SKIPPED, None)
            return kind() if kind is not None else None


@contextmanager
def _with_config(wanted: dict[str, bool]) -> Iterator[None]:
    config = importlib.import_module("torch._dynamo.config")
    known = {name: value for name, value in wanted.items() if getattr(config, name, value) != value}
    with _configuring, config.patch(known):
        yield


def _own_code(function: Callable[..., object]) -> Callable[..., object]:
    """A function that calls *function*, with code of its own.

    Dynamo keeps with the code what it has compiled, and what it knows of sizes by the code's name.
    """

    def call(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    code = call.__code__ = call.__code__.replace(co_name=f"graphed_{next(_numbers)}")
    # What it keeps refers to the code itself, so both would live for ever.
    weakref.finalize(call, torch._C._dynamo.eval_frame.reset_code, code).atexit = False
    return call


def as_compiled(function: object) -> CompileRequest | None:
    """What the program has compiled as *function*, and how; None if it has compiled nothing."""
    context: Any
    if isinstance(function, torch.nn.Module):
        context = getattr(function, "dynamo_ctx", None)
        original = getattr(function, "_orig_mod", None)
        own = getattr(function, "_compiled_call_impl", None)
        if context is None and own is not None:
            return as_compiled(own)
    else:
        original = getattr(function, "_torchdynamo_orig_callable", None)
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        cells = dict(zip(names, getattr(function, "__closure__", None) or ()))
        context = cells["self"].cell_contents if "self" in cells else None
    if original is None or not hasattr(context, "callback"):
        return None
    outer = callback = context.callback
    kinds = []
    while callback is not None:
        kinds.append(type(callback).__name__)
        backend, callback = callback, _within_callback(callback)
    if _MODE in getattr(backend, "__dict__", {}):
        # Its own graphs would stand in the way of these.
        backend = copy.copy(backend)
        delattr(backend, _MODE)
    hooks = getattr(outer, "hooks", None)
    return CompileRequest(
        original,
        backend,
        getattr(context, "_dynamic", None),
        # From torch 2.9 on it says so, and before that its callback raises an error at a break.
        getattr(context, "fullgraph", "ConvertFrame" not in kinds),
        getattr(hooks, "guard_filter_fn", None),
    )


def _within_callback(callback: object) -> Any:
    # Torch 2.9 has another name for it.
    older = getattr(callback, "_torchdynamo_orig_callable", None)
    return getattr(callback, "_torchdynamo_orig_backend", older)
