"""What is known of the calls with one signature: four states, and how one follows another.

::

    Warming --> Observed --> Captured
       ^  |       |  ^  |      |   |
       |  |       |  |  |      |   |
       +--|-------+  +--|------+   |
          v             v          v
       Rejected <-------+----------+

- *Warming* to *Observed*: a plain call was observed, and nothing stands in the way of a capture.
- *Observed* to *Captured*: the next call was captured. Its replay is that call.
- *Observed* to *Observed*: the capture has shown more, and the next call is captured instead.
- *Observed* to *Warming*: what stood in the way of the capture may pass. The next call is observed.
- *Captured* to *Observed*: the graph was dropped.
- any to *Rejected*: no such call has a graph any more.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from rocm_autopatch.graphs.borrowed_outputs import AliasedInput, DonatedInputs
from rocm_autopatch.graphs.buffers import CopiedInputs
from rocm_autopatch.graphs.layout import has_memory
from rocm_autopatch.graphs.memory import GraphMemory, LiveOutputs
from rocm_autopatch.graphs.record import GraphRow
from rocm_autopatch.graphs.write_back import InPlaceWriteBack

if TYPE_CHECKING:
    from rocm_autopatch.graphs.capture import CapturePool

_leaves = torch.utils._pytree.tree_leaves
# Within so many replays, what has been in the way once is seen again.
_SOON = 20


class ReplayResults(LiveOutputs, Protocol):
    """How a graph's results get to a caller: ``GraphOutputs`` or ``BorrowedOutputs``."""

    #: The flat results where the graph writes them. ``BorrowedOutputs`` has None for those that lie
    #: in an argument or a weight.
    leaves: list[Any]

    @property
    def lends(self) -> bool:
        """Whether callers get tensors of the graph, and no copies."""

    def resized(self) -> str | None:
        """Why the graph must not be replayed any more; None if it may."""

    def take(self, leaves: Sequence[Any]) -> object:
        """The result of the last replay, which was a call with *leaves*."""

    def count_owners(self, given: Sequence[torch.Tensor]) -> None:
        """Note how many references each result's memory has while no caller holds one.

        *given* are the graph's own copies of its arguments.
        """


@dataclass(frozen=True)
class WarmingState:
    """Calls are plain ones until one was observed."""


@dataclass(frozen=True)
class ObservedState:
    """A plain call was observed. The next call is captured."""

    pool: CapturePool
    #: Whether the call wrote to no weight or buffer, and whether it drew random numbers.
    is_pure: bool
    has_drawn: bool
    #: The indices of what is at a fixed place and the call wrote to. The tensors themselves would
    #: stay alive here: a cache for each prompt that a program has made one for.
    written: list[int]
    #: The indices of arguments that it wrote to, which are copied back.
    changes: list[int]
    #: What in its result is no tensor.
    constants: list[tuple[type, str]]
    #: The numbers in its result that were on another device than the graph's, by their index.
    hosted: dict[int, torch.device]
    #: The bytes of its result.
    result_bytes: int = 0
    #: For how many bytes of its result a capture takes one piece of memory.
    side_by_side: int = 0


@dataclass
class CapturedState:
    """There is a graph, and calls are replays of it."""

    observed: ObservedState
    graph: Callable[[], None]
    inputs: CopiedInputs
    outputs: ReplayResults
    #: What it writes to, and the place of its capture in the order of all.
    memory: GraphMemory
    order: int
    write_back: InPlaceWriteBack | None
    #: Where the memories lie that it writes to, and that are at a fixed place.
    extents: list[tuple[int, int]]
    #: Arguments that other graphs have made, by index, and those that it overwrites.
    aliased: list[tuple[int, AliasedInput]]
    donated: DonatedInputs | None
    #: Memory that it reads and that nothing of the above owns, as weak references.
    borrowed: list[StorageWeakRef] = field(default_factory=list)
    #: Its row of the report, which it gets at last.
    row: GraphRow = field(init=False)
    #: The number of the next replay that is compared with a plain call; 0 if none is.
    next_check: int = 0
    #: The structure of its calls, if replays are compared.
    structure: Hashable = None
    #: How many calls in a row have found results in use, and how many in all.
    calls_in_use: int = 0
    calls_held: int = 0
    #: How many replays there were when results of other graphs were last in its way.
    met: int = -_SOON

    def is_met_again(self) -> bool:
        """Note that results of other graphs are in its way. Returns whether they were so before.

        What happens once in many steps costs less by plain calls than by memory of its own.
        """
        before, self.met = self.met, self.row["replays"]
        return self.met - before < _SOON

    def release(self) -> None:
        """Let go of the graph and all memory. Others may still hold this object, and look at it."""
        for name in {*vars(self)} - {"observed", "row"}:
            delattr(self, name)


