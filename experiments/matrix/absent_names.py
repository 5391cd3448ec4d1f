"""A pytest plugin for tests of another PyTorch: names that this torch does not have.

    pytest -p absent_names --absent-names FILE --rootdir TESTS ...

A test file that imports one missing name could not be read at all. So, in modules below TESTS, each
name of torch that is not there is replaced by a stand-in:

- where it is imported, or used at the level of a module or a class: by an object that takes any
  use, and that skips what it decorates and the tests of classes that are made from it;
- a function that uses it raises ``unittest.SkipTest`` in place of all it does.

Names are left as they are where the test itself looks whether they are there (``except
ImportError`` or ``AttributeError``, ``assertRaises``, ``hasattr``), below ``torch.ops`` and
``torch.classes``, which tests fill, and on what is neither a module nor a class. A key of a config
module that is only given to its ``patch`` is no name here. FILE gets the names that were replaced,
as a list in JSON.

This file is copied into the environment of the tests, and imports nothing of ours.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import pytest

# Tests define operators and classes there themselves.
FILLED = ("torch.ops", "torch.classes")
CATCHES = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
EXPECTS = {"assertRaises", "assertRaisesRegex", "raises", "suppress"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
STAND_IN = "__absent__"


def reason(name: str) -> str:
    return f"this torch has no {name}"


class StandIn:
    """In the place of a name: any use is well while modules are read, and skips in a test."""

    # Whether tests run already.
    running = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._use()

    def _use(self, *_: object) -> StandIn:
        if StandIn.running:
            raise unittest.SkipTest(reason(self._name))
        return self

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._use()
        if (
            len(arguments) == 1
            and not named
            and isinstance(arguments[0], (types.FunctionType, type))
        ):
            return unittest.skip(reason(self._name))(arguments[0])
        return self

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (type("Absent", (_Base,), {"__unittest_skip_why__": reason(self._name)}),)

    def __bool__(self) -> bool:
        self._use()
        return True

    def __iter__(self) -> Iterator[Any]:
        self._use()
        return iter(())

    def __contains__(self, _: object) -> bool:
        self._use()
        return False

    def __exit__(self, *_: object) -> None:
        self._use()

    __enter__ = __getitem__ = __or__ = __ror__ = __and__ = __rand__ = __add__ = __radd__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = _use


class _Base(unittest.TestCase):
    """The base of a class whose base is not there."""

    __unittest_skip__ = True
    __unittest_skip_why__ = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # unittest gives a test's name, and pytest also runTest; the attributes above skip the test.
        name = arguments[0] if len(arguments) == 1 and not named else None
        if not isinstance(name, str) or not (name == "runTest" or hasattr(type(self), name)):
            raise unittest.SkipTest(self.__unittest_skip_why__)
        super().__init__(*arguments)

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()


def has(name: str) -> bool:
    """Whether torch has *name*, such as ``torch._dynamo.config.verbose``."""
    if name.startswith(FILLED):
        return True
    found: Any = None
    parts = name.split(".")
    for number, part in enumerate(parts):
        if number and not isinstance(found, (types.ModuleType, type)):
            return True
        try:
            found = getattr(found, part) if number else importlib.import_module(part)
            continue
        except AttributeError:
            if not isinstance(found, types.ModuleType):
                return False
        except Exception:
            # It is there, and can't be had here.
            return True
        try:
            found = importlib.import_module(".".join(parts[: number + 1]))
        except ImportError as error:
            # Also if it is there, and what it imports from elsewhere is not installed.
            return not (error.name or "").startswith(parts[0])
    return True


def chain(node: ast.expr) -> list[str]:
    """The parts of ``a.b.c``, and nothing for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*parts, node.id][::-1] if isinstance(node, ast.Name) else []


def catches(node: ast.Try | ast.With | ast.Call) -> bool:
    """Whether a ``try``, a ``with`` or a call is there for names that are missing."""
    kinds: list[ast.expr | None] = []
    if isinstance(node, ast.Try):
        kinds += [handler.type for handler in node.handlers]
    elif isinstance(node, ast.With):
        return any(
            catches(one) for item in node.items if isinstance(one := item.context_expr, ast.Call)
        )
    elif EXPECTS.intersection(chain(node.func)):
        kinds += node.args
    for kind in kinds:
        for part in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
            if part is None or CATCHES.intersection(chain(part)):
                return True
    return False


def of_torch(name: str | None) -> bool:
    return name is not None and (name == "torch" or name.startswith("torch."))


