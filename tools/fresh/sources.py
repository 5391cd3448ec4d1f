"""What Python sources say, by their syntax: config keys, and what a framework changes of torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tools.torch_keys import Source

UNKNOWN: Any = object()
_TORCH = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch.compiler")
# The variables of torch, Triton and ROCm. A framework's own are its registry's.
_FOREIGN = re.compile(
    r"(TORCH|PYTORCH|INDUCTOR|AOT_?INDUCTOR|TRITON|HIP|HSA|AMD|GPU|ROC|ROCM|ROCR|MIOPEN|ROCBLAS|"
    r"HIPBLASLT|AITER)[A-Z]*_[A-Z0-9_]*"
)
# Most sources have nothing of it, and need not be parsed.
_WORTH_A_LOOK = re.compile(
    r"_inductor|_dynamo|_functorch|torch\.compiler|putenv|meta_path"
    r"|environ(\[[^\]]+\]\s*=[^=]|\.(setdefault|update)\b)"
)


@dataclass(frozen=True)
class Key:
    """A config key of a source: its default, UNKNOWN where it depends on more than the source; the
    variables that decide about it; and its line."""

    default: Any
    variables: frozenset[str]
    line: int


class ConfigSource:
    """The keys of a config module, told from its text."""

    def __init__(self, text: str) -> None:
        self._source = Source(text)

    def key(self, name: str) -> Key | None:
        """A key, None if the module has none of this name."""
        values = self._source.values(name)
        if not values:
            return None
        told = self._source.variables(name)
        names = frozenset(one for kind in told.values() for one in kind)
        one = values[-1]
        known = len(values) == 1 and isinstance(one, ast.expr)
        default = self._value(one, name, 0) if known and isinstance(one, ast.expr) else UNKNOWN
        return Key(default, names, one.lineno)

    def _value(self, node: ast.expr, where: str, depth: int) -> Any:
        """The value of an expression in an empty environment, UNKNOWN if it may be another one."""

        def of(one: ast.expr) -> Any:
            return self._value(one, where, depth + 1)

        if depth > 20:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            prefix = where.rpartition(".")[0]
            found = self._source.values(f"{prefix}.{node.id}") if prefix else ()
            found = found or self._source.values(node.id)
            if len(found) == 1 and isinstance(found[0], ast.expr):
                return of(found[0])
            return UNKNOWN
        if isinstance(node, ast.UnaryOp):
            inner = of(node.operand)
            if inner is UNKNOWN:
                return UNKNOWN
            if isinstance(node.op, ast.Not):
                return not inner
            return -inner if isinstance(node.op, ast.USub) else UNKNOWN
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _compared(node.ops[0], of(node.left), of(node.comparators[0]))
        if isinstance(node, ast.BoolOp):
            stops = isinstance(node.op, ast.Or)
            last: Any = UNKNOWN
            for one in node.values:
                last = of(one)
                if last is UNKNOWN or bool(last) is stops:
                    return last
            return last
        if isinstance(node, ast.IfExp):
            test = of(node.test)
            return UNKNOWN if test is UNKNOWN else of(node.body if test else node.orelse)
        if isinstance(node, ast.Call):
            return self._called(node, where, depth)
        return UNKNOWN

    def _called(self, node: ast.Call, where: str, depth: int) -> Any:
        called = ast.unparse(node.func)
        arguments = [self._value(one, where, depth + 1) for one in node.args]
        if called in ("os.environ.get", "os.getenv"):
            return arguments[1] if len(arguments) > 1 else None
        if called == "Config":
            given = {word.arg: word.value for word in node.keywords}
            if "default" in given:
                return self._value(given["default"], where, depth + 1)
            return arguments[0] if arguments else UNKNOWN
        if called in ("int", "float", "bool", "str") and len(arguments) == 1:
            try:
                kinds = {"int": int, "float": float, "bool": bool, "str": str}
                return UNKNOWN if arguments[0] is UNKNOWN else kinds[called](arguments[0])
            except (TypeError, ValueError):
                return UNKNOWN
        return False if called == "is_fbcode" else UNKNOWN


def _compared(operator: ast.cmpop, left: Any, right: Any) -> Any:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(operator, ast.Eq):
        return left == right
    if isinstance(operator, ast.NotEq):
        return left != right
    if isinstance(operator, ast.Is):
        return left is right
    return left is not right if isinstance(operator, ast.IsNot) else UNKNOWN


@dataclass(frozen=True)
class Override:
    """A change that a source makes to torch or to its variables: what, its line, and where: at the
    import of the module ("import") or in a function."""

    what: str
    line: int
    scope: str


def overrides(text: str) -> Iterator[Override]:
    """The changes that a Python source makes, each once: the first one counts.

    A change is a value of torch's compile config or another attribute of its compile modules, a
    variable that torch, Triton or ROCm may read, or a finder of modules.
    """
    if not _WORTH_A_LOOK.search(text):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    seen = set()
    names = _modules(tree)
    for node, scope in _scoped(tree, "import"):
        for what in _changes(node, names):
            if what not in seen:
                seen.add(what)
                yield Override(what, node.lineno, scope)


def _modules(tree: ast.Module) -> dict[str, str]:
    """What local names stand for, of torch's compile modules."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: full for name, full in found.items() if full.startswith((*_TORCH, "os.", "sys."))}


def _scoped(node: ast.AST, scope: str) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inner = getattr(child, "name", "a lambda")
        if isinstance(child, (ast.stmt, ast.expr)):
            yield child, inner
        yield from _scoped(child, inner)


def _changes(node: ast.stmt | ast.expr, names: Mapping[str, str]) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute):
            full = _full(target, names)
            if full.startswith(_TORCH) or full == "sys.meta_path":
                yield full
        elif isinstance(target, ast.Subscript) and _full(target.value, names) == "os.environ":
            yield from _variable(target.slice)
    if not isinstance(node, ast.Call):
        return
    full = _full(node.func, names)
    if full in ("os.environ.setdefault", "os.putenv") and node.args:
        yield from _variable(node.args[0])
    elif full == "os.environ.update":
        for one in node.args:
            for key in one.keys if isinstance(one, ast.Dict) else ():
                if key is not None:
                    yield from _variable(key)
    elif full in ("sys.meta_path.insert", "sys.meta_path.append"):
        yield "sys.meta_path"
    elif full.startswith(_TORCH) and full.endswith("config.patch"):
        of = full.rpartition(".")[0]
        given = [word.arg or "*" for word in node.keywords]
        for one in node.args[:1]:
            keys = one.keys if isinstance(one, ast.Dict) else [one]
            given += [str(key.value) if isinstance(key, ast.Constant) else "*" for key in keys]
        yield from (f"{of}.{name}" for name in dict.fromkeys(given))
    elif full == "setattr" and len(node.args) == 3:
        of = _full(node.args[0], names)
        if of.startswith(_TORCH):
            name = node.args[1]
            yield f"{of}.{str(name.value) if isinstance(name, ast.Constant) else '*'}"


def _variable(node: ast.expr) -> Iterator[str]:
    name = node.value if isinstance(node, ast.Constant) else None
    if isinstance(name, str) and _FOREIGN.fullmatch(name):
        yield name


def _full(node: ast.expr, names: Mapping[str, str]) -> str:
    """A dotted name, its first part as it was imported."""
    if isinstance(node, ast.Attribute):
        return f"{_full(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    return "?"
