"""Arguments and results as flat lists: any pytree of tensors and constants, and its signature."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rocm_autopatch.graphs.layout import has_memory, kind_of_layout
from rocm_autopatch.graphs.refusal import Refused

# Exact types: a subclass of Tensor (DTensor) may keep other things on the device.
TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
# Constants that are compared by type and value. float is not here, because 0.0 == -0.0.
_PLAIN = frozenset(
    (int, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
)
# What stands for tensors: no constants, whatever they are.
_TRACED = (torch.Tensor, torch.fx.Proxy)
CONSTANTS = _PLAIN | {float}
_LEAVES = TENSORS | CONSTANTS
# The structure of a call with only positional arguments, which are all tensors.
FLAT = "flat"
# What compares many tensors at once. If torch has it no more, signatures are compared.
_dynamo = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_guards = getattr(_dynamo, "TensorGuards", None)


class RegisteredStructure:
    """The structure of a type that is registered with torch's pytree, such as a namedtuple."""

    __slots__ = ("spec", "text")

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self.spec, self.text = spec, repr(spec)

    def __eq__(self, other: object) -> bool:
        # What a node has besides its leaves may have a text that is cut, as arrays have, and be
        # equal to something else.
        if not isinstance(other, RegisteredStructure) or self.text != other.text:
            return False
        try:
            return bool(self.spec == other.spec)
        except (ValueError, RuntimeError):
            return False

    def __hash__(self) -> int:
        return hash(self.text)


def flatten_value(value: Any, leaves: list[object]) -> Hashable:
    """Append the leaves of *value* to *leaves* and return its structure, which is hashable.

    torch's own ``tree_flatten`` handles all kinds of nodes, and takes several times as long.
    """
    kind = type(value)
    if kind in _LEAVES:
        leaves.append(value)
        return None
    if kind is tuple or kind is list:
        return (kind, *[flatten_value(one, leaves) for one in value])
    if kind is dict:
        return (dict, tuple(value), *[flatten_value(one, leaves) for one in value.values()])
    found, spec = pytree.tree_flatten(value)
    leaves += found
    return None if len(found) == 1 and found[0] is value else RegisteredStructure(spec)


def unflatten_leaves(structure: Any, leaves: Iterator[object]) -> Any:
    """The opposite of :func:`flatten`, with the leaves from *leaves*."""
    if structure is None:
        return next(leaves)
    if isinstance(structure, RegisteredStructure):
        count = structure.spec.num_leaves
        return pytree.tree_unflatten([next(leaves) for _ in range(count)], structure.spec)
    kind = structure[0]
    if kind is dict:
        values = [unflatten_leaves(one, leaves) for one in structure[2:]]
        return dict(zip(structure[1], values))
    return kind([unflatten_leaves(one, leaves) for one in structure[1:]])


def unflatten_call(
    structure: object, leaves: list[object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call, by position and by name, with these leaves."""
    if structure is FLAT:
        return tuple(leaves), {}
    args, kwargs = unflatten_leaves(structure, iter(leaves))
    return args, kwargs


def signature_of(leaves: Iterable[Any], strict: bool = True) -> tuple[object, ...]:
    """What calls that share a graph have in common: everything but the content of tensors.

    Raises Refused if a leaf is neither a plain strided tensor nor a constant. Of other objects than
    tensors there is only the type, if that is not *strict*.
    """
    found: list[object] = []
    for leaf in leaves:
        kind = type(leaf)
        if kind in TENSORS:
            if not has_memory(leaf):
                raise Refused(
                    f"an argument is a {kind_of_layout(leaf)} tensor; only strided ones can be used"
                )
            found += (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
            if leaf.is_conj() or leaf.is_neg():
                found += (leaf.is_conj(), leaf.is_neg())
        elif kind in _PLAIN:
            found += (kind, leaf)
        elif kind is float:
            found += (float, leaf.hex())
        elif not (strict or issubclass(kind, _TRACED)):
            found.append(kind)
        else:
            raise Refused(
                f"an argument is a {kind.__module__}.{kind.__qualname__}: it has to be a plain "
                "tensor or a constant, or a container of these that torch's pytree knows"
            )
    return tuple(found)


def _never_alike(*_: object) -> bool:
    return False


def _alike_check(tensors: list[object]) -> Callable[..., bool]:
    """What says whether its arguments are tensors with the signature of these.

    Dynamo's guards compare them in C++, and more of them: whether a gradient is needed, and modes.
    So it may say no for an equal signature, but never yes for another one.
    """
    if _guards is None or not TENSORS.issuperset(map(type, tensors)):
        return _never_alike
    check: Callable[..., bool] = _guards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return check


class SignatureLookup:
    """The signatures of one function's calls. Mostly it is the last call's again."""

    def __init__(self, strict: bool = True) -> None:
        self._strict = strict
        # Of the last call: how many leaves, what compares others with them, and the signature.
        self._last: tuple[int, Callable[..., bool], tuple[object, ...] | None] = (
            0,
            _never_alike,
            None,
        )

    def again(self, leaves: Sequence[object]) -> tuple[object, ...] | None:
        """The last signature, if all these leaves are tensors and have it. Otherwise None."""
        count, alike, found = self._last
        return found if len(leaves) == count and alike(*leaves) else None

    def find_signature(self, leaves: list[object]) -> tuple[object, ...]:
        """The signature of these leaves. Raises what :meth:`of` raises."""
        found = self.again(leaves)
        return self.of(leaves) if found is None else found

    def of(self, leaves: list[object]) -> tuple[object, ...]:
        """What :func:`signature` says of these leaves."""
        now = signature_of(leaves, self._strict)
        before = self._last[2]
        # What compares them is made for the second call, as signatures may take turns.
        self._last = len(leaves), _alike_check(leaves) if now == before else _never_alike, now
        return now


def tensors_of(leaves: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among the leaves of a call."""
    return [leaf for leaf in leaves if type(leaf) in TENSORS]


def describe_signature(leaves: Iterable[Any]) -> str:
    """A signature as text, for the record: ``float32[8, 16], 3``."""
    words = []
    for leaf in leaves:
        if type(leaf) in TENSORS:
            words.append(f"{str(leaf.dtype).rpartition('.')[2]}{list(leaf.shape)}")
        else:
            words.append(repr(leaf))
    text = ", ".join(words)
    return text if len(text) <= 200 else f"{text[:197]}..."
