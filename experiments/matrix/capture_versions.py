"""What the capture patch assumes of each torch from 2.4 to 2.15, on its real files, without torch.

    python experiments/matrix/capture_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each line of the printed table is a fact, and says what it is in which versions. The
upper facts are read from the source. For the lower ones, the version's own functions around the
random generator's state run under the patch, in a process of their own. Torch is a mock there. The
generator raises in a capture on every version; a real one does so up to 2.9. No compiler and no GPU
runs. What is not as expected is marked with an exclamation mark, and makes
the exit status 1.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from torch_files import child, directories, table

ROOT = Path(__file__).resolve().parents[2]
CONVERT_FRAME = "torch/_dynamo/convert_frame.py"
UTILS = "torch/_dynamo/utils.py"
RANDOM = "torch/cuda/random.py"
NATIVE_ERROR = "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture"


class Source:
    """The Python files of one torch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        if path not in self.trees:
            self.trees[path] = ast.parse((self.directory / path).read_text(encoding="utf-8"))
        return self.trees[path]

    def functions(self, path: str, name: str) -> list[ast.FunctionDef]:
        """The functions of this name at a module's level."""
        body = self.tree(path).body
        return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]

    def named(self, name: str) -> Iterator[tuple[Path, str]]:
        """The files with a word in them, and their text."""
        for path in sorted(self.directory.glob("torch/**/*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if name in text:
                yield path.relative_to(self.directory), text


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Calls of a name, or of an attribute with these dotted names at its end."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [node for node in found if ("." + ast.unparse(node.func)).endswith("." + name)]


def choke_point(source: Source) -> str:
    """How often _compile is bound at the level of its module."""
    tree = source.tree(CONVERT_FRAME)
    bound = len(source.functions(CONVERT_FRAME, "_compile"))
    bound += sum(
        isinstance(n, ast.Name) and n.id == "_compile" and isinstance(n.ctx, ast.Store)
        for n in ast.walk(tree)
    )
    return "once" if bound == 1 else str(bound)


def by_name(source: Source) -> str:
    """Where _compile is called by its global name; any other use of the name is listed too."""
    found = []
    for top in source.tree(CONVERT_FRAME).body:
        uses = [n for n in ast.walk(top) if isinstance(n, ast.Name) and n.id == "_compile"]
        called = [call.func for call in calls(top, "_compile") if isinstance(call.func, ast.Name)]
        found += [getattr(top, "name", "?")] * len(called)
        found += ["?"] * (len(uses) - len(called))
    return ", ".join(found)


def elsewhere(source: Source) -> str:
    """Files that take _compile out of convert_frame, past a change of the module's attribute."""
    found = []
    for path, text in source.named("convert_frame"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("convert_frame"):
                found += [str(path) for name in node.names if name.name == "_compile"]
            elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith(
                ("convert_frame._compile", "_cf._compile")
            ):
                found.append(str(path))
    return ", ".join(found) or "nowhere"


def arguments(source: Source) -> str:
    """Whether code comes first and skip by keyword, in the definition and in both calls."""
    (function,) = source.functions(CONVERT_FRAME, "_compile")
    names = function.args.args[0].arg, [argument.arg for argument in function.args.kwonlyargs]
    sent = calls(source.tree(CONVERT_FRAME), "_compile")
    first = {ast.unparse(call.args[0]).rpartition(".")[2] for call in sent}
    fine = names[0] == "code" and "skip" in names[1] and first == {"f_code", "code"}
    return "yes" if fine else f"{names}, {first}"


def locked(source: Source) -> str:
    """Whether every call from the frame evaluator into a compile holds compile_lock."""
    tree = source.tree(CONVERT_FRAME)
    (wrapper,) = (n for n in tree.body if getattr(n, "name", "") == "CatchErrorsWrapper")
    inside = {
        id(node)
        for block in ast.walk(wrapper)
        if isinstance(block, ast.With)
        and any(ast.unparse(item.context_expr) == "compile_lock" for item in block.items)
        for node in ast.walk(block)
    }
    given = [["frame", "cache_entry", "self.hooks", "frame_state"]]
    enters = [
        node
        for node in ast.walk(wrapper)
        if isinstance(node, ast.Call) and [ast.unparse(a) for a in node.args] in given
    ]
    return f"{len(enters)} of {len(enters)}" if all(id(n) in inside for n in enters) else "no"


def refuses(source: Source) -> str:
    """The function in which torch itself asks whether the stream is captured."""
    found = [
        getattr(top, "name", "?")
        for top in source.tree(CONVERT_FRAME).body
        if calls(top, "is_current_stream_capturing")
    ]
    return ", ".join(found) or "no"


def readers(path: str, name: str) -> Callable[[Source], str]:
    """How often a file calls a function."""
    return lambda source: str(len(calls(source.tree(path), name)))


def bound(source: Source) -> str:
    """What preserve_global_state decorates: a function of the module, or one made per compile."""
    found = []
    for top in source.tree(CONVERT_FRAME).body:
        for node in ast.walk(top):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(one) == "preserve_global_state" for one in node.decorator_list
            ):
                found.append("import" if node is top else "compile")
    return ", ".join(found)


def through(source: Source) -> str:
    """Whether the state is read and written by torch.cuda.default_generators alone."""
    wanted = {"get_rng_state": "get_state", "set_rng_state": "set_state"}
    for name, method in wanted.items():
        (function,) = source.functions(RANDOM, name)
        text = ast.unparse(function)
        if "torch.cuda.default_generators[idx]" not in text or text.count(f".{method}(") != 1:
            return "no"
    return "yes"


READ: dict[str, Callable[[Source], str]] = {
    "_compile is bound in its module": choke_point,
    "called by its global name in": by_name,
    "used by other files": elsewhere,
    "code first, skip by keyword": arguments,
    "entered under compile_lock": locked,
    "asks about a capture itself": refuses,
    "preserve_global_state, applied at": bound,
    "RNG reads in convert_frame": readers(CONVERT_FRAME, "cuda.get_rng_state"),
    "preserve_rng_state in aot_autograd": readers(
        "torch/_functorch/aot_autograd.py", "preserve_rng_state"
    ),
    "preserve_rng_state in compile_fx": readers(
        "torch/_inductor/compile_fx.py", "preserve_rng_state"
    ),
    "state only by default_generators": through,
}


class Generator:
    """The GPU's generator of a torch up to 2.9."""

    def __init__(self) -> None:
        self.capturing = False
        self.reached: list[str] = []

    def get_state(self) -> object:
        return self._reach("get")

    def set_state(self, state: object) -> None:
        self._reach("set")

    def _reach(self, how: str) -> object:
        if self.capturing:
            raise RuntimeError(NATIVE_ERROR)
        self.reached.append(how)
        return mock.MagicMock()


def load(source: Source) -> tuple[Any, Generator]:
    """A stand-in for convert_frame whose _compile reads the RNG state by this torch's functions."""
    generator, torch, cuda = Generator(), mock.MagicMock(), SimpleNamespace()
    torch.__version__, torch.cuda = source.directory.name, cuda
    torch._C._len_torch_function_stack.return_value = 0
    torch.device = lambda *_: SimpleNamespace(index=None)
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: generator.capturing
    cuda.default_generators = (generator,)
    modules: dict[str, Any] = {"torch": torch, "torch.cuda": cuda}
    sys.modules.update(modules)
    names = {"torch": torch, "contextlib": contextlib, "functools": functools}
    names["contextmanager"] = contextlib.contextmanager
    on_gpu = {**names, "current_device": lambda: 0, "_lazy_call": lambda call: call()}
    for name in ("get_rng_state", "set_rng_state"):
        setattr(cuda, name, execute(source, RANDOM, name, on_gpu))
    reader = execute(source, UTILS, "preserve_rng_state", names)
    keeper = execute(source, CONVERT_FRAME, "preserve_global_state", names)

    def _compile(code: CodeType, *_: object, skip: int = 0) -> Any:
        @keeper  # type: ignore[untyped-decorator, unused-ignore]
        def compile_frame() -> Any:
            with reader(), reader():
                return "compiles"

        return compile_frame()

    module: Any = ModuleType("torch._dynamo.convert_frame")
    module._compile = _compile
    if source.functions(CONVERT_FRAME, "trace_frame"):
        names["preserve_global_state"] = keeper
        module.trace_frame = execute(source, CONVERT_FRAME, "trace_frame", names)
    return module, generator


def execute(source: Source, path: str, name: str, names: dict[str, Any]) -> Any:
    """One function of a file, in which all names that are not given are mocks."""
    (function,) = source.functions(path, name)
    code = ast.parse("from __future__ import annotations")
    code.body.append(function)
    namespace = dict(names)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            namespace.setdefault(node.id, mock.MagicMock())
    exec(compile(code, str(source.directory / path), "exec"), namespace)
    return namespace[name]


@contextlib.contextmanager
def captured(generator: Generator) -> Iterator[None]:
    generator.capturing = True
    try:
        yield
    finally:
        generator.capturing = False


def outcome(module: Any, generator: Generator) -> str:
    """What a compile does in a capture, and whether all is as before afterwards."""
    cuda = sys.modules["torch.cuda"]
    names = "default_generators", "get_rng_state", "set_rng_state"
    before = [id(getattr(cuda, name)) for name in names]
    code = compile("", "model.py", "exec")
    generator.reached.clear()
    try:
        with captured(generator):
            said: str = module._compile(code)
    except RuntimeError as error:
        said = "native error" if str(error) == NATIVE_ERROR else "other error"
        said = "guard error" if "(model.py:1) during CUDA graph capture" in str(error) else said
    if generator.reached:
        said += ", after a read"
    if before != [id(getattr(cuda, name)) for name in names]:
        said += ", not undone"
    module._compile(code)
    if generator.reached != ["get"] * 3 + ["set"] * 3:
        said += f", then {generator.reached}"
    return said


def run(source: Source, setting: str) -> list[str]:
    """The row's status under a setting, and what a compile in a capture does then."""
    from rocm_autopatch.patches import capture

    module, generator = load(source)
    status = ""
    if setting:
        (row,) = capture.apply(module, [("capture", setting, "layer", "why")], (), False)
        status = row["status"]
    return [status, outcome(module, generator)]


def expected(name: str) -> dict[str, str]:
    """The cells of a version."""
    release = tuple(int(part) for part in name.split(".")[:2])
    itself, readable = release >= (2, 14), release >= (2, 10)
    return {
        "_compile is bound in its module": "once",
        "called by its global name in": "ConvertFrameAssert, replay",
        "used by other files": "nowhere",
        "code first, skip by keyword": "yes",
        "entered under compile_lock": "2 of 2",
        "asks about a capture itself": "trace_frame" if itself else "no",
        "preserve_global_state, applied at": "compile" if release < (2, 9) else "import",
        "RNG reads in convert_frame": "1",
        "preserve_rng_state in aot_autograd": "1",
        "preserve_rng_state in compile_fx": "2",
        "state only by default_generators": "yes",
        "in a capture without us": "native error",
        "guard": "skipped" if itself else "applied",
        "in a capture with guard": "native error" if itself else "guard error",
        "skip-rng": "skipped" if readable else "applied",
        "in a capture with skip-rng": "native error" if readable else "compiles",
    }


def cells(directory: Path) -> dict[str, str]:
    """The cells of a version as they are."""
    source = Source(directory)
    found = {name: read(source) for name, read in READ.items()}
    env = {**os.environ, "ROCM_AUTOPATCH": "off"}
    for setting in ("", "guard", "skip-rng"):
        status, said = child(directory, setting or "off", env)
        if setting:
            found[setting] = status
        found[f"in a capture with{' ' + setting if setting else 'out us'}"] = said
    return found


def main() -> int:
    versions, setting = directories("The capture patch on every torch, as a table.")
    if setting:
        sys.path.insert(0, str(ROOT))
        print(json.dumps(run(Source(versions[0]), setting.replace("off", ""))))
        return 0
    return table({directory.name: cells(directory) for directory in versions}, expected)


if __name__ == "__main__":
    sys.exit(main())
