"""A stand-in for the GPU, so that bookkeeping can be tested on a CPU.

A "capture" on it runs the function and then undoes its writes to tensors. A "replay" runs the
function again and copies into the results of the capture. This shows which calls are captured,
replayed, refused and dropped, and that arguments are copied in and results are copied out. It shows
nothing about CUDA or HIP: no streams, no illegal operations. Nor does it show captures while other
threads work: it undoes their writes, too, and Python itself fails (SystemError, or worse) where
gc.get_objects() finds a tuple that another thread still makes. Of the memory pool it shows the
worst: a replay spoils all that may lie in what was free at its own capture. That is the results of
all graphs that were captured later in the same memory, and what nobody owned any more. So does an
argument that is put among the results of a graph.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch._dynamo.guards
import torch._inductor.compile_fx
from node_list import NodeList
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from rocm_autopatch.graphs import borrowed_outputs, capture, self_test
from rocm_autopatch.graphs.buffers import dense_part
from rocm_autopatch.graphs.layout import has_memory, new_view, place_of, storage_key
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.patches import compile_modes

# What each capture in a memory has written, in order.
_captured: weakref.WeakKeyDictionary[GraphMemory, list[list[StorageWeakRef]]] = (
    weakref.WeakKeyDictionary()
)
# Memory that graphs use and need not own: since the last capture, all of a memory, and what of it
# was free after which capture.
_new: list[Any] = []
# By storage, the buffer of a tensor that _at() has made.
_at_addresses: dict[int, weakref.ref[Any]] = {}
_unowned: weakref.WeakKeyDictionary[GraphMemory, list[Any]] = weakref.WeakKeyDictionary()
_free: weakref.WeakKeyDictionary[GraphMemory, list[tuple[int, Any]]] = weakref.WeakKeyDictionary()
# By what replays it, the number of a capture in its memory.
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class StandIn(capture.CapturePool):
    kind = "cpu"
    broken: BaseException | None = None
    wrong = False

    def __init__(self, device: Any) -> None:
        self.device = device
        self.turns = 0
        self.lends = False
        self.readers: list[Any] = []

    def wait_for_previous_replay(self) -> None:
        self.turns += 1

    def add_reader(self, stream: Any) -> None:
        self.readers.append(stream)

    def run_as_first_call(
        self, function: Callable[[], Any], memory: object, user: object = None
    ) -> Any:
        return function()

    def unowned(self, tensor: Any) -> Callable[[Any], Any]:
        memory = tensor.untyped_storage()
        _new.append(memory)
        made = addressed(tensor, memory)
        return lambda keeper: made()

    def capture(
        self,
        function: Callable[[list[Any]], Any],
        enter: Callable[[], list[Any]],
        memory: GraphMemory,
        size: int = 0,
    ) -> tuple[Callable[[], None], Any]:
        if StandIn.broken:
            raise StandIn.broken
        leaves = enter()
        unowned = _let_go(memory)
        # What is compiled for training empties the list.
        places = [addressed(leaf) for leaf in leaves]
        given = {storage_key(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        with undone():
            result = function(leaves)
        filled = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
        own = {storage_key(one): one for one in filled if storage_key(one) not in given}
        # What lies in an argument is there again, and a graph does not keep it alive.
        targets = [addressed(one) if storage_key(one) in own else None for one in filled]
        captured = _captured.setdefault(memory, [])
        number = len(captured)
        captured.append([StorageWeakRef(one.untyped_storage()) for one in own.values()])
        del own, filled
        free = _free.setdefault(memory, [])
        free += [(number, one) for one in unowned if _references(one) == 1]
        unowned[:] = [one for one in unowned if _references(one) > 1]
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def replay() -> None:
            _spoil_captured_after(memory, number)
            _spoil_free(memory, number - 1)
            with torch.inference_mode(modes[1]), torch.set_grad_enabled(modes[0]):
                again = pytree.tree_leaves(function([there() for there in places]))
                values = [one for one in again if torch.is_tensor(one)]
                for there, value in zip(targets, values):
                    if there is not None:
                        dense_part(there()).copy_(dense_part(value + 1 if StandIn.wrong else value))
            for since, one in free:
                if since == number:
                    one.fill_(255)

        _numbers[replay] = number
        return replay, result

    def run_beside_graphs(self, function: Callable[[], Any], memory: GraphMemory) -> Any:
        for one in _let_go(memory):
            if _references(one) == 1:
                one.fill_(255)
        for _, one in _free.get(memory, ()):
            one.fill_(255)
        return function()

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self) -> None:
        pass

    def has_own_memory(self) -> bool:
        return True

    def memory(self) -> int:
        return 0

    def has_room(self, size: int) -> bool:
        return True

    def random(self) -> Any:
        return torch.get_rng_state()

    def draw_from(self, state: Any) -> None:
        torch.set_rng_state(state)

    def elsewhere(self) -> tuple[Any, ...]:
        return capture.host_generators()


def _let_go(memory: GraphMemory) -> list[Any]:
    """What graphs in a memory need not own. What is new and of no graph belongs to this one."""
    for one in _new:
        homes = (
            home
            for home, captures in _captured.items()
            if any(other.cdata == one._cdata for capture in captures for other in capture)
        )
        _unowned.setdefault(next(homes, memory), []).append(one)
    _new.clear()
    return _unowned.setdefault(memory, [])


def _spoil_captured_after(memory: GraphMemory, number: int) -> None:
    for later in _captured[memory][number + 1 :]:
        for one in later:
            _spoil(one)


def _spoil_free(memory: GraphMemory, number: int) -> None:
    """What is free since this capture, or an earlier one."""
    for since, one in _free[memory]:
        if since <= number:
            one.fill_(255)


def _spoil_where_is_put(outputs: borrowed_outputs.BorrowedOutputs) -> None:
    assert outputs._lend is not None
    memory, _, replay = outputs._lend
    number = _numbers[replay]
    if outputs.gone < math.inf:
        _spoil_captured_after(memory, number)
    _spoil_free(memory, number)


def _spoil(reference: Any) -> None:
    """Set all bits of memory that is still there: a NaN, or -1."""
    memory = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    if memory is not None:
        memory.fill_(255)


def _references(memory: Any) -> int:
    count: int = torch._C._storage_Use_Count(memory._cdata)
    return count


def addressed(leaf: Any, keeps: Any = None) -> Callable[[], Any]:
    """What a graph knows of an argument: its address. It keeps alive what it *keeps*, no more.

    Torch keeps the memory of graphs as long as one of them lives, and what it gives away has that.
    """
    if not isinstance(leaf, torch.Tensor):
        return lambda: leaf
    memory = leaf.untyped_storage()
    if not memory.nbytes():
        return functools.partial(
            torch.empty_strided, leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
        )
    where = (memory.data_ptr(), memory.nbytes(), leaf.dtype, place_of(leaf), keeps)
    return functools.partial(_at, *where)


def _at(address: int, size: int, dtype: Any, where: tuple[Any, ...], keeps: Any) -> Any:
    whole: Any = (ctypes.c_char * size).from_address(address)
    whole.keeps = keeps
    tensor = torch.frombuffer(whole, dtype=torch.uint8).view(dtype)
    # The storage keeps the buffer, and nothing else does.
    _at_addresses[tensor.untyped_storage()._cdata] = weakref.ref(whole)
    return new_view(tensor, dtype, where)


def _plain(tensor: Any) -> bool:
    # What a compile has left has no content.
    if torch._is_functional_tensor(tensor):
        return False
    if tensor.device.type != "cpu" or not has_memory(tensor):
        return False
    memory = tensor.untyped_storage()
    buffer = _at_addresses.get(memory._cdata)
    if buffer is not None and buffer() is not None:
        return False  # Its memory is another tensor's, which may be gone.
    # A program may have freed the memory.
    return bool(memory.nbytes() or not tensor.numel())


_frozen: list[weakref.ref[Any]] = []
_FREEZE_AT = 150_000
_in_sight = 0


def _tensors() -> list[Any]:
    global _in_sight
    objects = gc.get_objects()
    _in_sight = len(objects)
    return [one for one in objects if type(one) in (torch.Tensor, torch.nn.Parameter)]


def _older() -> Iterator[Any]:
    """The tensors that freeze() has put where gc.get_objects() does not look."""
    for one in _frozen:
        tensor = one()
        if tensor is not None:
            yield tensor


def freeze() -> None:
    """Take what exists out of the sight of gc.get_objects(): torch alone has a million objects."""
    gc.collect()
    _frozen[:] = [weakref.ref(one) for one in (*_older(), *_tensors())]
    gc.freeze()


def between_tests() -> None:
    """Freeze what the tests before have left, where it is much: Dynamo keeps what it has seen."""
    global _in_sight
    if _in_sight > _FREEZE_AT:
        freeze()
        _in_sight = 0


def _without_owner() -> list[Any]:
    """The memory that graphs use and need not own."""
    let_go = [one for ones in _unowned.values() for one in ones]
    free = [one for ones in _free.values() for _, one in ones]
    found: list[Any] = [*_new, *let_go, *free]
    return [one for one in found if one.nbytes()]


@contextmanager
def undone() -> Iterator[None]:
    """Undo all writes to tensors that exist now, and the drawing of random numbers."""
    alive = {id(one): one for one in (*_older(), *_tensors())}
    kept = [(one, one.detach().clone()) for one in alive.values() if _plain(one)]
    # What a forward has saved is no tensor's any more where its backward's graph may overwrite it.
    nobodys = [(one, one.clone()) for one in _without_owner()]
    drawn = torch.get_rng_state()
    yield
    torch.set_rng_state(drawn)
    for one, was in nobodys:
        one.copy_(was)
    with torch.no_grad():
        for one, was in kept:
            if not torch.equal(one, was):
                one.detach().copy_(was)


def install() -> None:
    """Replace the GPU by the stand-in, in this process. On ROCm, the self-test wants one, too."""
    capture.CapturePool = StandIn  # type: ignore[misc]
    self_test.GraphRecorder = NodeList  # type: ignore[misc,assignment]
    overlaid = borrowed_outputs.BorrowedOutputs.overlaid

    def spoils_what_lies_there(self: borrowed_outputs.BorrowedOutputs) -> str | None:
        found = overlaid(self)
        if not found:
            _spoil_where_is_put(self)
        return found

    borrowed_outputs.BorrowedOutputs.overlaid = spoils_what_lies_there  # type: ignore[method-assign]
    # Each compile empties the processor's cache, to measure how long its guards take.
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):  # from 2.6 on
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    freeze()


@functools.cache
def graphs_in_modes() -> None:
    """A mode table with our graphs, with those of training in one mode."""
    uses = {
        "reduce-overhead": compile_modes.TRAINING_GRAPHS,
        "max-autotune": compile_modes.GRAPHS,
    }
    modes: Any = [(name, use, "performance", "") for name, use in uses.items()]
    compile_modes.apply(torch, modes, (), False)
