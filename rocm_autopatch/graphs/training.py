"""Graphs for training in the mode: forward and backward of each compiled region.

AOTAutograd divides what ``torch.compile`` compiles into a forward and a backward, and Inductor
compiles each of them to a function of a list of tensors. We put graphs in the place of these two
functions. All else stays torch's own: which values are saved, the checks whether they were changed,
hooks, how gradients are added up, errors of a second backward.

The forward's graph hands out the values that it saves where they are. So the backward's graph finds
them at the same addresses at each step. What the program gets is handed out where it is, too, and
the graphs of the next region read it there. Results that it was seen to keep are copied.
When saved values are still in use at the next forward (two forwards before a backward), this
forward has one more graph, from the second time on. The backward's graph is the last to
read them, and uses their memory for other values then.

torch calls ``CompiledFxGraph.post_compile`` for each compiled graph, also for one from a cache,
from 2.6 on. There we take the compiled function.
"""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from rocm_autopatch import failure, startup
from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.graph_cache import GraphCache
from rocm_autopatch.graphs.layout import has_memory, storage_key
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.passes import (
    NO_FORWARD,
    BackwardPass,
    ForwardPass,
    are_waiting,
    await_backward,
    end_waiting,
    find_waiting,
)
from rocm_autopatch.graphs.pytrees import TENSORS
from rocm_autopatch.graphs.refusal import Refused
from rocm_autopatch.graphs.states import CapturedState

_MODULE = "torch._inductor.output_code"
# A forward's graph saves its own copy of an argument, so that would change nothing of the program.
WRITES = "its backward changes a tensor in place: change it in the forward"
_OURS = "_rocm_autopatch"
# What this thread compiles at present.
_local = threading.local()
_installing = threading.Lock()


class CompiledGraph(Protocol):
    """What we use of torch's ``CompiledFxGraph``."""

    fx_kwargs: Mapping[str, Any]
    current_callable: Callable[[list[object]], object]
    #: The indices of the inputs that it writes to, and that are read after it.
    mutated_input_idxs: Collection[int]


class TrainingRegion:
    """The training graphs of one compiled region, with the name and the mode of its record.

    *recompile* is that of ``CallStrategy``.
    """

    def __init__(
        self,
        name: str,
        origin: str,
        pools: capture.CapturePools,
        recompile: Callable[[Hashable], bool] | None = None,
    ) -> None:
        self.name, self.origin, self.pools = name, origin, pools
        self.recompile = recompile
        #: Around what the compiled function is cut.
        self.cuts: Sequence[str] = ()
        # What its graphs write to, once a forward was captured.
        self._memory: GraphMemory | None = None
        self.forward: CompiledForward | None = None
        self._weights: list[weakref.ref[torch.nn.Parameter]] = []
        self._replaced = True

    def find_memory(self) -> GraphMemory:
        """What its forwards write to: memory of the step in which the first one is captured."""
        return self._memory or self.pools.training_memory()

    def add_forward(self, captured: CapturedState) -> None:
        """A forward was captured."""
        if self.pools.add_forward(captured.memory, captured) and self._memory is None:
            self._memory = captured.memory

    def gradients(self) -> Iterator[torch.Tensor]:
        """The gradients that the region's weights have."""
        for reference in self._weights:
            weight = reference()
            if weight is None:
                self._replaced = True
            elif weight.grad is not None:
                yield weight.grad

    def compiling(self) -> AbstractContextManager[None]:
        """What this thread compiles in the context belongs to the region.

        Raises Refused if this torch has no place to take it from.
        """
        _install_hooks()
        return self._while_current()

    @contextmanager
    def _while_current(self) -> Iterator[None]:
        before = getattr(_local, "region", None)
        _local.region = self
        try:
            yield
        finally:
            _local.region = before

    def run(self, compiled: Callable[..., object]) -> Callable[..., object]:
        """What to call instead of *compiled*, the result of the compile."""
        forward = self.forward
        if forward is None:
            startup.fail("graphs", f"{self.name} trains without graphs: torch offered no forward")
            return compiled

        def call(*args: object) -> object:
            result = compiled(*args)
            if not forward.calls.has_graphs:
                forward.returned(result, args)
                self._replaced = True
            if self._replaced:
                weights = [one for one in args if isinstance(one, torch.nn.Parameter)]
                self._weights = [weakref.ref(one) for one in weights]
                self._replaced = False
            return result

        return call

    def take(self, graph: CompiledGraph) -> None:
        """Put graphs in the place of what a ``CompiledFxGraph`` of a forward calls."""
        for other in find_waiting():
            # It is compiled anew, and nobody might call the old one any more. Other threads compile
            # the same function for themselves.
            if other.region.name == self.name and other.region.pools is self.pools:
                self.pools.first_calls.release_handles()
                capture.give_back()
        self.forward = CompiledForward(self, graph.current_callable, _find_fixed(graph))
        self.forward.calls.compile_id = _current_compile()
        graph.current_callable = self.forward


