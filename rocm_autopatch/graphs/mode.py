"""``compile_modes: {reduce-overhead: graphs}``: what Dynamo gives to the compiler runs as graphs.

Inductor compiles each graph of operations in the mode without its own capture (``default`` for
``reduce-overhead``), and we capture each one separately.
Everything else stays torch's own: the object that ``torch.compile`` returns, Dynamo's guards, what
it does between graph breaks, recompiles. So whenever torch compiles anew, we capture anew. Weights
are arguments of the compiled graph, and their addresses are compared at each call.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from rocm_autopatch import failure, startup
from rocm_autopatch.graphs import capture, partition, record, soundness, write_back
from rocm_autopatch.graphs.calls import GraphOptions, InferenceCalls
from rocm_autopatch.graphs.graph_cache import GraphCache
from rocm_autopatch.graphs.layout import has_memory, objection_to_layouts
from rocm_autopatch.graphs.pytrees import SignatureLookup
from rocm_autopatch.graphs.refusal import GRADIENTS, Refused
from rocm_autopatch.graphs.training import TrainingRegion

# More than for a single function: layers that share their code share the graphs of operations.
_LIMIT = 256
_WARMUP = 2
# Since torch 2.8, this can be asked of the guards of a weight.
_GUARDS_LAYOUTS = startup.release(torch.__version__) >= (2, 8)
# Where Dynamo has found an argument of the frame, or what a container in one has.
_ARGUMENT = re.compile(r"L(\[[^\]]*\])+")
# From so many bytes on, a tensor that the program keeps in an attribute, a closure or a global is
# read where it is.
_LARGE = 1 << 20

# What compiles a module for its example inputs.
CompileOne = Callable[[torch.fx.GraphModule, Sequence[object]], Callable[..., object]]


@dataclass(frozen=True)
class RegionOwner:
    """What a ``graphed`` callable has for its compiled regions: its row, options and pools.

    *regions* gets a weak reference to the graphs of each.
    """

    row: record.CallableRow
    options: GraphOptions
    pools: capture.CapturePools
    regions: list[weakref.ref[GraphCache]]


class CompiledRegion:
    """A graph of operations, about to be compiled.

    *model* is its ``torch.fx.GraphModule``, *inputs* its example inputs. *origin* is the mode that
    the program asked for. With *training*, forward and backward become graphs where gradients are
    needed. All that one thread compiles shares the pools of its graphs, if no *owner* has his own.
    *part* is its number where what Dynamo has recorded is cut.
    """

    def __init__(
        self,
        model: torch.fx.GraphModule,
        inputs: Sequence[object],
        origin: str,
        training: bool,
        owner: RegionOwner | None = None,
        part: int | None = None,
    ) -> None:
        placeholders = [node for node in model.graph.nodes if node.op == "placeholder"]
        self._count = len(inputs)
        pairs = [*enumerate(zip(inputs, placeholders))]
        fixed = {index for index, (one, node) in pairs if _is_fixed(one, node)}
        # What is changed in place stays where it is, too: a cache of keys and values that a program
        # passes as an argument. Other than a weight's, its shape may differ from call to call.
        stays = _is_changed if owner is None else _is_large_state
        changed = {index for index, (one, node) in pairs if index not in fixed and stays(one, node)}
        # Of a weight, guards may not look at more than the address: then the signature has it, too.
        unknown = owner is not None and not _GUARDS_LAYOUTS
        self._keyed = [index for index in range(self._count) if unknown or index not in fixed]
        # These are not inputs: weights before torch 2.5.
        self._held = [*model.parameters(), *model.buffers()]
        indices = [
            *sorted(fixed | changed),
            *range(self._count, self._count + len(self._held)),
        ]
        recompile = partition.recompiler_here()
        name = _region_name(model) + ("" if part is None else f", part {part}")
        pools = capture.CapturePools.of_this_thread() if owner is None else owner.pools
        tensors = [one for one in (*inputs, *self._held) if isinstance(one, torch.Tensor)]
        self._region: TrainingRegion | None = None
        needed = any(one.requires_grad for one in tensors)
        gradients = torch.is_grad_enabled() and needed
        if gradients and training:
            self._region = TrainingRegion(name, origin, pools, recompile)
        check = soundness.checks_by_default()
        options = GraphOptions(limit=_LIMIT, warmup=_WARMUP, clone=True, verify=True, check=check)
        # What Inductor has compiled does nothing but launch kernels.
        self.graphs = GraphCache(
            InferenceCalls(
                self._call_compiled, pools if owner is None else None, _device_of(model)
            ),
            name,
            origin,
            options if owner is None else owner.options,
            pools,
            indices,
            changed=changed - fixed,
            row=None if owner is None else owner.row,
        )
        self.graphs.strategy.recompile = recompile
        if owner is not None:
            owner.regions.append(weakref.ref(self.graphs))
        inside = needed and not gradients and partition.turns_gradients_on(model)
        untrained = inside or (gradients and not training)
        self._never = GRADIENTS if untrained else _why_never(tensors)
        if self._never:
            self.graphs.refuse(self._never, [])

    def note_cuts(self, why: Sequence[str]) -> None:
        """Put on the record around what this part was cut off."""
        record.record_cuts(self.graphs.row, why)
        if self._region is not None:
            self._region.cuts = why

    def compiling(self) -> AbstractContextManager[None]:
        """The context in which it is compiled."""
        if self._region is None or self._never:
            return nullcontext()
        try:
            return self._region.compiling()
        except Refused as refused:
            self._never = str(refused)
            self.graphs.refuse(self._never, [])
            return nullcontext()

    def run(self, compiled: Callable[..., object]) -> Callable[..., object]:
        """What to call instead of *compiled*, the result of the compile."""
        self._compiled = compiled
        if self._never:
            return self._plain_function(self._never)
        return self._as_graphs() if self._region is None else self._region.run(compiled)

    def _call_compiled(self, _: object, leaves: list[object]) -> object:
        return self._compiled(*leaves[: self._count])

    def _plain_function(self, never: str) -> Callable[..., object]:
        row, compiled = self.graphs.row, self._compiled

        def call(*args: object) -> object:
            record.count_plain_call(row, never)
            return compiled(*args)

        return call

    def _as_graphs(self) -> Callable[..., object]:
        graphs, keyed, held, compiled = self.graphs, self._keyed, self._held, self._compiled
        signatures = SignatureLookup()

        def call(*args: object) -> object:
            try:
                if capture.is_capturing():
                    raise Refused("another capture is under way and records these kernels")
                key = signatures.find_signature([args[index] for index in keyed])
            except Refused as refused:
                record.count_plain_call(graphs.row, str(refused))
                return compiled(*args)
            return graphs.run_call(key, None, [*args, *held])

        return call


def compile_regions(
    model: torch.fx.GraphModule,
    inputs: Sequence[object],
    compile_one: CompileOne,
    origin: str,
    training: bool,
    owner: RegionOwner | None = None,
) -> Callable[..., object]:
    """Compile what Dynamo has recorded: as one region, or cut around what no graph may contain.

    *compile_one* compiles a module for its example inputs. The other arguments are those of
    :class:`CompiledRegion`. Raises what *compile_one* raises.
    """

    def compile_part(
        part: torch.fx.GraphModule, given: Sequence[object], number: int | None
    ) -> Callable[..., object]:
        if number is None:
            return compile_one(part, given)
        return _compile_region(part, given, compile_one, (origin, training, owner, number), why)

    if getattr(torch._functorch.config, "bundled_autograd_cache", False):
        # aot_compile() and the like ask the result for serialize(), and what they load never comes
        # here.
        startup.fail("graphs", f"{_region_name(model)} has no graphs: what is compiled is saved")
        return compile_one(model, inputs)
    why: list[str] = []
    whole = (origin, training, owner, None)
    try:
        device = _device_of(model)
        numbers = partition.find_numbers(model, inputs, device)
        wrap: Callable[[Callable[..., object]], Callable[..., object]] = partition.as_it_is
        given = inputs
        if numbers and device is not None:
            given, wrap = partition.move_numbers(model, inputs, numbers, device)
        parts = partition.find_parts(model)
        if parts is not None:
            why = parts.why
            return wrap(partition.compile_parts(model, given, parts, compile_part))
        if numbers:
            return wrap(_compile_region(model, given, compile_one, whole))
    except Exception as error:
        if failure.programs_own(error):
            raise
        # If it is the compile's error, the compile of all of it raises it, too.
        startup.fail(
            "graphs", f"{_region_name(model)} is not cut into parts: {failure.describe(error)}"
        )
    return _compile_region(model, inputs, compile_one, whole)


def _compile_region(
    model: torch.fx.GraphModule,
    inputs: Sequence[object],
    compile_one: CompileOne,
    how: tuple[str, bool, RegionOwner | None, int | None],
    cuts: Sequence[str] = (),
) -> Callable[..., object]:
    """Compile a module, with graphs if nothing of ours fails."""
    try:
        # This comes before the compile, because the compile may change the model.
        found = CompiledRegion(model, inputs, *how)
        found.note_cuts(cuts)
    except Exception as error:
        if failure.programs_own(error):
            raise
        startup.fail(
            "graphs", "a compiled function runs without graphs: " + failure.describe(error)
        )
        return compile_one(model, inputs)
    with found.compiling():
        compiled = compile_one(model, inputs)
    return found.run(compiled)


def _is_fixed(value: object, node: torch.fx.Node) -> bool:
    """Whether an input is a weight, a buffer, or marked by torch._dynamo.mark_static_address."""
    marks = node.meta.get("tensor_dict") or {}
    return (
        isinstance(value, torch.nn.Parameter)
        or bool(getattr(value, "_dynamo_static_input_type", None))
        or bool(marks.get("_dynamo_static_input_type"))
    )


def _is_large_state(value: object, node: torch.fx.Node) -> bool:
    """Whether a tensor is no argument or changed in place, and too large for a copy in each call.

    A program may make an attribute anew in each call, as it makes arguments.
    """
    if not isinstance(value, torch.Tensor) or not has_memory(value):
        return False
    if partition.BETWEEN in node.meta:
        return False  # Another part has made it in this call.
    size = value.numel() * value.element_size()
    source = getattr(getattr(node, "_dynamo_source", None), "name", "")
    if _ARGUMENT.fullmatch(source() if callable(source) else source):
        return bool(size > write_back.MOST) and _is_changed(value, node)
    return bool(size > _LARGE)


def _is_changed(_: object, node: torch.fx.Node) -> bool:
    """Whether the graph changes an input in place that stays where it is."""
    if partition.BETWEEN in node.meta:
        return False
    example = node.meta.get("example_value")
    # The fake tensors with which Dynamo traced count the writes to them.
    return (
        isinstance(example, torch.Tensor) and not example.is_inference() and bool(example._version)
    )


def _why_never(tensors: list[torch.Tensor]) -> str | None:
    """Why a graph of operations can't be captured with any arguments, None if it may be."""
    for one in tensors:
        if one.device.type != capture.CapturePool.kind:
            return f"a tensor is on {one.device}, and a graph can only read the GPU's memory"
    return objection_to_layouts(tensors)


def _device_of(model: torch.fx.GraphModule) -> torch.device | None:
    """The GPU that a graph of operations makes tensors on; None if there is none, or several."""
    made = {
        leaf.device
        for node in model.graph.nodes
        for leaf in torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
        if isinstance(leaf, torch.Tensor) and leaf.device.type == capture.CapturePool.kind
    }
    return made.pop() if len(made) == 1 else None


def _region_name(model: torch.fx.GraphModule) -> str:
    """Where in the program a graph of operations begins."""
    for node in model.graph.nodes:
        trace = str(getattr(node, "stack_trace", "") or "")
        places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace)
        if places:
            file, line, function = places[-1]
            return f"{function} ({file}:{line})"
    return "an unnamed compiled function"
