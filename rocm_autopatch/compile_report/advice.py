"""Advice on what to do. Each piece is given only if the facts of a report call for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rocm_autopatch.compile_report.model import (
    CompiledGraph,
    CompileReport,
    GraphBreak,
    GuardedRecompile,
)
from rocm_autopatch.support.text import counted

# Below this part of the compile time, or below these seconds, no advice is given.
SHARE = 0.2
SECONDS = 1.0
Row = TypeVar("Row", GraphBreak, GuardedRecompile)


@dataclass(frozen=True)
class Advice:
    """One thing to do: what was seen, what to do about it, and where."""

    kind: str
    seen: str
    do: str
    places: tuple[str, ...] = ()


def advise_on_report(report: CompileReport) -> list[Advice]:
    """All advice for a report, in the order of what it usually costs."""
    return [
        *_advise_on_unfinished(report),
        *_advise_on_autotuning(report),
        *_advise_on_caches(report),
        *_advise_on_limit(report),
        *_advise_on_recompiles(report),
        *_advise_on_breaks(report),
    ]


def _advise_on_unfinished(report: CompileReport) -> Iterator[Advice]:
    hanging = [graph for graph in report.graphs if not graph.finished]
    if hanging:
        stages = ", ".join(dict.fromkeys(graph.last for graph in hanging))
        yield Advice(
            "unfinished",
            f"{counted(len(hanging), 'compile')} did not finish before the process ended or the "
            f"report was read; the last event in the trace: {stages}",
            "if a compile hangs, run py-spy dump --pid PID meanwhile, to see where; rocm-autopatch "
            "status shows whether a policy that prevents searches applies",
            _places_of(hanging),
        )


def _advise_on_autotuning(report: CompileReport) -> Iterator[Advice]:
    spent, whole = report.phases()["autotuning"], report.seconds
    if spent < SECONDS or spent < SHARE * whole:
        return
    tuned = [graph for graph in report.graphs if graph.phases.get("autotuning")]
    tuned.sort(key=lambda graph: -graph.phases["autotuning"])
    on = {
        name
        for graph in tuned
        for name in ("max_autotune", "max_autotune_gemm", "coordinate_descent_tuning")
        if graph.settings.get(name)
    }
    seen = f"autotuning took {spent / whole:.0%} of the compile time, {spent:.1f} s"
    names = {
        "max_autotune": "TORCHINDUCTOR_MAX_AUTOTUNE",
        "max_autotune_gemm": "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
        "coordinate_descent_tuning": "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    }
    if on:
        first = sorted(on)[0]
        do = (
            f"{', '.join(sorted(on))} is on: unset {' and '.join(names[n] for n in sorted(on))}, "
            f"or change what else turns it on; rocm-autopatch explain {first} says which layer "
            "decides"
        )
    elif any(graph.settings for graph in tuned):
        do = (
            "no setting of the process asks for autotuning, so the program's own call of "
            'torch.compile does, by mode="max-autotune" or options={"max_autotune": True}; on '
            "ROCm, the policy safe gives such modes another meaning (rocm-autopatch explain "
            "max-autotune)"
        )
    else:
        do = (
            'unset TORCHINDUCTOR_MAX_AUTOTUNE, and do not use mode="max-autotune"; '
            "rocm-autopatch explain max_autotune says which layer decides"
        )
    yield Advice(
        "autotuning",
        seen,
        do,
        _places_of(tuned),
    )


def _places_of(rows: Iterable[CompiledGraph | Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(one.place) for one in rows))


def _advise_on_caches(report: CompileReport) -> Iterator[Advice]:
    off = [g for g in report.graphs if g.settings.get("force_disable_caches") and g.operations]
    disabled = [g for g in report.graphs if g.settings.get("fx_graph_cache") is False]
    if off:
        yield Advice(
            "caches off",
            f"Inductor's caches are disabled: {counted(len(off), 'graph')} can't come from a "
            "cache, in this run or the next",
            "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES (rocm-autopatch explain "
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES says which layer decides)",
        )
    elif disabled:
        yield Advice(
            "caches off",
            f"Inductor's graph cache is off for {counted(len(disabled), 'graph')}",
            "set TORCHINDUCTOR_FX_GRAPH_CACHE=1; rocm-autopatch explain fx_graph_cache says which "
            "layer decides",
        )
    changed: dict[str, list[CompiledGraph]] = defaultdict(list)
    for graph in report.graphs:
        for text in graph.changed:
            changed[text].append(graph)
    for text, graphs in changed.items():
        yield Advice(
            "cache key changed",
            f"{counted(len(graphs), 'graph')} compiled again that the kept caches have, because "
            f"something in the key is another one: {text}",
            "if that was not wanted, rocm-autopatch explain NAME says which layer decides; what "
            "was compiled now is in the caches, too",
            _places_of(graphs),
        )
    same: dict[tuple[str, ...], list[CompiledGraph]] = defaultdict(list)
    for graph in report.graphs:
        if graph.missed:
            same[graph.missed].append(graph)
    twice = [graphs for graphs in same.values() if len({one.process for one in graphs}) > 1]
    # All but one of each could have come from the cache.
    lost = sum(sum(g.seconds for g in graphs) - max(g.seconds for g in graphs) for graphs in twice)
    if lost >= SECONDS:
        most = max(len({one.process for one in graphs}) for graphs in twice)
        yield Advice(
            "compiled twice",
            f"{counted(len(twice), 'graph')} compiled in several processes, up to {most}, with the "
            f"same cache key: loading from the cache could have replaced {lost:.1f} s of compiling",
            "let one process compile first (a warm-up of rank 0 before the others start), and use "
            "one TORCHINDUCTOR_CACHE_DIR for all processes",
            _places_of(graphs[0] for graphs in twice),
        )


def _advise_on_limit(report: CompileReport) -> Iterator[Advice]:
    raised = [one for one in report.recompiles if one.raised]
    ended = [end for end in report.ends if end.limit]
    if raised or ended:
        count = counted(len(raised) or len(ended), "place")
        yield Advice(
            "recompile limit",
            f"the recompile limit was reached in {count} where that is an error, because of "
            "fullgraph=True",
            "avoid the recompiles (see below), or raise torch._dynamo.config.recompile_limit "
            "(cache_size_limit up to torch 2.6), or leave out fullgraph=True: then the code runs "
            "uncompiled for other inputs. rocm-autopatch explain recompile_limit says which layer "
            "decides",
            _places_of(raised) or tuple(dict.fromkeys(str(end.place) for end in ended)),
        )
    hit = [one for one in report.recompiles if one.limit > one.raised]
    if hit:
        yield Advice(
            "recompile limit",
            f"the recompile limit was reached in {counted(len(hit), 'place')}: since then the code "
            "runs uncompiled for other inputs",
            "avoid the recompiles (see below), or raise torch._dynamo.config.recompile_limit "
            "(cache_size_limit up to torch 2.6); rocm-autopatch explain recompile_limit says which "
            "layer decides",
            _places_of(hit),
        )


_GUARDS = (
    (
        "size",
        re.compile(r"size mismatch at index (\d+)|\.size\(\)\[\d+\]|stride mismatch"),
        "a tensor's size differs",
        "call torch._dynamo.mark_dynamic(tensor, dimension) before, or use "
        "torch.compile(dynamic=True), or remove dynamic=False; or pad the input to a few sizes",
    ),
    (
        "number",
        re.compile(r"(==|!=|<=|>=|<|>) …"),
        "a Python number is not the one that the code was compiled for",
        "use torch.compile(dynamic=True), or pass the number as a tensor; for an attribute of a "
        "module, from torch 2.7 on: torch._dynamo.config.allow_unspec_int_on_nn_module = True",
    ),
    (
        "dtype",
        re.compile(r"dtype mismatch|dtype"),
        "a tensor's dtype differs",
        "call the code with one dtype, or compile a function for each dtype",
    ),
    (
        "gradients",
        re.compile(r"grad_mode|GLOBAL_STATE|global_state|requires_grad|inference mode", re.I),
        "the state of autograd differs",
        "call the code always under torch.no_grad() or never, with inputs that have the same "
        "requires_grad",
    ),
    (
        "object",
        re.compile(r"check_obj_id|check_type_id|___check|ID_MATCH|\bis\b|object"),
        "an object is not the one that the code was compiled for",
        "pass the same object at each call, or make the part that differs an argument of its own",
    ),
)


def _advise_on_recompiles(report: CompileReport) -> Iterator[Advice]:
    found, _ = _sorted_by_advice(_GUARDS, report.recompiles, lambda one: one.guard)
    for kind, seen, do, rows in found:
        count = sum(one.count + one.limit for one in rows)
        spent = sum(one.seconds for one in rows)
        said = f"{counted(count, 'recompile')}, {spent:.1f} s, because {seen}"
        yield Advice(f"recompile: {kind}", said, do, _places_of(rows))


_BREAKS = (
    (
        "item",
        re.compile(r"\.item\b|Tensor\.item|_local_scalar_dense|tolist", re.I),
        "the code reads a value out of a tensor (.item(), tolist())",
        "keep the value in a tensor (torch.where, masks), or set "
        "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1, so that Dynamo captures it",
    ),
    (
        "shape",
        re.compile(r"dynamic (output )?shape|aten\.(nonzero|unique|masked_select)", re.I),
        "the size of a result depends on the content of a tensor (nonzero, masks as an index)",
        "keep the size (torch.where, masks), or set "
        "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS=1, so that Dynamo captures it",
    ),
    (
        "branch",
        re.compile(r"data-dependent (branching|jump)|control flow|generic_jump", re.I),
        "a Python branch depends on the content of a tensor",
        "use torch.where or torch.cond instead of the branch",
    ),
    (
        "print",
        re.compile(r"builtin:? `?(operator `)?print\b|`print`|Logger|the builtin `_?warnings"),
        "the code prints or logs",
        "move that out of the compiled code, or let Dynamo do it after the graph: "
        "torch._dynamo.config.reorderable_logging_functions.add(print)",
    ),
    (
        "disabled",
        re.compile(r"compiler\.disable|_dynamo\.disable|dynamo\.disable", re.I),
        "the code calls a function that torch.compiler.disable keeps out of graphs",
        "remove the disable, and let Dynamo see an operation instead: call torch.ops.LIBRARY.NAME "
        "of the vendor's library, or register the function by torch.library.custom_op",
    ),
    (
        "skipped",
        re.compile(r"marked as skipped|skip(ped)? function|SkipFilesVariable|skipfiles", re.I),
        "the code calls a function that Dynamo can't or won't trace, such as one in C++ or a "
        "vendor library's Python wrapper",
        "call the operation itself, torch.ops.LIBRARY.NAME, or register the wrapper by "
        "torch.library.custom_op",
    ),
)


def _advise_on_breaks(report: CompileReport) -> Iterator[Advice]:
    found, others = _sorted_by_advice(
        _BREAKS, report.breaks, lambda one: f"{one.reason} {one.explanation}"
    )
    hinted = [one for one in others if one.hints]
    found += [("other", one.reason, f"torch says: {one.hints[0]}", [one]) for one in hinted[:3]]
    for kind, seen, do, rows in found:
        count = counted(sum(one.count for one in rows), "graph break")
        yield Advice(f"graph break: {kind}", f"{count}: {seen}", do, _places_of(rows))


def _sorted_by_advice(
    table: Sequence[tuple[str, re.Pattern[str], str, str]],
    rows: Iterable[Row],
    text: Callable[[Row], str],
) -> tuple[list[tuple[str, str, str, list[Row]]], list[Row]]:
    """The kind, what was seen, what to do, and the rows whose text fits: for each line of *table*
    that has such rows. Then the rows that no line fits."""
    found: dict[str, list[Row]] = defaultdict(list)
    for one in rows:
        fits = (kind for kind, pattern, _, _ in table if pattern.search(text(one)))
        found[next(fits, "")].append(one)
    kinds = [(kind, seen, do, found[kind]) for kind, _, seen, do in table if kind in found]
    return kinds, found[""]
