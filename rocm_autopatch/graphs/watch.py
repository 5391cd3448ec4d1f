"""What a graph contains besides its arguments: weights at their addresses, flags, state."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from operator import is_, itemgetter
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from rocm_autopatch.graphs.leaves import TENSORS

# Numbers for what modules' attributes were: no two are the same, whoever asks for them.
_numbers = itertools.count()
# How many items of a container are looked at. A larger one is taken for data.
_LONGEST = 1000
# Of an argument with more bytes than this there is a checksum, and no copy.
_LARGE = 16 << 20
# So many numbers are added up at a time.
_SUMMED = 1 << 19
_training = itemgetter("training")
_STATE = (bool, int, float, str, type(None))
# What each module has: its flag is looked at elsewhere, and the rest is torch's own.
_OF_ALL = frozenset(torch.nn.Module().__dict__)


def _same_places(tensors: list[Any], places: list[int | None], indices: list[int]) -> bool:
    return all(tensors[index].data_ptr() == places[index] for index in indices)


# Whether the tensors at *indices* are where they were. Builds of torch for a GPU have it in C++.
same_places = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _same_places)


@functools.cache
def _asks_for_training(kind: type) -> bool:
    """Whether a module's class may compute something else in training.

    Not so where no method of it names ``training``: a layer of torch without submodules.
    """
    own = [one for one in kind.__mro__ if one not in (torch.nn.Module, object)]
    codes = (getattr(value, "__code__", None) for one in own for value in list(vars(one).values()))
    return any(not one.__module__.startswith("torch.nn.") for one in own) or any(
        code is not None and "training" in code.co_names for code in codes
    )


class Watched:
    """The modules and tensors that a function uses besides its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        roots, loose = reach(function)
        self.modules = list(dict.fromkeys(chain.from_iterable(m.modules() for m in roots)))
        tables = [table for m in self.modules for table in (m._parameters, m._buffers, m._modules)]
        # Most are empty, and each call looks at them.
        self._tables = [table for table in tables if table]
        self._were = list(map(dict, self._tables))
        # Each call looks at these, so layers such as a Linear, which never ask, are left out.
        self._modes = [
            module.__dict__
            for module in self.modules
            if "training" in module.__dict__
            and (module._modules or _asks_for_training(module.__class__))
        ]
        # For each module what reads its attributes, as a tuple: so there are two names at least.
        self._readers = [
            (itemgetter(*names, names[-1]), module.__dict__)
            for module in self.modules
            if (names := _attributes(module))
        ]
        # Of the last call: the flags, the other attributes, and the number of both.
        self._last: tuple[list[Any], list[Any], int] = ([], [], -1)
        self._numbers: dict[Any, int] = {}
        found = [value for table in self._were for value in table.values()]
        tensors = [value for value in found if isinstance(value, torch.Tensor)]
        # By id(), because == of tensors compares their content.
        self.tensors = list({id(tensor): tensor for tensor in [*tensors, *loose]}.values())

    def same(self) -> bool:
        """Whether each module still has the same parameters, buffers and submodules.

        It does not say whether these have the same memory or the same content.
        """
        try:
            # This is one comparison in C, which compares identities first.
            return self._tables == self._were
        except (RuntimeError, TypeError):
            return False  # Two tensors with several elements were compared, so one is another.

    def attributes(self) -> int:
        """A number for what the modules' plain attributes are now.

        It is the same for equal values of the same types.
        """
        try:
            flags = list(map(_training, self._modes))
            values: list[Any] = []
            for read, table in self._readers:
                values += read(table)
        except KeyError:  # An attribute was deleted.
            return -1
        last_flags, last_values, number = self._last
        # Mostly they are the same objects, and then nothing else has to be compared. Equal flags
        # decide the same. Equal values may not, as 1 and 1.0.
        if number < 0 or flags != last_flags or not all(map(is_, values, last_values)):
            key = tuple([(type(value), repr(value)) for value in (*flags, *values)])
            number = self._numbers.setdefault(key, next(_numbers))
            self._last = flags, values, number
        return number

    def needs_grad(self) -> bool:
        """Whether any tensor here needs a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors)

    def state(self) -> dict[tuple[int, str], Any]:
        """The plain Python values that modules keep. A graph can't change them."""
        return {
            (number, name): value
            for number, module in enumerate(self.modules)
            for name, value in module.__dict__.items()
            if isinstance(value, _STATE)
        }

    def changed(self, before: dict[tuple[int, str], Any]) -> str:
        """What a call has changed of these values, as a reason against a graph; "" if nothing."""
        now = self.state()
        keys = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
        names = [f"{type(self.modules[number]).__name__}.{name}" for number, name in sorted(keys)]
        if not names:
            return ""
        listed = ", ".join(names[:3])
        return f"each call changes {listed}, and a replay would not: make it a tensor"


def _attributes(module: Any) -> list[str]:
    """The attributes besides ``training`` that decide what a module computes.

    They are numbers, bools and texts. Each call looks at all of them, so those of torch's own
    modules are left out, except for dropout's: nobody changes the others.
    """
    if isinstance(module, _DropoutNd):
        return ["p"]
    if type(module).__module__.startswith("torch.nn."):
        return []
    own = module.__dict__.items()
    return [name for name, value in own if isinstance(value, _STATE) and name not in _OF_ALL]