class Replace(ast.NodeTransformer):
    """Put stand-ins into a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.absent: set[str] = set()
        self.known: dict[str, bool] = {}
        # What names of the module are in torch.
        self.bound = {"torch": "torch"}
        self.asked_for: set[str] = set()
        # Names that a function binds itself, innermost last.
        self.own: list[set[str]] = []
        tried = {
            part
            for node in ast.walk(tree)
            if isinstance(node, (ast.Try, ast.With)) and catches(node)
            for line in node.body
            for part in ast.walk(line)
        }
        for node in ast.walk(tree):
            if node in tried:
                continue
            if isinstance(node, ast.ImportFrom) and not node.level and of_torch(node.module):
                for alias in node.names:
                    self.bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname and of_torch(alias.name):
                        self.bound[alias.asname] = alias.name
            elif isinstance(node, ast.Call) and chain(node.func) in (["hasattr"], ["getattr"]):
                self.asked_for |= {
                    part.value
                    for part in node.args[1:2]
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }

    def missing(self, name: str) -> bool:
        if self.asked_for.intersection(name.split(".")):
            return False
        if name not in self.known:
            # To look a name up is not to use it: the test gets its warning where it does.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.known[name] = has(name)
        if not self.known[name]:
            self.absent.add(name)
        return not self.known[name]

    def stand_in(self, name: str) -> ast.Call:
        function = ast.Name(STAND_IN, ast.Load())
        return ast.Call(function, [ast.Constant(name)], [])

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return self._tries(node)

    def visit_With(self, node: ast.With) -> ast.AST:
        return self._tries(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if catches(node) else self.generic_visit(node)

    def _tries(self, node: ast.Try | ast.With) -> ast.AST:
        if not catches(node):
            return self.generic_visit(node)
        # What it tries stays; the handlers are for when it fails.
        tried, node.body = node.body, []
        self.generic_visit(node)
        node.body = tried
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt] | ast.stmt:
        if node.level or not of_torch(node.module):
            return node
        gone = {
            alias.asname or alias.name: name
            for alias in node.names
            if alias.name != "*" and self.missing(name := f"{node.module}.{alias.name}")
        }
        return self._split(node, gone)

    def visit_Import(self, node: ast.Import) -> list[ast.stmt] | ast.stmt:
        gone = {
            alias.asname or alias.name: alias.name
            for alias in node.names
            if of_torch(alias.name) and self.missing(alias.name)
        }
        return self._split(node, gone)

    def _split(
        self, node: ast.Import | ast.ImportFrom, gone: dict[str, str]
    ) -> list[ast.stmt] | ast.stmt:
        if not gone:
            return node
        node.names = [alias for alias in node.names if (alias.asname or alias.name) not in gone]
        lines: list[ast.stmt] = [node] if node.names else []
        for bound, name in gone.items():
            if "." in bound:
                # "import torch.a.b" binds torch alone; each use of torch.a.b is replaced.
                lines.append(ast.Import([ast.alias("torch")]))
            else:
                target = ast.Name(bound, ast.Store())
                lines.append(ast.Assign([target], self.stand_in(name)))
        return [ast.copy_location(line, node) for line in lines]

    def _name(self, node: ast.expr) -> str:
        """What an expression is in torch, or ""."""
        first, *rest = chain(node) or [""]
        if first not in self.bound or any(first in own for own in self.own):
            return ""
        return ".".join([self.bound[first], *rest])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self._name(node)
        if name and isinstance(node.ctx, ast.Load):
            return self.stand_in(name) if self.missing(name) else node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        # The module's own stand-in has it already; asking tells a function that uses it.
        if isinstance(node.ctx, ast.Load) and (name := self._name(node)):
            self.missing(name)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        # What is evaluated where the function is defined.
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.args = self.visit(node.args)
        if node.returns:
            node.returns = self.visit(node.returns)
        before, self.absent = self.absent, set()
        self.own.append(binds(node))
        # A statement may become several, which only generic_visit puts in.
        body = ast.Module(node.body, [])
        self.generic_visit(body)
        self.own.pop()
        if self.absent and not self.own:
            names = " and ".join(sorted(self.absent))
            source = f"raise __import__('unittest').SkipTest({reason(names)!r})"
            body.body = [ast.copy_location(ast.parse(source).body[0], node.body[0])]
        node.body = body.body
        self.absent |= before
        return node


def binds(function: ast.AST) -> set[str]:
    """The names that a function binds itself, but for its imports of torch."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, FUNCTIONS) and node is not function:
            found.add(node.name)
    return found


def replace(source: bytes | str, path: str) -> tuple[ast.Module, set[str]]:
    """The module with stand-ins, and the names that they stand for."""
    tree = ast.parse(source, path)
    transformer = Replace(tree)
    tree = transformer.visit(tree)
    if transformer.absent:
        first = ast.parse(f"from {__name__} import StandIn as {STAND_IN}").body
        # A docstring and imports from __future__ have to stay in front.
        place = 0
        for place, line in enumerate(tree.body):  # noqa: B007
            text = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            future = isinstance(line, ast.ImportFrom) and line.module == "__future__"
            if not text and not future:
                break
        tree.body[place:place] = first
    return ast.fix_missing_locations(tree), transformer.absent


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads modules of the tests. Bytecode is not kept: it depends on the torch."""

    replaced: ClassVar[set[str]] = set()

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree, absent = replace(self.get_data(path), path)
        _Loader.replaced |= absent
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, tests: Path) -> None:
        self.tests = tests

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # The tests' modules lie in directories; PathFinder reads no file for asking.
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if (
            spec is None
            or not isinstance(spec.loader, importlib.machinery.SourceFileLoader)
            or self.tests not in Path(spec.origin or "").parents
        ):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--absent-names", help="where to write which names were replaced")


def pytest_configure(config: pytest.Config) -> None:
    sys.meta_path.insert(0, _Finder(Path(config.rootpath)))


def pytest_collection_finish(session: pytest.Session) -> None:
    StandIn.running = True
    _write(session.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Tests import modules, too.
    _write(session.config)


def _write(config: pytest.Config) -> None:
    if path := config.getoption("--absent-names"):
        Path(path).write_text(json.dumps(sorted(_Loader.replaced)), encoding="utf-8")