@dataclass(frozen=True)
class RejectedState:
    """Such calls have no graph, and *why*."""

    why: str


State = Union[WarmingState, ObservedState, CapturedState, RejectedState]
_FOLLOWS: dict[type, tuple[type, ...]] = {
    WarmingState: (ObservedState, RejectedState),
    ObservedState: (ObservedState, CapturedState, WarmingState, RejectedState),
    CapturedState: (ObservedState, RejectedState),
    RejectedState: (RejectedState,),
}


class SignatureEntry:
    """Calls that share a graph: those with equal arguments but for the content of tensors.

    *indices* are those of the leaves at a fixed place, *places* the addresses that a graph uses,
    None for what is copied. *first* and *used* are numbers of calls: the first and the last one.
    """

    __slots__ = (
        "busy",
        "calls",
        "copies_arguments",
        "disturbed",
        "first",
        "given",
        "indices",
        "keeps",
        "kept",
        "learned",
        "places",
        "recaptured",
        "state",
        "tries",
        "used",
    )

    def __init__(self, indices: list[int], places: list[int | None], first: int) -> None:
        self.indices, self.places = indices, places
        self.first = self.used = first
        # How many calls there were, how many captures failed or found something in use, and how
        # many observed calls were disturbed by another thread.
        self.calls = self.tries = self.busy = self.disturbed = 0
        #: How many of the calls were others' with the same code.
        self.learned = 0
        self.state: State = WarmingState()
        #: Whether results have to be copied, and the indices of those that the program had still
        #: kept when the last call without a graph began.
        self.keeps = False
        self.kept: set[int] = set()
        #: Whether it was captured anew because results were in use.
        self.recaptured = False
        #: Whether arguments are copied that another graph has written: they were elsewhere.
        self.copies_arguments = False
        # The memories of the last result without a graph, by the indices of its leaves.
        self.given: dict[int, StorageWeakRef] = {}

    def note_results(self, result: object) -> None:
        """Note what a call without a graph has returned."""
        self.given = {
            index: StorageWeakRef(one.untyped_storage())
            for index, one in enumerate(_leaves(result))
            if isinstance(one, torch.Tensor) and has_memory(one)
        }

    def note_kept(self, but: Container[int] = ()) -> None:
        """Note what of the last result without a graph is still in use, *but* in these memories."""
        if self.given:
            # Of the first call, Dynamo's garbage may hold results until a collection.
            self.kept = {
                index
                for index, one in self.given.items()
                if not one.expired() and one.cdata not in but
            }
            self.given = {}

    def move_to(self, state: State) -> None:
        """Be in another state. Raises TypeError for one that can't follow."""
        if type(state) not in _FOLLOWS[type(self.state)]:
            was, now = type(self.state).__name__, type(state).__name__
            raise TypeError(f"{now} can't follow {was}")
        self.state = state

    def drop_graph(self, state: CapturedState) -> None:
        """Have no graph any more, but all that was observed."""
        self.move_to(state.observed)
        state.release()

    def learn_places(self, other: SignatureEntry) -> None:
        """Take over what was observed of the same code with weights at other places."""
        if _repeated_places(self.places) == _repeated_places(other.places):
            self.learn(other)

    def learn(self, other: SignatureEntry) -> None:
        """Take over what was observed of the same code."""
        self.calls = self.learned = other.calls
        self.keeps, self.kept = other.keeps, {*other.kept}
        state = other.state
        self.state = state.observed if isinstance(state, CapturedState) else state


def has_graph(signature: SignatureEntry) -> bool:
    return type(signature.state) is CapturedState


def _repeated_places(places: Sequence[int | None]) -> list[int]:
    """For each place the index of the first one that is equal: which tensors share their memory."""
    first: dict[int | None, int] = {}
    return [first.setdefault(place, index) for index, place in enumerate(places)]


def find_constants(result: object) -> list[tuple[type, str]]:
    """What in a result is not a tensor, in a form that can be compared with another call's."""
    leaves = _leaves(result)
    return [(type(leaf), repr(leaf)) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