class _LastForward(threading.local):
    """Of the last plain call of a forward in this thread."""

    def __init__(self) -> None:
        #: By index each result that is no input, with its memory and its address.
        self.made: dict[int, tuple[int, int, weakref.ref[torch.Tensor]]] = {}
        #: The addresses of inputs that are results, and those of what stays where it is.
        self.passed: set[int] = set()
        self.fixed: set[int] = set()


class CompiledForward:
    """What is called as the compiled forward of a region: with a list, which it empties."""

    def __init__(
        self,
        region: TrainingRegion,
        compiled: Callable[[list[object]], object],
        fixed: Sequence[int],
    ) -> None:
        self.calls = ForwardPass(region, compiled, fixed)
        self.cache = self.calls.make_cache()
        self._last = _LastForward()

    def __call__(self, inputs: list[Any]) -> Any:
        if self.calls.has_graphs:
            return self.calls.run_list(inputs)
        # They may write gradients to where this forward writes. What others capture takes no lock.
        for backward in () if capture.is_capturing() else [*self.calls.backward_graphs]:
            backward.note_kept()
        given = {storage_key(leaf) for leaf in inputs if type(leaf) in TENSORS}
        stay = [inputs[index] for index in self.calls.fixed]
        last = self._last
        last.fixed = {one.data_ptr() for one in stay if type(one) in TENSORS}
        del stay
        result = self.calls.run_list(inputs)
        last.made = {
            index: (storage_key(leaf), leaf.data_ptr(), weakref.ref(leaf))
            for index, leaf in enumerate(result)
            if type(leaf) in TENSORS and storage_key(leaf) not in given
        }
        tensors = {index: leaf for index, leaf in enumerate(result) if type(leaf) in TENSORS}
        passed = {leaf.data_ptr() for index, leaf in tensors.items() if index not in last.made}
        last.passed = passed - last.fixed
        # A checkpoint ends the program's call here, once all is saved again that it needs.
        places = {place for _, place, _ in last.made.values()}
        self.calls.note_saved(places | last.passed, last.fixed)
        return result

    def returned(self, result: object, args: Sequence[object]) -> None:
        """Note which results of the last plain call the program has got: it may keep them."""
        made, self._last.made = self._last.made, {}
        tensors = [
            one
            for one in (*torch.utils._pytree.tree_leaves(result), *args)
            if isinstance(one, torch.Tensor) and has_memory(one)
        ]
        kept = {storage_key(one) for one in tensors}
        calls = self.calls
        calls.shown |= {index for index, (memory, _, _) in made.items() if memory in kept}
        # What an argument gets has a history, or is gone already.
        calls.same = {index for index, (_, _, leaf) in made.items() if _is_only_saved(leaf())}
        own = {address for memory, address, _ in made.values() if memory not in kept}
        calls.note_saved(own | self._last.passed, self._last.fixed)
        await_backward(calls)


