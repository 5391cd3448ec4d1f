"""What a call executes: ops that no graph may contain, and memory that a graph would only borrow.

A dispatch mode sees each op of a call, whether eager code, compiled code or a backward runs it, and
also those inside of other ops. Triton's kernels are no ops: it does not see them, nor what they
read.

Which ops must not be captured, torch itself knows: an op's tag ``cudagraph_unsafe``, the list in
``torch._inductor.utils``, and two settings of Inductor by which programs name more. Inductor cuts
its own graphs around them. Their result depends on what a replay does not repeat, such as metadata
that Python holds, so a comparison with a plain call need not show the fault.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from rocm_autopatch import failure
from rocm_autopatch.graphs import dynamo_frames
from rocm_autopatch.graphs.layout import has_memory, kind_of_layout, storage_key
from rocm_autopatch.graphs.pytrees import TENSORS
from rocm_autopatch.graphs.refusal import Refused

if TYPE_CHECKING:
    from torch._C import Argument
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    Op = OpOverload | HigherOrderOperator

_UTILS, _CONFIG = "torch._inductor.utils", "torch._inductor.config"
# It came with torch 2.7.
_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
_SETTINGS = ("custom_should_partition_ops", "cudagraph_unsafe_unbacked_ops")
#: Ops that are forbidden here besides, as ``aten::topk``, each with the source of that.
forbidden_here: dict[str, str] = {}
# What torch says of an op with arguments of such kinds.
_verdicts: dict[tuple[Op, tuple[torch.dtype, ...], bool], bool] = {}
_BELOW_PYTHON = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.Python)
_HIGHER_ORDER = torch._ops.HigherOrderOperator
# These decide by a value on the device what is executed. Inductor cuts around them, too.
_CONTROL_FLOW = frozenset(("cond", "while_loop", "switch"))
_NUMBERS = (bool, int, float, complex)
# The higher order ops that know the mode.
_registered: set[str] = set()
# What gives a value to Python; the first contains the other one.
_READS = frozenset(("aten::item", "aten::_local_scalar_dense"))
# What copies from device to device.
_COPIES = frozenset(("aten::copy_", "aten::_to_copy", "aten::to"))
_TORCHS = ("aten::", "prims::", "prim::")
COPIED = (
    "a tensor is copied between the host and the GPU inside, which waits for the GPU: keep it on "
    "the GPU, or pass it as an argument"
)
# Ops that make a tensor without writing to it.
_EMPTY = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_strided", "empty_like", "empty_permuted"),
        *("new_empty", "new_empty_strided"),
    )
)


@dataclass(frozen=True)
class OpUse:
    """An op, and the dtypes of the tensors that it is given."""

    op: Op
    dtypes: tuple[torch.dtype, ...]

    @property
    def is_torchs(self) -> bool:
        return _op_name(self.op).startswith(_TORCHS)

    def forbid_capture(self) -> bool:
        """Have no graph contain it from now on. Returns False for what is too common for that."""
        if _op_name(self.op) in _COPIES:
            return False
        for deterministic in (False, True):
            _verdicts[self.op, self.dtypes, deterministic] = True
        return True


class CapturedOps(TorchDispatchMode):
    """Notes what the calls in its context execute.

    ``objection`` is why no graph may contain them, None if one may. With *stops*, what no graph may
    contain is not executed, and Refused is raised instead.
    With *fill*, each element of a tensor that an op only allocates gets this value.

    Raises Refused if this torch has no list of such ops.
    """

    # Torch gives higher order ops to such a mode. Until 2.8, each has to know the mode.
    supports_higher_order_operators = True

    def __init__(self, stops: bool = False, fill: int | None = None) -> None:
        super().__init__()
        _torchs_question()
        self.objection: str | None = None
        #: The outermost op that the objection is to, or that has raised an exception.
        self.blamed_op: OpUse | None = None
        self._stops, self._fill = stops, fill
        # The ops that the current one is inside of, each with its tensors.
        self._outer: list[tuple[Op, list[int]]] = []
        self._made: set[int] = set()
        self._read: dict[int, tuple[StorageWeakRef, str]] = {}
        #: What they have written to, and not made.
        self.written: set[int] = set()
        _register_mode(type(self))

    @classmethod
    def is_infra_mode(cls) -> bool:
        # Dynamo compiles and calls as without it.
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __enter__(self) -> CapturedOps:
        dynamo_frames.enter_mode(self)
        entered: CapturedOps = super().__enter__()
        return entered

    def __exit__(self, *error: object) -> None:
        dynamo_frames.leave_mode()
        super().__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Op,
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        tensors = [*_tensors_in((*args, *kwargs.values()))]
        self._look_before(func, tensors, args, kwargs)
        try:
            result = self._execute(func, tensors, args, kwargs)
        except Exception:
            self._blame_op()
            raise
        if (
            self._outer
            and _op_name(func) in _COPIES
            and _crosses([*tensors, *_tensors_in((result,))])
        ):
            self._blame_op()
            self._object_to(COPIED)
        for one in _tensors_in((result,)):
            if type(one) not in TENSORS:
                continue
            if not has_memory(one):
                self._meet_op(f"{func}, whose result is {kind_of_layout(one)}")
                continue
            if storage_key(one) not in self._read:
                self._made.add(storage_key(one))
            if self._fill is not None and _op_name(func) in _EMPTY:
                _fill_bytes(one, self._fill)
        return result

    def _look_before(
        self,
        func: Op,
        tensors: Sequence[torch.Tensor],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> None:
        if not self._outer:
            self._outermost = OpUse(func, tuple(one.dtype for one in tensors))
        if not self.objection and self._must_not_be_captured(func, args, kwargs):
            self._blame_op()
            self._meet_op(str(func))
        for one in tensors:
            if type(one) not in TENSORS:
                continue
            if not has_memory(one):
                self._blame_op()
                self._meet_op(f"{func}, which reads {kind_of_layout(one)}")
            elif storage_key(one) not in self._made:
                self._note_read(one)
        self._note_writes(func, args, kwargs)

    def _execute(
        self,
        func: Op,
        tensors: list[torch.Tensor],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Call an op so that the ops inside it come here, too."""
        if isinstance(func, _HIGHER_ORDER):
            return func(*args, **kwargs)
        args = _with_tensors(func, args)
        plain = bool(tensors) and TENSORS.issuperset(map(type, tensors))
        if not plain or not _looks_inside(func, tensors[0].device.type):
            return func(*args, **kwargs)
        keys = torch._C._dispatch_keys(tensors[0])
        for one in tensors[1:]:
            keys = keys | torch._C._dispatch_keys(one)
        this = func, [*map(id, tensors)]
        # A detach comes back here itself: torch asks modes for what it is made of.
        if this in self._outer[-1:]:
            return func(*args, **kwargs)
        self._outer.append(this)
        try:
            with self:
                return func.redispatch(keys & _BELOW_PYTHON, *args, **kwargs)
        finally:
            self._outer.pop()

    def _must_not_be_captured(
        self, func: Op, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> bool:
        # Ops read the value of a number on the host like this. On the device it breaks a capture.
        if self._outer and _op_name(func) in _READS:
            return False
        try:
            return is_unsafe(func, args, kwargs)
        except Exception as error:
            if failure.programs_own(error):
                raise
            return True  # Torch could not say, and this is the program's own call.

    def _meet_op(self, name: str) -> None:
        self._object_to(unsafe_reason(name))

    def _blame_op(self) -> None:
        """Note the op that the program calls, before the first objection."""
        if not self.objection and self.blamed_op is None:
            self.blamed_op = self._outermost

    def _object_to(self, why: str) -> None:
        self.objection = self.objection or why
        if self._stops:
            raise Refused(self.objection)

    def meet_unseen(self) -> None:
        """Some ops are executed where the mode is off: :mod:`dynamo_frames`."""
        self._object_to(
            "compiled code of this process breaks into several graphs, and torch "
            f"{torch.__version__} does not show the ops between them: some may be unfit for a graph"
        )

    def _note_writes(self, func: Op, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        schema = getattr(func, "_schema", None)
        if schema is None:
            return
        for number, one in enumerate(schema.arguments):
            given = args[number] if number < len(args) else kwargs.get(one.name)
            if isinstance(given, torch.Generator) and not _is_default(given):
                self._object_to(
                    "it draws random numbers from a generator of its own, and a replay would not"
                )
            if one.alias_info is not None and one.alias_info.is_write:
                tensors = [
                    it for it in _tensors_in((given,)) if type(it) in TENSORS and has_memory(it)
                ]
                self.written.update(it for it in map(storage_key, tensors) if it not in self._made)

    def _note_read(self, one: torch.Tensor) -> None:
        pointer = storage_key(one)
        if pointer not in self._read:
            about = f"{str(one.dtype).rpartition('.')[2]}{list(one.shape)}"
            self._read[pointer] = StorageWeakRef(one.untyped_storage()), about

    def borrowed(self, owned: Collection[int], kind: str) -> list[tuple[StorageWeakRef, str]]:
        """The memory that the calls have read on devices of *kind*, and that is still alive.

        Each as a weak reference and a text. *owned* are the memories of arguments, weights and
        results, which are not among them. What the calls have allocated and freed is gone by now.
        """
        return [
            (reference, about)
            for pointer, (reference, about) in self._read.items()
            if pointer not in owned and not reference.expired() and _is_on(reference, kind)
        ]


def _is_default(generator: torch.Generator) -> bool:
    if generator.device.type == "cpu":
        return generator is torch.default_generator
    return any(generator is one for one in torch.cuda.default_generators)


def is_unsafe(func: Op, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether an op with these arguments must not be captured."""
    if _UNSAFE is not None and _UNSAFE in getattr(func, "tags", ()):
        return True
    name = _op_name(func)
    if name in _READS:
        return True
    if isinstance(func, _HIGHER_ORDER) and name in _CONTROL_FLOW:
        return True
    if forbidden_here and (
        name in forbidden_here or f"{name}.{_overload_name(func)}" in forbidden_here
    ):
        return True
    kinds = tuple(one.dtype for one in _tensors_in((*args, *kwargs.values())))
    key = func, kinds, torch.are_deterministic_algorithms_enabled()
    known = _verdicts.get(key)
    if known is None:
        known = _verdicts[key] = _torch_forbids(func, args, kwargs)
    return known or _program_forbids(name, _overload_name(func))


def unsafe_reason(op: str) -> str:
    """Why a call has no graph that executes *op*."""
    if "local_scalar_dense" in op or "aten.item" in op:
        return (
            f"it executes {op}, which waits for the GPU (as .item() and printing a tensor do) and "
            "must not be captured: keep the value on the GPU"
        )
    return f"it executes {op}, which must not be captured: a replay would not do what it does"


def _torch_forbids(func: Op, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether torch's own list has an op.

    Until 2.10 the list is in the function that asks it, and some ops are in it only with some kinds
    of arguments. So the function gets a graph with this one op.
    """
    ask = _torchs_question()
    for one in _forms_of(func):
        graph = _graph_of(one, args, kwargs)
        try:
            if ask(SimpleNamespace(graph=graph)) is not None:
                return True
        finally:
            # Nodes refer to each other, so the next collection would free the tensors.
            for node in graph.nodes:
                node.meta.clear()
    return False


@functools.cache
def _torchs_question() -> Callable[[object], object]:
    """What says which op of a graph must not be captured, None if none is in its list."""
    try:
        found: Callable[[object], object] = importlib.import_module(
            _UTILS
        ).get_first_incompatible_cudagraph_node
    except (ImportError, AttributeError):
        raise Refused(
            f"torch {torch.__version__} has no list of the ops that must not be captured"
        ) from None
    return found


def _forms_of(func: Op) -> Iterator[Op | OpOverloadPacket]:
    """An op as the list may name it: by overload, by its name alone, or in another form."""
    yield func
    packet = getattr(func, "overloadpacket", None)
    if packet is not None:
        yield packet
        # Writing to a given tensor, it launches the same kernels.
        if any(one.is_out for one in _schema_arguments(func)) and hasattr(packet, "default"):
            yield packet.default


def _graph_of(
    func: Op | OpOverloadPacket, args: Sequence[object], kwargs: Mapping[str, object]
) -> torch.fx.Graph:
    graph = torch.fx.Graph()

    def placed(value: object) -> object:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder("given")
            node.meta["val"] = value
            return node
        if isinstance(value, (list, tuple)):
            return [placed(one) for one in value]
        return value if isinstance(value, (int, float, str, bool, type(None))) else None

    given = [placed(one) for one in args]
    named = {name: placed(one) for name, one in kwargs.items()}
    graph.create_node("call_function", func, tuple(given), named)
    return graph


def _program_forbids(name: str, overload: str) -> bool:
    """Whether a program has told Inductor to cut its graphs around an op."""
    config = importlib.import_module(_CONFIG)
    for setting in _SETTINGS:
        named: Collection[str] = getattr(config, setting, ())
        if named and (name in named or f"{name}.{overload}" in named):
            return True
    return False


def _op_name(func: Op) -> str:
    """An op's name without its overload, as ``aten::topk``."""
    schema = getattr(func, "_schema", None)
    return schema.name if schema is not None else str(func)


def _schema_arguments(func: Op) -> Sequence[Argument]:
    """What an op's schema says of its arguments; nothing if it has none."""
    return getattr(getattr(func, "_schema", None), "arguments", ())


def _overload_name(func: Op) -> str:
    return getattr(func, "_overloadname", "")


def _tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for one in values:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors_in(one)


@functools.cache
def _looks_inside(func: OpOverload, kind: str) -> bool:
    """Whether the ops inside an op are of interest on devices of *kind*.

    They are in ops of programs, and in those of torch that consist of others: outside of inference
    mode, these come apart before. In torch's attention they make what it does not write.
    """
    name = func.name()
    if any(one.name == "layout" for one in func._schema.arguments):
        return False  # Another layout has another kernel.
    if not name.startswith(_TORCHS):
        return True
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    apart = has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, kind.upper())
    return apart or "attention" in name


def _with_tensors(func: OpOverload, args: Sequence[object]) -> Sequence[object]:
    """The arguments, with tensors for numbers that torch has made of tensors.

    A mode gets a number for ``x % 64`` inside of an op, and most ops take none.
    """
    arguments = _schema_arguments(func)
    if not any(
        isinstance(given, _NUMBERS) and str(one.type) == "Tensor"
        for one, given in zip(arguments, args)
    ):
        return args
    others = [one for one in args if isinstance(one, torch.Tensor)]
    return [
        _number_tensor(given, others)
        if isinstance(given, _NUMBERS) and str(one.type) == "Tensor"
        else given
        for one, given in zip(arguments, args)
    ]


def _number_tensor(number: complex, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number as a tensor on the host, which gives results of the type that the number gives."""
    made = torch.tensor(number)
    if not others:
        return made
    wanted = torch.result_type(others[0], number)
    return made if torch.result_type(others[0], made) == wanted else made.to(wanted)


def _crosses(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an op with these tensors copies between memory of the host and a device.

    Pinned memory may be copied in a capture.
    """
    on_host = [one for one in tensors if one.device.type == "cpu"]
    return 0 < len(on_host) < len(tensors) and not all(one.is_pinned() for one in on_host)


def _is_on(reference: StorageWeakRef, kind: str) -> bool:
    memory = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return memory is not None and memory.device.type == kind and memory.nbytes() > 0


def _fill_bytes(tensor: torch.Tensor, value: int) -> None:
    if has_memory(tensor) and tensor.numel():
        tensor.fill_(value % 2 if tensor.dtype is torch.bool else value)


def fill_memory(
    likes: Iterable[torch.Tensor], device: torch.device, value: int, blocks: int, most: int
) -> None:
    """Fill memory with a value, so that tensors like these may get it from torch's allocator.

    *blocks* for each of them, of *most* bytes together.
    """
    for like in likes:
        if like.numel():
            size = like.numel() * like.element_size()
            count = max(1, min(blocks, most // size))
            held = [torch.empty_like(like, device=device) for _ in range(count)]
            for one in held:
                _fill_bytes(one, value)
            del held


def _register_mode(mode: type) -> None:
    """Let higher order ops run in the mode, where torch does not give them to it."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for name, one in [*getattr(torch._ops, "_higher_order_ops", {}).items()]:
        if name not in _registered:
            _registered.add(name)

            def run(
                active: CapturedOps,
                *args: object,
                _op: HigherOrderOperator = one,
                **kwargs: object,
            ) -> object:
                return active.__torch_dispatch__(_op, (), args, kwargs)

            one.py_impl(mode)(run)
