"""The tensors that a graph reads and writes: arguments are copied in, results are copied out."""

from __future__ import annotations

import bisect
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from rocm_autopatch.graphs import readers
from rocm_autopatch.graphs.layout import (
    Place,
    has_memory,
    new_view,
    place_of,
    read_as,
    same_places,
    storage_key,
    use_count,
)
from rocm_autopatch.graphs.pytrees import TENSORS
from rocm_autopatch.graphs.refusal import Refused

# From this many tensors on, one copy call for all of them is cheaper than a call for each.
MANY = 3
_alone = torch.empty(1)
# Of Python's object for a memory, if nobody has it: the memory's own count does not tell who has.
_UNREFERRED = sys.getrefcount(_alone.untyped_storage())
WITHIN = "an argument lies in the memory of a weight or buffer that the call changes"
SAVED = "what its last replay saved or returned is still in use"
RESIZED = "the program has resized the memory of what its last replay returned or saved"


def blank_tensor(
    shape: Sequence[int], stride: Sequence[int] | None, like: torch.Tensor
) -> torch.Tensor:
    """A tensor that can be written to in any mode. It is contiguous if *stride* is None.

    It is a conjugate or a negative view if *like* is.
    """
    with torch.inference_mode(False):
        if stride is None:
            made = torch.empty(shape, dtype=like.dtype, device=like.device)
        else:
            made = torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)
        return read_as(made, like.is_conj(), like.is_neg())


def dense_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of an expanded tensor that holds all its values."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may share memory, as in a sliding window."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


class CopiedInputs:
    """A graph's own copies of the tensors in *leaves*, except for those at a *fixed* place.

    The copies of those *inside* are made in the capture, by :meth:`enter`, and only the argument
    owns them: when the graph has read one, its memory serves for other values. If *inside* is not
    None, the arguments own all other leaves alone, too.
    """

    def __init__(
        self,
        leaves: list[Any],
        fixed: Container[int],
        inside: Container[int] | None = None,
    ) -> None:
        self.leaves = list(leaves)
        self._lean = inside is not None
        # By index of those inside, what makes a tensor where such a copy lies.
        self._inside: dict[int, Callable[[object], torch.Tensor] | None] = {}
        # The leaves that are copied and their targets. Expanded ones go through dense_part().
        self._plain: list[int] = []
        self._targets: list[torch.Tensor] = []
        self._expanded: list[tuple[int, torch.Tensor]] = []
        self._copied: list[int] = []
        for index, leaf in enumerate(leaves):
            if type(leaf) not in TENSORS or index in fixed:
                continue
            if inside is not None and index in inside:
                self._inside[index] = None
                continue
            if overlaps_itself(dense_part(leaf)):
                raise Refused("elements of an argument share memory, and not because of expand()")
            buffer = blank_tensor(leaf.shape, leaf.stride(), leaf)
            self._add_buffer(index, buffer)
            self.leaves[index] = buffer
        self.tensors = [leaf for leaf in self.leaves if type(leaf) in TENSORS]

    def _add_buffer(self, index: int, buffer: torch.Tensor) -> None:
        target = dense_part(buffer)
        self._copied.append(index)
        if target is buffer:
            self._plain.append(index)
            self._targets.append(buffer)
        else:
            self._expanded.append((index, target))

    def enter(
        self, unowned: Callable[[torch.Tensor], Callable[[object], torch.Tensor]]
    ) -> list[Any]:
        """The leaves that the function is captured with. *unowned* is :meth:`Pool.unowned`."""
        for index in self._inside:
            like = self.leaves[index]
            self.leaves[index] = blank_tensor(like.shape, like.stride(), like)
            self._inside[index] = unowned(self.leaves[index])
        leaves = list(self.leaves)
        if self._lean:
            self._let_go()
        return leaves

    def within(self, leaves: Sequence[Any], extents: Sequence[tuple[int, int]]) -> str | None:
        """Why copies of *leaves* would be stale, if one lies in memory that the graph writes to.

        *extents* are where those memories begin and end, in order.
        """
        for index in self._copied if extents else ():
            address = leaves[index].data_ptr()
            number = bisect.bisect_right(extents, (address, math.inf))
            if number and address < extents[number - 1][1]:
                return WITHIN
        return None

    def targets(self) -> dict[int, torch.Tensor]:
        """The copies by the index of their leaf, without expanded ones."""
        return dict(zip(self._plain, self._targets))

    def own_tensors(self) -> list[torch.Tensor]:
        """The copies that stay the graph's own."""
        return [*self._targets, *(target for _, target in self._expanded)]

    def versions(self) -> dict[int, int]:
        """How often each copy was written to, by the index of its leaf."""
        copies = (*zip(self._plain, self._targets), *self._expanded)
        return {index: copy._version for index, copy in copies}

    def written(self, before: dict[int, int]) -> set[int]:
        """The indices of leaves whose copies were written to since :meth:`versions`."""
        return {index for index, count in self.versions().items() if count != before[index]}

    def captured(self) -> None:
        """Let go of the leaves: a graph needs its own copies, and a program may replace weights.

        A graph is replayed only where the weights of a call are at the same addresses.
        """
        self._let_go()
        for index, made in self._inside.items():
            assert made is not None
            # The graph lives longer than this.
            self._add_buffer(index, made(None))
        self._inside = {}

    def _let_go(self) -> None:
        self.leaves, self.tensors = [], []

    def copy(self, leaves: list[Any]) -> None:
        """Copy the content of *leaves*, which have the same signature and need no gradient."""
        if len(self._plain) < MANY:
            for index, target in zip(self._plain, self._targets):
                target.copy_(leaves[index])
        else:
            torch._foreach_copy_(self._targets, [leaves[index] for index in self._plain])
        for index, target in self._expanded:
            # Its dense part, by one operation.
            target.copy_(leaves[index].as_strided(target.size(), target.stride()))


