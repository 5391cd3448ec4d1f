"""What the compile report reads of PyTorch's structured trace, on each torch from 2.4 to 2.15.

    python experiments/matrix/trace_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. A row is an event or a field that the report reads, with the versions whose source
writes it: its name is in a call of trace_structured, or among the fields of CompilationMetrics. The
last rows are what the start-up hook and the profile patch. What is not as expected is marked with
an exclamation mark, and makes the exit status 1. Nothing is imported from those torches, and
nothing compiles.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from torch_files import directories

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rocm_autopatch.compile_report import generations, trace

# Since which torch, "" for 2.4. A star in a name in the source stands for what is put in there.
EVENTS = {
    "dynamo_start": "",
    "compilation_metrics": "",
    "inductor_post_grad_graph": "",
    "aot_forward_graph": "",
    "aot_backward_graph": "",
    "aot_inference_graph": "2.6",
    "dynamo_output_graph": "",
    "inductor_output_code": "",
    "chromium_event": "2.5",
    "dynamo_cpp_guards_str": "",
    "str": "",
    # From 2.6 on "fx_graph_cache_" and a state, one of which may be any.
    "fx_graph_cache_hash": "",
    "fx_graph_cache_hit": "2.6",
    "fx_graph_cache_miss": "2.6",
    "recompile_reasons": "2.5",
    "dynamo_graph_break_reason": "2.6",
    "torch_version": "2.12",
}
FIELDS = {
    "compile_id": "",
    "co_name": "",
    "co_filename": "",
    "co_firstlineno": "",
    "start_time": "",
    "graph_node_count": "",
    "entire_frame_compile_time_s": "",
    "backend_compile_time_s": "",
    "inductor_compile_time_s": "",
    "fail_type": "",
    "fail_reason": "",
    "restart_reasons": "",
    "duration_us": "2.6",
    "inductor_config": "2.6",
    "backward_cumulative_compile_time_us": "2.6",
    "runtime_triton_autotune_time_us": "2.6",
    "compile_time_autotune_time_us": "2.7",
    "is_runtime": "2.7",
    "recompile_reason": "2.7",
    "compiler_config": "2.10",
    "pytorch_version": "2.10",
}

# What the hook and the profile take hold of, and what the text of a payload is made of: the file,
# and since which torch.
TYPES = "type={guard_manager.get_type_of_guarded_value()}"
HOLDS = {
    "trace_log = logging.getLogger(": ("torch/_logging/_internal.py", ""),
    "class LazyTraceHandler(": ("torch/_logging/_internal.py", ""),
    "os.environ.get(TRACE_ENV_VAR": ("torch/_logging/_internal.py", ""),
    "def supported_activities(": ("torch/profiler/profiler.py", ""),
    "def _prepare_trace(": ("torch/autograd/profiler.py", ""),
    TYPES: ("torch/_dynamo/guards.py", "2.9"),
}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node


def texts(node: ast.AST | None) -> Iterator[str]:
    """The texts that an expression may be, with a star for what is not told in the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values
        )


def first(call: ast.Call) -> ast.AST | None:
    if call.args:
        return call.args[0]
    return next((word.value for word in call.keywords if word.arg == "name"), None)


def events(directory: Path) -> set[str]:
    """The names of all events that a torch may write, artifacts by their own."""
    found: set[str] = set()
    for path in sorted(directory.glob("torch/**/*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "trace_structured" not in text:
            continue
        for call in calls(ast.parse(text)):
            name = ast.unparse(call.func).rpartition(".")[2]
            if name == "trace_structured_artifact":
                found.update(texts(first(call)))
            elif name == "trace_structured":
                said = set(texts(first(call)))
                found |= said - {"artifact"}
                if "artifact" in said:
                    found.update(artifacts(call))
    # compilation_metrics is written under a name that a variable holds.
    utils = (directory / "torch/_dynamo/utils.py").read_text(encoding="utf-8")
    return found | {name for name in trace.METRICS if f'"{name}"' in utils}


def artifacts(call: ast.Call) -> Iterator[str]:
    for node in ast.walk(call):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value == "name":
                    yield from texts(value)


def fields(directory: Path) -> set[str]:
    """The fields of CompilationMetrics."""
    tree = ast.parse((directory / "torch/_dynamo/utils.py").read_text(encoding="utf-8"))
    (metrics,) = (n for n in tree.body if getattr(n, "name", "") == "CompilationMetrics")
    assert isinstance(metrics, ast.ClassDef)
    return {
        node.target.id
        for node in metrics.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def expected(rule: str, version: str) -> bool:
    return not rule or release(version) >= release(rule)


def main() -> int:
    places, _ = directories("PyTorch's structured trace on every torch, as a table.")
    versions = [directory.name for directory in places]
    told = {directory.name: (events(directory), fields(directory)) for directory in places}
    short = [".".join(version.split(".")[:2]) for version in versions]
    print(f"{'':44}", *(f"{version:>5}" for version in short))
    wrong = 0
    for index, (title, rows) in enumerate((("event", EVENTS), ("metric", FIELDS))):
        for name, rule in rows.items():
            cells = []
            for version in versions:
                there = any(fnmatch(name, p) for p in told[version][index] if p != "*")
                odd = there != expected(rule, version)
                wrong += odd
                cells.append(f"{'yes' if there else '-':>4}{'!' if odd else ' '}")
            print(f"{title + ' ' + name:44}", *cells)
    for text, (file, rule) in HOLDS.items():
        cells = []
        for directory in places:
            there = text in (directory / file).read_text(encoding="utf-8")
            odd = there != expected(rule, directory.name)
            wrong += odd
            cells.append(f"{'yes' if there else '-':>4}{'!' if odd else ' '}")
        print(f"{'source ' + text:44.44}", *cells)
    wrong += consistent()
    return 1 if wrong else 0


def consistent() -> int:
    """How many versions in the report differ from the tables above."""
    claims = {
        "the line and the hints of a graph break": EVENTS["dynamo_graph_break_reason"],
        "which guard failed before a recompile": EVENTS["recompile_reasons"],
        "seconds of autotuning": "2.6",  # as chromium events, then as a metric
        "the settings that a graph was compiled with": FIELDS["inductor_config"],
        "the class of a model": HOLDS[TYPES][1],
    }
    wrong = {what for what, since in generations.SINCE.items() if release(claims[what]) != since}
    newest = generations.GENERATIONS[0]
    if release(FIELDS["compile_time_autotune_time_us"]) != newest.since:
        wrong.add("since when compilation_metrics has the seconds of autotuning")
    for what in sorted(wrong):
        print(f"! compile_report/generations.py has another version: {what}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
