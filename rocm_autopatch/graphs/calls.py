"""One call, and what differs between calls of inference, of a forward and of a backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.borrowed_outputs import AliasedInput, DonatedInputs
from rocm_autopatch.graphs.buffers import CopiedInputs, GraphOutputs
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.pytrees import tensors_of
from rocm_autopatch.graphs.states import CapturedState, ReplayResults, SignatureEntry

# A call without a graph: a function of its structure and its leaves.
Function = Callable[[Hashable, list[object]], object]


@dataclass
class GraphOptions:
    """How graphs are made. ``wrapper.graphed`` describes each field."""

    limit: int
    warmup: int
    clone: bool
    verify: bool
    check: bool = False


@dataclass(frozen=True)
class GraphedCall:
    """One call: its structure and leaves, and the device if no leaf tells it."""

    structure: Hashable
    leaves: list[Any]
    default_device: torch.device | None = None

    @functools.cached_property
    def device(self) -> torch.device | None:
        """The device of its tensors; None if it has none. A number may be on the host."""
        tensors = sorted(tensors_of(self.leaves), key=lambda one: not one.dim())
        return tensors[0].device if tensors else self.default_device

    def objection(self, but: Container[int] = ()) -> str | None:
        """Why no call with these leaves can be a graph; None if one may.

        Where those with the indices *but* are does not matter.
        """
        if self.device is None:
            return "no argument is a tensor, so the device is unknown"
        given = (leaf for index, leaf in enumerate(self.leaves) if index not in but)
        for device in {tensor.device for tensor in tensors_of(given)}:
            # A kernel may take the value of a CPU scalar at the capture, for all replays.
            if device.type != capture.CapturePool.kind:
                return f"an argument is on {device}, and a graph can only read the GPU's memory"
            if device != self.device:
                return f"an argument is on {device}, but another tensor is on {self.device}"
        return None


class CallStrategy:
    """What a cache of graphs does not know of the function whose calls it replays.

    There is one each for inference, for a forward and for a backward. What is here holds for a
    function whose graphs overwrite nothing but their own memory. Indices are those of leaves.
    """

    #: Whether arguments that a call changes in place may be copied back.
    copies_back = True
    #: Whether calls are those of a training step: what one saves is in use until its backward.
    trains = False
    #: Whether a signature may have several graphs, because results of one stay in use.
    goes_beside = False
    #: Whether a call that finds results in use is captured anew, where no result is overwritten.
    captures_again = False
    #: Whether results that share memory are views for autograd. Those of compiled code are not.
    gives_views = True
    #: Whether there has been a graph.
    has_graphs = False
    #: Why a call has no graph because of where its leaves are.
    misplaced = ""
    #: The device of calls without a tensor, if that is known.
    device: torch.device | None = None
    #: Compiles the function anew, with a cut around an op. Returns False if it has done so before.
    recompile: Callable[[Hashable], bool] | None = None

    def __init__(self, function: Function) -> None:
        #: A capture calls it as it is. It refers to no graph, so that graphs don't keep each other.
        self.function = function

    def call_plainly(self, structure: Hashable, leaves: list[object]) -> object:
        """Call the function, not in a capture. Nobody needs the list of leaves any more."""
        return self.function(structure, leaves)

    def call_before_capture(self, call: GraphedCall, leaves: list[object]) -> object:
        """The same before there is a graph."""
        run = functools.partial(self.call_plainly, call.structure, leaves)
        return self.run_without_graph(call, run)

    def call_again(self, call: GraphedCall, prepare: Callable[[], None]) -> object:
        """The same, if it is not the last call with these leaves, and after *prepare*."""
        prepare()
        return self.call_plainly(call.structure, list(call.leaves))

    def run_without_graph(self, call: GraphedCall, run: Callable[[], object]) -> object:
        """Call *run* in memory of first calls, until there is a graph."""
        return run() if self.has_graphs else self.run_as_first_call(call, run)

    def run_as_first_call(self, call: GraphedCall, run: Callable[[], object]) -> object:
        """Call *run* in memory of first calls, if there is some for this function."""
        return run()

    def find_memory(self, pools: capture.CapturePools) -> GraphMemory:
        """What a graph writes to first, if it overwrites nothing of others."""
        return pools.memory

    def find_other_memory(self, memory: GraphMemory) -> GraphMemory:
        """What a graph writes to where others' results in *memory* are in its way."""
        return GraphMemory()

    def user_of_memory(self, call: GraphedCall) -> Hashable:
        """What calls of the same function with the same weights have in common."""
        # A program may move a weight to another address for each call, but not to another object.
        weights = (one for one in call.leaves if isinstance(one, torch.nn.Parameter))
        return id(self), next(map(id, weights), None)

    def are_placed(self, leaves: list[object]) -> bool:
        """Whether a call may get a graph for where its leaves are, or is *misplaced*."""
        return True

    def indices_on_host(self) -> Collection[int]:
        """The arguments that are numbers on the host, and on the device if there are graphs."""
        return ()

    def may_move_result(self, index: int) -> bool:
        """Whether a number of the result may be on the device in a replay, and is on the host now.

        Attention gives the seed and the offset of its dropout like this (pytorch#102038).
        """
        return False

    def find_observable(self, indices: list[int]) -> list[int]:
        """Of what is at a fixed place, what a call might write to."""
        return indices

    def find_donated(self, leaves: list[object]) -> DonatedInputs | None:
        """What the graph for these leaves may overwrite."""
        return None

    def find_spoilt(self, leaves: list[object], donated: DonatedInputs | None) -> set[int]:
        """The indices of leaves that a plain call may overwrite without a trace."""
        return set()

    def find_inside(self, leaves: list[object]) -> set[int]:
        """The leaves whose copies may serve the graph as memory, if it may overwrite what it reads.

        In the capture their content is undefined.
        """
        return set()

    def find_aliased(self, leaves: list[object]) -> list[tuple[int, AliasedInput]]:
        """The arguments that lie where another graph has written them, by index."""
        return []

    def make_outputs(
        self,
        result: Any,
        inputs: CopiedInputs,
        places: dict[int, torch.Tensor],
        clone: bool,
        device: torch.device,
        seen: SignatureEntry,
    ) -> ReplayResults:
        """How the graph's results get to the caller.

        *places* has by the index of a leaf what is not copied for the graph. *seen* knows which
        results the program was seen to keep until the next call.
        """
        taken = [*inputs.tensors, *places.values()]
        lend = not (seen.keeps or seen.kept)
        return GraphOutputs(result, clone, taken, device, lend, self.gives_views)

    def find_movable(self) -> Container[int]:
        """The memories of results that are moved at a replay if the program keeps them."""
        return ()

    def own_outputs(self, captured: CapturedState) -> None:
        """A graph was captured, and not replayed yet."""

    def note_capture(self, signature: SignatureEntry, captured: CapturedState) -> None:
        """Calls with this signature have a graph now."""
        self.has_graphs = True

    def note_drop(self, captured: CapturedState) -> None:
        """A graph is about to be dropped."""

    def retries(self, error: Exception) -> bool:
        """Whether the next call is captured nevertheless, in another way."""
        return False

    def is_in_the_way(self, captured: CapturedState) -> bool:
        """Whether a graph that overwrites what it reads has to go."""
        return False


class InferenceCalls(CallStrategy):
    """Calls of a function that needs no gradients.

    With *pools*, calls before a capture have memory of their own: what is called is compiled
    then, and does nothing but launch kernels. *device* is that of calls without a tensor.
    """

    captures_again = True

    def __init__(
        self,
        function: Function,
        pools: capture.CapturePools | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(function)
        self._pools, self.device, self.gives_views = pools, device, pools is None

    def run_as_first_call(self, call: GraphedCall, run: Callable[[], object]) -> object:
        if self._pools is None:
            return run()
        return self._pools.run_as_first_call(call.device, run, self.user_of_memory(call))