class GraphOutputs:
    """What a graph writes, and what a caller gets.

    With *clone*, a caller gets copies with the same strides. Tensors that share memory share the
    copy, too. Without *clone*, a caller gets the tensors themselves. If it still holds one at the
    next replay, that tensor is moved to other memory first. With *clone* and *lend*, it gets the
    tensors themselves. If it holds one at a replay that would overwrite it, the graph has to go.
    """

    gone = math.inf
    for_backward = False

    def __init__(
        self,
        result: object,
        clone: bool,
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        lend: bool = False,
        gives_views: bool = True,
    ) -> None:
        self._gives_views = gives_views
        leaves, self.spec = pytree.tree_flatten(result)
        self.clone, self.lends = clone, lend or not clone
        self.leaves = without_history(leaves) if self.lends else leaves
        # Whether the next caller gets tensors of the graph that are never moved.
        self._lending = lend and clone
        taken = {storage_key(tensor) for tensor in inputs}
        tensors = [index for index, leaf in enumerate(self.leaves) if type(leaf) in TENSORS]
        self._tensors, self._twins = find_twins(self.leaves, tensors)
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                refuse_result(leaf, device)
                if storage_key(leaf) in taken and leaf.numel():
                    raise Refused(
                        "the result shares memory with an argument or a weight, and a copy would "
                        "not: return a clone() of it"
                    )
        self._alone = len(leaves) == 1 and leaves[0] is result
        by_storage: dict[int, list[int]] = {}
        for index in self._tensors:
            by_storage.setdefault(storage_key(self.leaves[index]), []).append(index)
        # _single is copied by clone(), which keeps the strides of these. _strided is copied into a
        # tensor with the same strides. Of tensors that share memory, the whole storage is copied.
        self._single: list[int] = []
        self._strided: list[int] = []
        self._shared: list[tuple[torch.Tensor, list[tuple[int, torch.dtype, Place]]]] = []
        for indices in by_storage.values():
            first = self.leaves[indices[0]]
            plain = torch.empty_like(first).stride() == first.stride()
            # A clone() of a conjugate view is none.
            if len(indices) > 1 or first.is_conj() or first.is_neg():
                self._share_memory(indices)
            elif plain:
                self._single.append(indices[0])
            else:
                self._strided.append(indices[0])
        # The result, if it is one tensor that is copied by clone(). Most are.
        self._only = self.leaves[0] if self._alone and clone and self._single else None
        # Without copies: each memory, how many hold it, one tensor there; and what callers got.
        self._counts: list[tuple[int, int, torch.Tensor]] = []
        self._given: list[weakref.ref[torch.Tensor]] = []
        self._addresses = addresses_of(self.leaves)

    def _share_memory(self, indices: list[int]) -> None:
        first = min((self.leaves[index] for index in indices), key=lambda leaf: leaf.itemsize)
        memory = first.untyped_storage()
        whole = first.new_empty(0).set_(memory, 0, (memory.nbytes() // first.itemsize,), (1,))
        ones = [(index, self.leaves[index]) for index in indices]
        self._shared.append((whole, [(index, one.dtype, place_of(one)) for index, one in ones]))

    def take(self, leaves: Sequence[object]) -> Any:
        """The result of the last replay, a call with *leaves*, for the caller to keep."""
        if self._lending:
            self._lending = readers.are_counted()
        if self._only is not None:
            return self._only.data if self._lending else self._only.clone()
        given = list(self.leaves)
        if self._lending:
            for index in self._tensors:
                # With versions of its own: a change of one call's result is none of another's.
                given[index] = self.leaves[index].data
        elif self.clone:
            self._put_copies(given)
        else:
            self._given = []
            for index in self._tensors:
                given[index] = self.leaves[index].detach()
                self._given.append(weakref.ref(given[index]))
        for index, first in self._twins:
            given[index] = given[first]
        return given[0] if self._alone else pytree.tree_unflatten(given, self.spec)

    def _put_copies(self, given: list[Any]) -> None:
        for index in self._single:
            given[index] = self.leaves[index].clone()
        for index in self._strided:
            leaf = self.leaves[index]
            copy = torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
            )
            dense_part(copy).copy_(dense_part(leaf))
            given[index] = copy
        for whole, views in self._shared:
            copy = whole.clone()
            for index, dtype, where in views:
                view = new_view(copy, dtype, where)
                given[index] = view if self._gives_views else view.data

    def count_owners(self, given: Sequence[torch.Tensor]) -> None:
        """Note how many references each result's memory has while no caller holds one.

        *given* are the graph's own copies of its arguments.
        """
        if not self.lends:
            return
        own = own_references([*self.own_tensors(), *given])
        tensors = {storage_key(one): one for one in self.own_tensors()}
        self._counts = [(memory, own[memory], one) for memory, one in tensors.items()]
        if self.clone and self.used_memories():
            # A constant of the compiled code would be the caller's to change.
            self._lending = self.lends = False

    def result_memories(self) -> list[int]:
        """What results lie in."""
        return [memory for memory, _, _ in self._counts]

    def own_tensors(self) -> list[torch.Tensor]:
        """The tensors that hold the memory of results, whether or not a caller has some."""
        wholes = [whole for whole, _ in self._shared]
        return [*(self.leaves[index] for index in self._tensors), *wholes]

    def why_held(self) -> str | None:
        """Why the next replay must not run now; None if it may.

        Results that a caller still holds are moved to other memory. Raises Refused if a caller
        holds a view of a result, which can't be moved.
        """
        if not self.used_memories():
            return None
        if self.clone:
            return SAVED
        moved: dict[int, list[torch.Tensor]] = {}
        for reference in self._given:
            tensor = reference()
            if tensor is not None and is_only_of_python(tensor):
                moved.setdefault(storage_key(tensor), []).append(tensor)
        for memory, most, _ in self._counts:
            tensors = moved.get(memory, [])
            if not tensors or use_count(memory) != most + len(tensors):
                continue
            # What inference mode has made can only be changed there, and nothing else there.
            with torch.inference_mode(tensors[0].is_inference()), torch.no_grad():
                move_together(tensors)
        if self.used_memories():
            raise Refused(
                "a view of the last call's result is still in use, and this call would overwrite "
                'it: clone() it, or use outputs="clone"'
            )
        return None

    def resized(self) -> str | None:
        """Why the graph must not be replayed any more; None if it may. Only where it lends."""
        if not self.lends or same_places(self.leaves, self._addresses, self._tensors):
            return None
        return RESIZED

    def only_shown_in_use(self) -> bool:
        """Whether all that is in use is what the program got."""
        return True

    def abandoned_outputs(self) -> AbandonedOutputs:
        """What takes its place when its graph is gone, and nothing else holds it."""
        return AbandonedOutputs(one for _, _, one in self._counts)

    def used_of_gone(self) -> list[int]:
        """What others may overwrite: nothing."""
        return []

    def used_memories(self) -> list[int]:
        """The memories of results that a caller still holds and that are the graph's own."""
        return [
            memory
            for memory, most, one in self._counts
            if use_count(memory) > most or sys.getrefcount(one.untyped_storage()) > _UNREFERRED
        ]


class AbandonedOutputs:
    """What callers still hold of the results of a graph that is gone: of the rest it keeps nothing.

    Graphs that were captured before it may write there.
    """

    gone = math.inf
    for_backward = False

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._held = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]

    def result_memories(self) -> list[int]:
        """What they lie in, or did."""
        return [one.cdata for one in self._held]

    def abandoned_outputs(self) -> AbandonedOutputs:
        """What takes its place when its graph is gone: it has gone."""
        return self

    def only_shown_in_use(self) -> bool:
        """Whether all that is in use is what the program got."""
        return True

    def used_memories(self) -> list[int]:
        """Which of these memories somebody uses."""
        return [one.cdata for one in self._held if not one.expired()]

    def used_of_gone(self) -> list[int]:
        """What others may overwrite: nothing."""
        return []

    def why_held(self) -> str | None:
        """Why they must not be overwritten now; None if they may."""
        return SAVED if self.used_memories() else None