class CompiledBackward:
    """What is called as a compiled backward.

    It is compiled at its first call, or found in a cache, each time as a part of the compile that
    has made its forward. Which of the forwards of this compile it belongs to, it sees at a call
    after this forward: by the addresses of the saved values. It looks again at its first call after
    a replay of the forward, which may hand out a copy of a value.
    """

    def __init__(
        self,
        compiled: Callable[[list[object]], object],
        writes: bool,
        slots: Sequence[int],
    ) -> None:
        self._compiled, self._writes, self._slots = compiled, writes, slots
        self._compile_id = _current_compile()
        # Its graphs, which live as long as a call uses them. Another thread may put others here.
        self._joined: tuple[BackwardPass, GraphCache] | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        joined = self._joined
        unknown = joined is None or not joined[0].forward.has_backward
        # What others capture takes none of our locks.
        if unknown and are_waiting() and not capture.is_capturing():
            joined = self._join_forward(inputs)
        if joined is None:
            return self._compiled(inputs)
        calls, forward = joined[0], joined[0].forward
        unfit = forward.unfit
        if not forward.has_graphs:
            if not (unfit or calls.are_saved(inputs)):
                unfit = NO_FORWARD
            # Other values may lie there when this call is over.
            forward.note_saved(set())
        return calls.run_list(inputs, unfit)

    def _join_forward(self, inputs: list[Any]) -> tuple[BackwardPass, GraphCache] | None:
        """Find the forward that has saved these inputs. Returns the graphs of its backward."""
        joined = self._joined
        # What has no element has no address.
        where = {
            index: one.data_ptr()
            for index, one in enumerate(inputs)
            if type(one) in TENSORS and one.numel()
        }

        def among(places: set[int]) -> list[int]:
            return [index for index, place in where.items() if place in places]

        # Two forwards may have saved an argument of both. Their weights differ.
        found = [
            (forward, among(forward.saved), among(forward.places))
            for forward in find_waiting()
            if forward.compile_id == self._compile_id
        ]
        found = [one for one in found if one[1]]
        if not found:
            return joined
        forward, saved, fixed = max(found, key=lambda one: (len(one[1]), len(one[2])))
        if joined is None or joined[0].forward is not forward:
            calls = BackwardPass(forward, self._compiled, fixed, saved, self._slots)
            joined = self._joined = calls, calls.make_cache()
        try:
            joined[0].note_forward(saved, fixed, inputs)
        except Refused:
            # The call itself says why.
            return joined
        if self._writes:
            forward.unfit = WRITES
        if forward.has_graphs:
            end_waiting(forward)
        return joined


def _find_fixed(graph: CompiledGraph) -> list[int]:
    """The indices of the weights of a forward, and of all that its backward gets of it."""
    return [int(index) for index in graph.fx_kwargs.get("static_input_idxs") or ()]


def _is_only_saved(leaf: torch.Tensor | None) -> bool:
    return leaf is not None and not leaf.requires_grad


def _current_compile() -> object:
    """What torch calls the compile that this thread is in. Its parts have the same one."""
    return torch._guards.CompileContext.current_compile_id()


def _install_hooks() -> None:
    """Have forwards offered to the region that this thread compiles, and all backwards taken."""
    with _installing:
        try:
            owner: Any = importlib.import_module(_MODULE).CompiledFxGraph
            original = owner.post_compile
        except (ImportError, AttributeError):
            raise Refused(
                f"gradients are needed, and torch {torch.__version__} has no place at which a "
                "forward and its backward can be captured (it has one from 2.6 on)"
            ) from None
        if hasattr(original, _OURS):
            return

        @functools.wraps(original)
        def post_compile(self: CompiledGraph, *args: object, **kwargs: object) -> object:
            result = original(self, *args, **kwargs)
            region: TrainingRegion | None = getattr(_local, "region", None)
            backward = self.fx_kwargs.get("is_backward")
            try:
                if backward:
                    writes = bool(self.mutated_input_idxs)
                    slots = _find_fixed(self)
                    self.current_callable = CompiledBackward(self.current_callable, writes, slots)
                elif region is not None:
                    region.take(self)
            except Exception as error:
                if failure.programs_own(error):
                    raise
                startup.fail(
                    "graphs", "a training step runs without graphs: " + failure.describe(error)
                )
            return result

        setattr(post_compile, _OURS, True)
        owner.post_compile = post_compile
