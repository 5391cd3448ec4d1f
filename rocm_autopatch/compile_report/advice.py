"""What to do, by what was gathered: each piece only where the facts call for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rocm_autopatch.compile_report.model import Break, Graph, Recompile, Report

# A part of the compile time below which nothing is said of it, and seconds likewise.
SHARE = 0.2
SECONDS = 1.0


@dataclass(frozen=True)
class Advice:
    """One thing to do: what was seen, what to do about it, and where."""

    kind: str
    seen: str
    do: str
    places: tuple[str, ...] = ()


def advise(report: Report) -> list[Advice]:
    """All advice for a report, the dearest matter first."""
    return [
        *_unfinished(report),
        *_autotuning(report),
        *_caches(report),
        *_limit(report),
        *_recompiles(report),
        *_breaks(report),
    ]


def _unfinished(report: Report) -> Iterator[Advice]:
    hanging = [graph for graph in report.graphs if not graph.finished]
    if hanging:
        stages = ", ".join(dict.fromkeys(graph.last for graph in hanging))
        yield Advice(
            "unfinished",
            f"{_count(len(hanging), 'compile')} did not finish before the process ended or this "
            f"was read; the last that the trace has of it: {stages}",
            "if it hung: py-spy dump --pid PID shows where while it does; rocm-autopatch status "
            "shows whether a policy against searches applies",
            _places(hanging),
        )


def _autotuning(report: Report) -> Iterator[Advice]:
    spent, whole = report.phases()["autotuning"], report.seconds
    if spent < SECONDS or spent < SHARE * whole:
        return
    tuned = [graph for graph in report.graphs if graph.phases.get("autotuning")]
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
            f"{', '.join(sorted(on))} is on: unset {' and '.join(names[n] for n in sorted(on))} or "
            f"what else sets it; rocm-autopatch explain {first} says who decides"
        )
    elif any(graph.settings for graph in tuned):
        do = (
            "no setting of the process asks for it, so the program does where it compiles: "
            'torch.compile(mode="max-autotune") or options={"max_autotune": True}; the policy '
            "safe gives such modes another meaning on ROCm (rocm-autopatch explain max-autotune)"
        )
    else:
        do = (
            'unset TORCHINDUCTOR_MAX_AUTOTUNE, and leave mode="max-autotune" out; '
            "rocm-autopatch explain max_autotune says who decides"
        )
    yield Advice(
        "autotuning",
        seen,
        do,
        _places(sorted(tuned, key=lambda graph: -graph.phases["autotuning"])),
    )


def _places(graphs: Iterable[Graph]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(graph.place) for graph in graphs))


def _caches(report: Report) -> Iterator[Advice]:
    off = [g for g in report.graphs if g.settings.get("force_disable_caches") and g.operations]
    disabled = [g for g in report.graphs if g.settings.get("fx_graph_cache") is False]
    if off:
        yield Advice(
            "caches off",
            f"Inductor's caches are disabled: {_count(len(off), 'graph')} can't be had from a "
            "cache, in this run or the next",
            "unset TORCHINDUCTOR_FORCE_DISABLE_CACHES (rocm-autopatch explain "
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES says who decides)",
        )
    elif disabled:
        yield Advice(
            "caches off",
            f"Inductor's graph cache is off for {_count(len(disabled), 'graph')}",
            "unset TORCHINDUCTOR_FX_GRAPH_CACHE, or set it to 1; rocm-autopatch explain "
            "fx_graph_cache says who decides",
        )
    same: dict[tuple[str, ...], list[Graph]] = defaultdict(list)
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
            f"{_count(len(twice), 'graph')} compiled in several processes, up to {most}, under the "
            f"same cache key: {lost:.1f} s of compiling could have been loading from the cache",
            "let one process compile first (a warm-up of rank 0 before the others start), with "
            "one TORCHINDUCTOR_CACHE_DIR for all of them",
            _places(graphs[0] for graphs in twice),
        )


def _limit(report: Report) -> Iterator[Advice]:
    hit = [one for one in report.recompiles if one.limit]
    if hit:
        yield Advice(
            "recompile limit",
            f"the recompile limit was reached in {_count(len(hit), 'place')}: from there on the "
            "code runs uncompiled for other inputs",
            "end the recompiles (below), or raise torch._dynamo.config.recompile_limit "
            "(cache_size_limit up to torch 2.6); rocm-autopatch explain recompile_limit says who "
            "decides",
            tuple(str(one.place) for one in hit),
        )


_GUARDS = (
    (
        "size",
        re.compile(r"size mismatch at index (\d+)|\.size\(\)\[\d+\]|stride mismatch"),
        "a tensor's size differs",
        "torch._dynamo.mark_dynamic(tensor, dimension) before the call, or "
        "torch.compile(dynamic=True), or leave dynamic=False out; or pad to few sizes",
    ),
    (
        "number",
        re.compile(r"(==|!=|<=|>=|<|>) …"),
        "a Python number that the code was compiled for differs",
        "torch.compile(dynamic=True), or hand it over as a tensor; for an attribute of a module: "
        "torch._dynamo.config.allow_unspec_int_on_nn_module = True",
    ),
    (
        "dtype",
        re.compile(r"dtype mismatch|dtype"),
        "a tensor's type differs",
        "call it with one dtype, or compile a function for each",
    ),
    (
        "gradients",
        re.compile(r"grad_mode|GLOBAL_STATE|global_state|requires_grad|inference mode", re.I),
        "the state of autograd differs",
        "call it always under torch.no_grad() or never, with inputs alike in requires_grad",
    ),
    (
        "object",
        re.compile(r"check_obj_id|check_type_id|___check|ID_MATCH|\bis\b|object"),
        "another object is there than at the compile",
        "hand the same object in at each call, or make what differs an argument of its own",
    ),
)


def _recompiles(report: Report) -> Iterator[Advice]:
    found: dict[str, list[Recompile]] = defaultdict(list)
    for one in report.recompiles:
        for kind, pattern, _, _ in _GUARDS:
            if pattern.search(one.guard):
                found[kind].append(one)
                break
    for kind, _, seen, do in _GUARDS:
        rows = found.get(kind)
        if rows:
            count = sum(one.count + one.limit for one in rows)
            spent = sum(one.seconds for one in rows)
            yield Advice(
                f"recompile: {kind}",
                f"{_count(count, 'recompile')}, {spent:.1f} s, because {seen}",
                do,
                tuple(dict.fromkeys(str(one.place) for one in rows)),
            )


_BREAKS = (
    (
        "item",
        re.compile(r"\.item\b|Tensor\.item|_local_scalar_dense|tolist|aten\.nonzero", re.I),
        "a value is read out of a tensor",
        "keep it a tensor (torch.where, masks), or capture it: "
        "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1",
    ),
    (
        "branch",
        re.compile(r"data-dependent (branching|jump)|control flow|generic_jump", re.I),
        "Python branches on what is in a tensor",
        "torch.where or torch.cond instead of the branch",
    ),
    (
        "print",
        re.compile(r"builtin:? `?(operator `)?print\b|`print`|Logger|the builtin `_?warnings"),
        "it prints or logs",
        "take that out of the compiled code, or have it done after the graph: "
        "torch._dynamo.config.reorderable_logging_functions.add(print)",
    ),
    (
        "disabled",
        re.compile(r"compiler\.disable|_dynamo\.disable|dynamo\.disable", re.I),
        "it calls a function that torch.compiler.disable keeps out of graphs",
        "compile through it: for an operation of a vendor's library call torch.ops.LIBRARY.NAME, "
        "or register it by torch.library.custom_op, and drop the disable",
    ),
    (
        "skipped",
        re.compile(r"marked as skipped|skip(ped)? function|SkipFilesVariable|skipfiles", re.I),
        "it calls a function that Dynamo can't or won't trace, such as one in C++ or a vendor "
        "library's Python wrapper",
        "call the operation itself, torch.ops.LIBRARY.NAME, or register the wrapper by "
        "torch.library.custom_op",
    ),
)


def _breaks(report: Report) -> Iterator[Advice]:
    found: dict[str, list[Break]] = defaultdict(list)
    for one in report.breaks:
        for kind, pattern, _, _ in _BREAKS:
            if pattern.search(f"{one.reason} {one.explanation}"):
                found[kind].append(one)
                break
        else:
            if one.hints:
                found["other"].append(one)
    for kind, _, seen, do in _BREAKS:
        if found.get(kind):
            yield _of_breaks(kind, seen, do, found[kind])
    for one in found.get("other", ())[:3]:
        yield _of_breaks("other", f"{one.reason}", f"torch says: {one.hints[0]}", [one])


def _of_breaks(kind: str, seen: str, do: str, breaks: list[Break]) -> Advice:
    count = sum(one.count for one in breaks)
    return Advice(
        f"graph break: {kind}",
        f"{_count(count, 'graph break')}: {seen}",
        do,
        tuple(dict.fromkeys(str(one.place) for one in breaks)),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