def is_only_of_python(tensor: torch.Tensor, others: int = 0) -> bool:
    """Whether torch's own code refers to a tensor in no more than so many places.

    What has its address would keep that: dlpack has, for as long as others use the memory.
    """
    # Until torch 2.8, Python's reference counts only after a call that has returned the tensor.
    return tensor.to(tensor.dtype)._use_count() <= 1 + others


def move_together(tensors: Sequence[torch.Tensor]) -> None:
    """Give tensors that share their memory a copy of it, which they share, too.

    Autograd counts no write: what it has saved of them is the same.
    """
    copy = tensors[0].untyped_storage().clone()
    whole = tensors[0].detach().new_empty(0).set_(copy)
    for tensor in tensors:
        tensor.data = new_view(whole, tensor.dtype, place_of(tensor))


def own_references(tensors: Iterable[torch.Tensor]) -> Counter[int]:
    """By memory, the number of references to it while nothing but these tensors holds it.

    It is no count of what there is now: the frames of an exception may still hold a result. When
    they are gone, that number would hide a reference of a caller, and a replay would overwrite what
    is in use.
    """
    known = {id(one): one for one in tensors}
    bases = [one._base for one in known.values()]
    known.update({id(one): one for one in bases if one is not None})
    found = Counter(map(storage_key, known.values()))
    # Python's own object for the memory holds it, too.
    found.update(dict.fromkeys(found, use_count(storage_key(_alone)) - 1))
    return found


