"""Graphs by promise (``graphed(function, guards="none")``): what is checked in each call.

The program promises that nothing changes but the content of tensors. What costs next to nothing is
looked at nevertheless: the signature of arguments, torch's settings, which parameters and buffers
the modules of the function have, where these lie, and the flags ``training``. docs/graphs.md has
the list of all that the promise covers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from operator import is_, itemgetter
from typing import Any

import torch

from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.calls import GraphOptions, InferenceCalls
from rocm_autopatch.graphs.graph_cache import GraphCache
from rocm_autopatch.graphs.layout import objection_to_layouts
from rocm_autopatch.graphs.pytrees import unflatten_call
from rocm_autopatch.graphs.refusal import GRADIENTS, Refused
from rocm_autopatch.graphs.states import SignatureEntry

# How many items of a container are looked at. A larger one is taken for data.
_LONGEST = 1000
_training = itemgetter("training")


class WatchedWeights:
    """The parameters, buffers and modules of a function, as far as they are found."""

    def __init__(self, function: Callable[..., object]) -> None:
        roots, loose = _reach_of(function)
        modules = [*dict.fromkeys(chain.from_iterable(root.modules() for root in roots))]
        tables: list[dict[str, Any]] = [
            table for one in modules for table in (one._parameters, one._buffers, one._modules)
        ]
        # Most are empty, and each call looks at them.
        self._tables = [table for table in tables if table]
        self._empty = [table for table in tables if not table]
        self._were = self._cache_entries()
        self._modes = [one.__dict__ for one in modules if "training" in one.__dict__]
        tensors = [one for one in self._were if isinstance(one, torch.Tensor)]
        self.tensors = [*{id(one): one for one in (*tensors, *loose)}.values()]
        #: Why no call can be a graph; None if one may.
        self.objection = objection_to_layouts(self.tensors)

    def _cache_entries(self) -> list[object]:
        return [*chain.from_iterable(map(dict.values, self._tables))]

    def are_the_same(self) -> bool:
        """Whether the modules still have the same parameters, buffers and submodules."""
        now = self._cache_entries()
        return (
            len(now) == len(self._were) and all(map(is_, now, self._were)) and not any(self._empty)
        )

    def training_flags(self) -> tuple[object, ...]:
        """Which modules are in training."""
        return tuple(map(_training, self._modes))

    def need_gradient(self) -> bool:
        """Whether any tensor here needs a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors)


class PromisedGraphs:
    """The graphs of one callable: one for each signature, of the whole call."""

    def __init__(self, function: Callable[..., object], name: str, options: GraphOptions) -> None:
        self._function = function
        self._make = functools.partial(
            GraphCache, name=name, origin="graphed", options=options, pools=capture.CapturePools()
        )
        # A model that is being copied or loaded is not complete before its first call.
        self._current: tuple[WatchedWeights | None, GraphCache] = (
            None,
            self._make(InferenceCalls(self._call)),
        )
        self.row = self._current[1].row

    def _call(self, structure: Hashable, leaves: list[object], count: int = 0) -> object:
        args, kwargs = unflatten_call(structure, leaves[count:])
        return self._function(*args, **kwargs)

    def find_key(
        self, settings: tuple[object, ...], structure: Hashable, shapes: tuple[object, ...]
    ) -> tuple[GraphCache, list[torch.Tensor], Hashable]:
        """The graphs and the weights for a call with this signature, and the key of its graph.

        Raises Refused if it needs gradients, or no call can be a graph.
        """
        weights, graphs = self._current
        if weights is None or not weights.are_the_same():
            graphs.clear()
            weights = WatchedWeights(self._function)
            count = len(weights.tensors)
            strategy = InferenceCalls(functools.partial(self._call, count=count))
            graphs = self._make(strategy, indices=range(count), row=self.row)
            self._current = weights, graphs
        if weights.objection:
            raise Refused(weights.objection)
        if torch.is_grad_enabled() and weights.need_gradient():
            raise Refused(GRADIENTS)
        return graphs, weights.tensors, (settings, structure, shapes, weights.training_flags())

    def run(
        self,
        key: Any,
        structure: Hashable,
        leaves: list[object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """The result for a call with what :meth:`find_key` has returned."""
        graphs, weights, signature = key
        return graphs.run_call(signature, structure, [*weights, *leaves])

    @property
    def signatures(self) -> Mapping[tuple[Hashable, tuple[int | None, ...]], SignatureEntry]:
        """What is known of calls, by key."""
        return self._current[1].signatures

    def clear(self) -> None:
        """Drop all graphs, and everything known about signatures."""
        self._current[1].clear()


def _reach_of(function: Callable[..., object]) -> tuple[list[torch.nn.Module], list[torch.Tensor]]:
    """The modules and the tensors that a callable refers to.

    They are searched in bound methods and their object's attributes, partials, decorators,
    closures, defaults, globals that a function's code names, and lists, tuples and dicts in these.
    """
    modules: dict[int, torch.nn.Module] = {}
    tensors: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    waiting: list[object] = [function]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            modules[id(value)] = value
        elif isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, (list, tuple)):
            waiting += value[:_LONGEST]
        elif isinstance(value, dict):
            waiting += islice(value.values(), _LONGEST)
        elif isinstance(value, functools.partial):
            waiting += (value.func, value.args, value.keywords)
        elif value is function or callable(value):
            waiting += _parts_within(value)
    return [*modules.values()], [*tensors.values()]


def _parts_within(value: object) -> Iterator[object]:
    if not hasattr(value, "__code__"):
        yield from list(getattr(value, "__dict__", {}).values())[:_LONGEST]
    instance = getattr(value, "__self__", None)
    if instance is not None:
        yield instance
        yield from list(getattr(instance, "__dict__", {}).values())[:_LONGEST]
    for name in ("__func__", "__wrapped__", "_torchdynamo_orig_callable"):
        yield getattr(value, name, None)
    code = getattr(value, "__code__", None)
    # Functions of torch are left out: their globals are torch itself.
    if code is None or str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
        return
    yield getattr(value, "__defaults__", None) or ()
    yield getattr(value, "__kwdefaults__", None) or {}
    for cell in getattr(value, "__closure__", None) or ():
        with suppress(ValueError):  # The variable is not assigned yet.
            yield cell.cell_contents
    names = getattr(value, "__globals__", {})
    for name in code.co_names:
        found = names.get(name)
        # Of the globals, only those that hold tensors, and functions of the same module.
        if isinstance(found, (torch.nn.Module, torch.Tensor)) or (
            hasattr(found, "__code__") and names is getattr(found, "__globals__", None)
        ):
            yield found