def reach(function: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    """The modules and the tensors that a callable refers to.

    They are searched in bound methods, partials, decorators, closures, defaults, the globals that
    a function's code names, and lists, tuples and dicts in these.
    """
    modules: dict[int, Any] = {}
    tensors: dict[int, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [function]
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
        else:
            waiting += _within(value)
    return list(modules.values()), list(tensors.values())


def _within(value: Any) -> Iterator[Any]:
    for name in ("__self__", "__func__", "__wrapped__", "_torchdynamo_orig_callable"):
        found = getattr(value, name, None)
        if found is not None:
            yield found
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


class Observation:
    """What a call did besides returning a result: what a replay can't do, or has to repeat."""

    def __init__(
        self, pool: Any, watched: Watched | None, fixed: list[Any], given: list[Any], sums: bool
    ) -> None:
        self._pool, self._watched = pool, watched
        self._fixed, self._given, self._sums = fixed, given, sums
        self._versions = [self._mark(tensor) for tensor in fixed]
        self._content = [(_where(one), _version(one), _content(one)) for one in given]
        self._random, self._elsewhere = pool.random(), pool.elsewhere()
        self._state = watched.state() if watched else {}
        self._collectives = _collectives()

    def draws(self) -> bool:
        """Whether the call has drawn random numbers from the device's generator."""
        return not torch.equal(self._pool.random(), self._random)

    def against(self) -> str:
        """Why such calls can't be replayed; "" if they can."""
        for tensor, (where, _, _) in zip(self._given, self._content):
            if _where(tensor) != where:
                return f"it gives other memory to an argument (shape {list(where[0])})"
        return self._watched.changed(self._state) if self._watched else ""

    def meanwhile(self) -> str:
        """As :meth:`against`, if it was the call, and not another thread at the same time."""
        if self._pool.elsewhere() != self._elsewhere:
            return "it draws random numbers on the CPU, and a replay would not: use a GPU tensor"
        if _collectives() != self._collectives:
            return "it runs a collective, which is not safe in a graph on ROCm (ROCm/hip#3876)"
        return ""

    def written(self) -> list[int]:
        """Which of the arguments the call has changed in place."""
        return [
            number
            for number, (_, version, content) in enumerate(self._content)
            if _version(self._given[number]) != version or not _has(self._given[number], content)
        ]

    def changed(self) -> list[int]:
        """Which of the fixed tensors the call wrote to: a cache, a running mean."""
        return [
            number
            for number, before in enumerate(self._versions)
            if self._mark(self._fixed[number]) != before
        ]

    def _mark(self, tensor: Any) -> tuple[int, int]:
        # Autograd does not count the writes of every kernel, such as cuDNN's batch norm.
        return _version(tensor), _sum(tensor) if self._sums else 0


def _where(tensor: Any) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.data_ptr()


def _version(tensor: Any) -> int:
    # Tensors of inference mode have no version. Their content is compared instead.
    return -1 if tensor.is_inference() else tensor._version


def _sum(tensor: Any) -> int:
    """A checksum: a write to the tensor most likely changes it."""
    sums = [part.sum(dtype=torch.int64) for part in _parts(tensor.detach())]
    return int(torch.stack(sums).sum()) if sums else 0


def _parts(tensor: Any) -> Iterator[Any]:
    """The content of a tensor as integers, in parts.

    Torch copies integers to the type of their sum, and ``contiguous()`` copies, too. For all of a
    large tensor there may be no memory.
    """
    if tensor.is_contiguous() or tensor.dim() < 2 or tensor.numel() <= _SUMMED:
        flat = _flat(tensor).view(torch.uint8)
        if not (flat.numel() % 4 or flat.storage_offset() % 4):
            flat = flat.view(torch.int32)
        yield from flat.split(_SUMMED) if flat.numel() else ()
        return
    rows = max(1, _SUMMED * len(tensor) // tensor.numel())
    for part in tensor.split(rows):
        yield from _parts(part[0] if rows == 1 else part)


def _content(tensor: Any) -> Any:
    """A copy of a tensor; a checksum of a large one, for which there may be no memory."""
    large = tensor.numel() * tensor.element_size() > _LARGE
    return _sum(tensor) if large else tensor.clone()


def _has(tensor: Any, content: Any) -> bool:
    """Whether a tensor still has the content that :func:`_content` has returned."""
    return _sum(tensor) == content if isinstance(content, int) else _same_bytes(tensor, content)


def _same_bytes(one: Any, other: Any) -> bool:
    # Bytes are compared, because NaN is not equal to itself.
    return bool(torch.equal(*[_flat(tensor).view(torch.uint8) for tensor in (one, other)]))


def _flat(tensor: Any) -> Any:
    """A tensor with one dimension. One element may have any stride, and then it can't be viewed."""
    flat = tensor.contiguous().reshape(-1)
    return flat.as_strided(flat.size(), (1,))


def _collectives() -> list[int]:
    """How many collectives each process group has run, if its backend counts them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    counts = []
    for group in list(c10d._world.pg_map) if c10d else ():
        try:
            counts.append(group._get_sequence_number_for_group())
        except (AttributeError, RuntimeError):
            counts.append(-1)
    return counts


def tensors_of(leaves: list[Any]) -> list[Any]:
    """The tensors among the leaves of a call."""
    return [leaf for leaf in leaves if type(leaf) in TENSORS]
