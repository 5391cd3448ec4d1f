"""Cut what Dynamo has recorded around what no graph may contain, so that the rest becomes graphs.

Inductor cuts its own graphs in the same way, from torch 2.8 on. We cut before anything is compiled:
then each part has a forward and a backward of its own, and all that holds for a region holds for a
part. Torch compiles the buckets of ``DistributedDataParallel`` one by one like this, and its code
for that is used here.

A part for which a graph would not pay stays with its neighbour.
"""

from __future__ import annotations

import copy
import functools
import importlib
import operator
import types
import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.amp.autocast_mode import _exit_autocast
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from rocm_autopatch import failure
from rocm_autopatch.graphs import capture, captured_ops
from rocm_autopatch.graphs.layout import has_memory, storage_key

# What compiles a part: a module, its example inputs, and its number, None if it has no graph.
CompilePart = Callable[[torch.fx.GraphModule, Sequence[object], "int | None"], Callable[..., Any]]
#: Whether an input of a part is what another part has made, in the ``meta`` of its placeholder.
BETWEEN = "rocm_autopatch_between"
# A graph of fewer operations than this costs as much as their launches.
_FEWEST = 4
_SPLIT = "torch.fx.passes.split_module"
_FAKE = torch._subclasses.FakeTensor
_GRAPH_MODULE: Any = torch.fx.GraphModule
# By the code of a frame, the ops around which it was compiled anew.
_cut: weakref.WeakKeyDictionary[types.CodeType, set[Hashable]] = weakref.WeakKeyDictionary()
_One = TypeVar("_One")
_SET_GRAD_MODE = torch._C._set_grad_enabled
_CALLS = ("call_function", "call_method", "call_module")
# What makes a view, or the same tensor, and writes nothing: it may be executed in several parts.
_VIEWS = frozenset(
    (
        *("view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "t"),
        *("transpose", "permute", "movedim", "swapaxes", "expand", "expand_as", "narrow"),
        *("select", "chunk", "split", "tensor_split", "unbind", "diagonal", "getitem"),
        *("contiguous", "detach", "to"),
    )
)


def find_numbers(
    model: torch.fx.GraphModule, inputs: Sequence[object], device: torch.device | None
) -> list[int]:
    """The indices of inputs that are numbers on the host, and may be on the device as well.

    A kernel would take their value at the capture, for all replays. If all that is made of them is
    on the device, their place makes no difference.
    """
    if device is None:
        return []
    nodes = model.graph.nodes
    if any(_is_on_host(one) for node in nodes if node.op in _CALLS for one in _tensors(node)):
        return []
    given = [*zip(model.graph.find_nodes(op="placeholder"), inputs)]
    (output,) = model.graph.find_nodes(op="output")
    return [
        index
        for index, (node, one) in enumerate(given)
        if isinstance(one, torch.Tensor) and _is_on_host(one) and not one.dim()
        if not (one.requires_grad or output in node.users or _is_written(node))
        # Python would wait for its value.
        if all(map(_is_tensor, node.users))
    ]


def move_numbers(
    model: torch.fx.GraphModule,
    inputs: Sequence[Any],
    numbers: Sequence[int],
    device: torch.device,
) -> tuple[list[Any], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Have numbers of the host on the device in a model that is compiled.

    Returns its example inputs, and what makes one with numbers of the host of what is compiled.
    """
    moved = [*inputs]
    placeholders = [*model.graph.find_nodes(op="placeholder")]
    for index in numbers:
        moved[index] = _number_on(device, inputs[index])
        meta = placeholders[index].meta
        meta["example_value"] = _number_on(device, meta["example_value"])

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            given = [*args]
            for index in numbers:
                given[index] = _number_on(device, given[index])
            return run(*given)

        return call

    return moved, wrap


def _number_on(device: torch.device, number: torch.Tensor) -> torch.Tensor:
    """A number on a device. A copy would wait for the device; a kernel takes the value."""
    if isinstance(number, _FAKE):
        with number.fake_mode:
            return torch.empty((), dtype=number.dtype, device=device)
    return torch.empty((), dtype=number.dtype, device=device).fill_(number)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type != capture.CapturePool.kind


def _is_written(node: torch.fx.Node) -> bool:
    """Whether Dynamo has counted a write to an input."""
    return any(not one.is_inference() and one._version for one in _tensors(node))


@dataclass(frozen=True)
class ModelParts:
    """Into which parts a model is cut: by node the number of its part, and *why* it is cut.

    ModelParts with graphs have even numbers. Others have odd ones.
    """

    numbers: dict[torch.fx.Node, int]
    why: list[str]


def find_parts(model: torch.fx.GraphModule) -> ModelParts | None:
    """The parts of a model; None if it stays one."""
    nodes = [node for node in model.graph.nodes if node.op not in ("placeholder", "output")]
    cut = _objections(nodes)
    if not cut:
        return None
    runs = _merged_runs(nodes, cut)
    if not any(has_graph for has_graph, _ in runs):
        return None
    numbers: dict[torch.fx.Node, int] = {}
    for number, (has_graph, run) in enumerate(runs):
        for node in run:
            numbers[node] = 2 * number + (not has_graph)
    apart = {node for block in _grad_mode_blocks(nodes)[0] for node in block}
    if any(_is_view_made_apart(node, numbers, apart) for node in nodes):
        return None
    for node in nodes:
        _repeat_views(node, numbers, 2 * len(runs) + 1)
    if not all(_may_cross(node, numbers) for node in [*numbers]) or _writes_cross(model, numbers):
        return None
    return ModelParts(numbers, [*dict.fromkeys(cut.values())])


def _objections(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """By node why no graph may contain it; none if the model can't be cut there."""
    cut: dict[torch.fx.Node, str] = {}
    for node in nodes:
        # What an operation returns besides a tensor can't get from part to part.
        of_cut = node.target is operator.getitem and not _is_tensor(node.args[0])
        why = (cut.get(node.args[0]) if of_cut else None) or find_objection(node)
        if why:
            cut[node] = why
    blocks, closed = _grad_mode_blocks(nodes)
    for block in blocks if cut else ():
        # A part that ends in another grad mode sets it, and a replay would not.
        why = next((cut[node] for node in block if node in cut), None)
        if why:
            cut.update(dict.fromkeys(block, why))
    return cut if closed else {}


def turns_gradients_on(model: torch.fx.GraphModule) -> bool:
    """Whether a model computes something with gradients, whatever its own grad mode is."""
    return any(node.target is _SET_GRAD_MODE and node.args[0] for node in model.graph.nodes)


def _grad_mode_blocks(
    nodes: Iterable[torch.fx.Node],
) -> tuple[list[list[torch.fx.Node]], bool]:
    """The stretches of nodes in another grad mode than the model, each with what sets it.

    And whether the model ends in its own grad mode.
    """
    outer = current = torch.is_grad_enabled()
    blocks: list[list[torch.fx.Node]] = []
    for node in nodes:
        before = current
        if node.target is _SET_GRAD_MODE:
            current = bool(node.args[0])
        if before == outer != current:
            blocks.append([])
        if before != outer or current != outer:
            blocks[-1].append(node)
    return blocks, current == outer


def _writes_cross(model: torch.fx.GraphModule, numbers: dict[torch.fx.Node, int]) -> bool:
    """Whether a write would be seen, or be counted, in other parts than in the whole.

    Parts get tensors that share memory as arguments, of which torch can't tell how they do. And an
    argument that gets a history in one part has none for the compile of the next one.
    """
    values: dict[int, set[object]] = {}
    parts: dict[int, set[int]] = {}
    written: set[int] = set()
    given: set[int] = set()
    for node in model.graph.nodes:
        users = {numbers.get(user, -1) for user in node.users}
        if node.op == "output" or (node in numbers and users <= {numbers[node]}):
            continue
        for one in _tensors(node):
            if has_memory(one) and not one.is_inference():
                memory = storage_key(one)
                values.setdefault(memory, set()).add(
                    (one.dtype, *map(str, (one.size(), one.stride(), one.storage_offset())))
                )
                parts.setdefault(memory, set()).update(users)
                if one._version:
                    written.add(memory)
                if node.op == "placeholder":
                    given.add(memory)
    in_training = torch.is_grad_enabled()
    return any(
        len(parts[memory]) > 1 and (len(values[memory]) > 1 or (in_training and memory in given))
        for memory in written
    )


def _merged_runs(
    nodes: Iterable[torch.fx.Node], cut: Container[torch.fx.Node]
) -> list[tuple[bool, list[torch.fx.Node]]]:
    """Nodes that follow each other, and whether they become a graph."""
    runs: list[tuple[bool, list[torch.fx.Node]]] = []
    for node in nodes:
        has_graph = node not in cut
        if not runs or runs[-1][0] != has_graph:
            runs.append((has_graph, []))
        runs[-1][1].append(node)
    merged: list[tuple[bool, list[torch.fx.Node]]] = []
    for has_graph, run in runs:
        pays = has_graph and sum(map(_launches, run)) >= _FEWEST
        if merged and merged[-1][0] == pays:
            merged[-1][1].extend(run)
        else:
            merged.append((pays, run))
    return merged


def _launches(node: torch.fx.Node) -> bool:
    return node.op in _CALLS and node.target is not operator.getitem


def find_objection(node: torch.fx.Node) -> str | None:
    """Why no graph may contain what a node of Dynamo's does, as far as that can be told now.

    That is a tensor on the host (but for numbers that are constants), a size that is known only
    when it is executed, and the ops that :mod:`captured_ops` knows.
    """
    if node.op not in _CALLS:
        return None
    made, given = [*_tensors(node)], [one for arg in node.all_input_nodes for one in _tensors(arg)]
    on_host = [one for one in (*made, *given) if _is_on_host(one)]
    if on_host and (given or any(one.dim() for one in made)):
        constant = all(not one.dim() for one in on_host) and not any(
            map(_varies, node.all_input_nodes)
        )
        if not constant:
            return f"a tensor of {_name_of(node)} is on the host"
    if any(free_unbacked_symbols(one) for one in (*made, *given, *_sizes(node))):
        return f"a size in {_name_of(node)} is known only when it is executed"
    for op in _ops_of(node):
        if _is_unsafe(op, node):
            return captured_ops.unsafe_reason(str(op))
    inside = (find_objection(inner) for body in _bodies_of(node) for inner in body.graph.nodes)
    return next(filter(None, inside), None)


def _name_of(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _bodies_of(node: torch.fx.Node) -> Iterator[torch.fx.GraphModule]:
    """The graphs that a node executes, such as those of an ``autograd.Function``."""
    owner = node.graph.owning_module
    names = [one.target for one in node.all_input_nodes if one.op == "get_attr"]
    for name in [*names, *([node.target] if node.op == "call_module" else ())]:
        body = operator.attrgetter(str(name))(owner)
        if isinstance(body, torch.fx.GraphModule):
            yield body


def _varies(node: torch.fx.Node) -> bool:
    """Whether a node is a tensor on the host whose value may differ from call to call."""
    on_host = any(map(_is_on_host, _tensors(node)))
    return on_host and (node.op == "placeholder" or bool(node.all_input_nodes))


def _is_unsafe(op: Any, node: torch.fx.Node) -> bool:
    values = torch.fx.node.map_arg((node.args, node.kwargs), _example)
    try:
        return captured_ops.is_unsafe(op, *values)
    except Exception as error:
        if failure.programs_own(error):
            raise
        return False  # The observed call says what stands in the way.


def _ops_of(node: torch.fx.Node) -> Iterator[Any]:
    """The ops that a node may stand for. Dynamo keeps the names that the program has used."""
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        yield from (getattr(target, name) for name in target.overloads())
    elif isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        yield target
    else:
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        packet = getattr(torch.ops.aten, name, None) if name else None
        if isinstance(packet, torch._ops.OpOverloadPacket) and "default" in packet.overloads():
            yield packet.default


def _example(node: torch.fx.Node) -> Any:
    return node.meta.get("example_value")


def _tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    for one in torch.utils._pytree.tree_leaves(_example(node)):
        if isinstance(one, torch.Tensor):
            yield one


def _sizes(node: torch.fx.Node) -> Iterator[Any]:
    for one in torch.utils._pytree.tree_leaves(_example(node)):
        if isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield one


def _is_view_made_apart(
    node: torch.fx.Node, numbers: dict[torch.fx.Node, int], apart: Container[torch.fx.Node]
) -> bool:
    """Whether other parts need a view of what a part was given, made in another grad mode.

    Made again elsewhere it would have gradients, and so it has where torch hands it out.
    """
    part, made_apart = numbers[node], False
    if all(numbers.get(user, -1) == part for user in node.users):
        return False
    current = [node]
    for one in current:  # It grows.
        made_apart = made_apart or one in apart
        if made_apart and numbers.get(one) != part:
            return True
        if numbers.get(one) == part:
            current += [other for other in one.all_input_nodes if _memories(one) & _memories(other)]
    return False


def _repeat_views(node: torch.fx.Node, numbers: dict[torch.fx.Node, int], end: int) -> None:
    """Let other parts make a view themselves that a part has made of what it was given.

    No graph can return it: its argument is a copy. *end* is a part without a graph, after all
    others, for those that are results.
    """
    here = numbers[node]
    wanted = {user: end if user.op == "output" else numbers[user] for user in node.users}
    others = {part for part in wanted.values() if part != here}
    chain = _views_in_part(node, numbers) if others else []
    if not chain:
        return
    for part in others:
        theirs = {user for user, number in wanted.items() if number == part}
        made: dict[torch.fx.Node, torch.fx.Node] = {}
        with node.graph.inserting_before(next(one for one in node.graph.nodes if one in theirs)):
            for one in chain:
                copied = node.graph.node_copy(one, functools.partial(_instead, made))
                made[one], numbers[copied] = copied, part
        for user in theirs:
            user.replace_input_with(node, made[node])


def _instead(made: dict[torch.fx.Node, torch.fx.Node], node: torch.fx.Node) -> torch.fx.Node:
    return made.get(node, node)


def _views_in_part(node: torch.fx.Node, numbers: dict[torch.fx.Node, int]) -> list[torch.fx.Node]:
    """The nodes by which a part makes a view of an argument, in order; none if it makes none."""
    memory = _memories(node)
    chain: list[torch.fx.Node] = []
    current = node
    while numbers.get(current) == numbers[node]:
        chain.insert(0, current)
        sources = [one for one in current.all_input_nodes if memory & _memories(one)]
        if _name_of(current) not in _VIEWS or len(sources) != 1:
            return []
        current = sources[0]
    return chain


def _memories(node: torch.fx.Node) -> set[int]:
    return {storage_key(one) for one in _tensors(node) if has_memory(one)}


def _may_cross(node: torch.fx.Node, parts: dict[torch.fx.Node, int]) -> bool:
    """Whether what other parts need of a node is a tensor or a number."""
    if node.op not in _CALLS:
        return True
    others = [
        user
        for user in node.users
        # Torch enters the context anew in each part.
        if parts.get(user, parts[node]) != parts[node] and user.target is not _exit_autocast
    ]
    return not others or isinstance(_example(node), (torch.Tensor, torch.SymInt, int))


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(_example(node), torch.Tensor)


def compile_parts(
    model: torch.fx.GraphModule,
    inputs: Sequence[Any],
    parts: ModelParts,
    compile_part: CompilePart,
) -> Callable[..., Any]:
    """Compile each part, and return what to call with *inputs*.

    Raises what *compile_part* raises, and what torch raises if it can't cut the model like this.
    """
    split = importlib.import_module(_SPLIT).split_module(
        model, None, parts.numbers.__getitem__, keep_original_order=True
    )
    fake_mode = torch._guards.detect_fake_mode(inputs)
    if fake_mode is None:
        raise RuntimeError("torch has no fake tensors here")
    # By the nodes of the whole: what compiles get, which may be real, and a fake of it.
    given = dict(zip(split.graph.find_nodes(op="placeholder"), inputs))
    fakes = {node: _as_fake(value, fake_mode) for node, value in given.items()}
    sources = {
        node.name: getattr(node, "_dynamo_source", None)
        for node in model.graph.find_nodes(op="placeholder")
    }
    grad_mode = torch.is_grad_enabled()
    with torch.set_grad_enabled(grad_mode):
        for node in split.graph.nodes:
            torch.set_grad_enabled(grad_mode)
            if node.op == "call_module":
                part = getattr(split, node.target)
                _tell_torch(part, model, sources)
                args = [given.get(one, fakes[one]) for one in node.args]
                single = _as_tuple(part)
                number = int(node.target.rpartition("_")[2])
                # The compile may change the part, and what it changes in place must not be
                # changed before.
                twin = _GRAPH_MODULE(part, copy.deepcopy(part.graph))
                with _own_context():
                    compiled = compile_part(part, args, None if number % 2 else number // 2)
                made = _run_fake(twin, [fakes[one] for one in node.args], fake_mode)
                fakes[node] = made[0] if single else made
                delattr(split, node.target)
                run = _first_of(compiled) if single else compiled
                setattr(split, node.target, run)
                # A write to a copy would be lost.
                examples = [
                    fakes[source] if BETWEEN in one.meta and not _is_written(one) else None
                    for one, source in zip(twin.graph.find_nodes(op="placeholder"), node.args)
                ]
                _lay_out_as(split, node.target, run, examples)
            elif node.op == "call_function":
                fakes[node] = node.target(fakes[node.args[0]], *node.args[1:])
    split.recompile()
    forward: Callable[..., Any] = split.forward
    return forward


def as_it_is(one: _One) -> _One:
    """The same."""
    return one


def _lay_out_as(
    split: torch.fx.GraphModule, name: str, run: Callable[..., Any], examples: Sequence[Any]
) -> None:
    """Have a part get what other parts have made with the strides that it was compiled for.

    Those are the examples'; None stands for what is left as it is. What is compiled may have others
    than the operations that it stands for: those of ``roll`` with channels last. The first call
    shows it, and all later ones are like it.
    """
    orders = {
        index: order
        for index, one in enumerate(examples)
        if isinstance(one, torch.Tensor) and (order := _dense_order(one)) is not None
    }
    if not orders:
        return

    def call(*args: Any) -> Any:
        other = {
            index: order
            for index, order in orders.items()
            if not args[index].permute(order).is_contiguous()
        }
        setattr(split, name, functools.partial(_call_laid_out, run, other) if other else run)
        return getattr(split, name)(*args)

    setattr(split, name, call)


def _dense_order(tensor: torch.Tensor) -> list[int] | None:
    """The order of dimensions in which a tensor is contiguous; None if there is none."""
    if not has_memory(tensor) or free_unbacked_symbols(tensor):
        return None
    # Asking the tensor would put guards on its sizes.
    sizes, strides = ([*map(_hint, ones)] for ones in (tensor.size(), tensor.stride()))
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    expected = 1
    for dim in reversed(order):
        if strides[dim] != expected and sizes[dim] != 1:
            return None
        expected *= max(sizes[dim], 1)
    return order


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _call_laid_out(run: Callable[..., Any], orders: dict[int, list[int]], *args: Any) -> Any:
    given = [*args]
    for index, order in orders.items():
        back = [order.index(dim) for dim in range(len(order))]
        given[index] = given[index].permute(order).contiguous().permute(back)
    return run(*given)


def _tell_torch(
    part: torch.fx.GraphModule, model: torch.fx.GraphModule, sources: dict[str, object]
) -> None:
    """Put on a part what torch asks of a module of Dynamo's."""
    part.meta = model.meta
    if hasattr(model, "_param_name_to_source"):
        part._param_name_to_source = model._param_name_to_source
    for node in part.graph.find_nodes(op="placeholder"):
        node._dynamo_source = sources.get(node.name)
        if node.name not in sources:
            node.meta = {**node.meta, BETWEEN: True}


def _as_fake(value: Any, mode: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, _FAKE):
        return value
    return importlib.import_module("torch._dynamo.utils").to_fake_tensor(value, mode)


def _run_fake(part: torch.fx.GraphModule, args: Sequence[Any], mode: Any) -> list[Any]:
    """What a part makes of fakes. In other parts these are arguments, whatever they are made of.

    The program's hooks for what autograd saves, such as a checkpoint's, get no fakes.
    """
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode, torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is):
            return [
                one.detach().requires_grad_(one.requires_grad)
                if isinstance(one, torch.Tensor)
                else one
                # Not part(), by which FX prints a traceback of its own.
                for one in part.forward(*args)
            ]
    finally:
        mode.allow_non_fake_inputs = allowed


def _as_tuple(part: torch.fx.GraphModule) -> bool:
    """Have a part return a tuple, as Inductor needs it. Returns whether it returned a tensor."""
    (output,) = part.graph.find_nodes(op="output")
    single = not isinstance(output.args[0], (tuple, list))
    if single:
        output.args = ((output.args[0],),)
        part.recompile()
    return single


def _first_of(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return compiled(*args)[0]

    return call


@contextmanager
def _own_context() -> Iterator[None]:
    """A context of its own for what torch notes of a compile, and reads in that of its backward."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        yield
        return
    with torch._guards.tracing(copy.copy(context)):
        yield


def recompiler_here() -> Callable[[Hashable], bool] | None:
    """What has the frame compiled anew, once for each op, that Dynamo compiles in this thread.

    None if this torch does not say which one it is.
    """
    dynamo: Any = importlib.import_module("torch._dynamo.symbolic_convert")
    try:
        code = dynamo.InstructionTranslator.current_tx().output.root_tx.f_code
    except AttributeError:
        return None
    there = weakref.ref(code)

    def recompile(op: Hashable) -> bool:
        code = there()
        if code is None or op in _cut.setdefault(code, set()):
            return False
        _cut[code].add(op)
        torch._C._dynamo.eval_frame.reset_code(code)
        return True

    return recompile