def without_history(leaves: Sequence[object]) -> list[Any]:
    """The leaves; tensors are others of the same memory, which hold nothing that they are made of.

    A view holds what it is a view of.
    """
    made = {id(one): one.data for one in leaves if isinstance(one, torch.Tensor)}
    return [made.get(id(one), one) for one in leaves]


def addresses_of(leaves: Sequence[object]) -> list[int | None]:
    """By index the address of each tensor, and None for what is no tensor."""
    return [leaf.data_ptr() if isinstance(leaf, torch.Tensor) else None for leaf in leaves]


def find_twins(
    leaves: Sequence[object], indices: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Of the leaves at *indices*, those that are different objects, and the others with their twin.

    A tensor that is in a result twice has to be so for the caller, too. Autograd counts references:
    it lets two weights have tensors of their own as gradients without a copy, also if these share
    their memory.
    """
    first: dict[int, int] = {}
    for index in indices:
        first.setdefault(id(leaves[index]), index)
    pairs = [(index, first[id(leaves[index])]) for index in indices]
    return list(first.values()), [(index, other) for index, other in pairs if index != other]


def refuse_result(leaf: torch.Tensor, device: torch.device) -> None:
    """Raise Refused if a replay would not fill a tensor of the result."""
    if type(leaf) not in TENSORS or not has_memory(leaf):
        raise Refused(f"the result contains a {type(leaf).__name__}, which can't be copied")
    if leaf.device != device:
        raise Refused(f"the result has a tensor on {leaf.device}, and a replay would not fill it")
