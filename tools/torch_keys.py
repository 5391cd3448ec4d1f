"""Make rocm_autopatch/policy/torch_keys.json: the config keys of every torch from 2.4 to 2.15.

    python tools/torch_keys.py DIRECTORY

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. The config modules are executed as on ROCm, in a clean environment. A default is left
out if it depends on the machine or is no plain value.

A line of the file is a key, with a mapping of versions to records. A record holds from its version
up to the next one's, and null is a torch without the key. ``lint.Record`` says what a record has.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments" / "matrix")]

from torch_files import VERSIONS as VERSIONS  # noqa: E402
from torch_files import fetch, load  # noqa: E402

from rocm_autopatch.patches.config import TARGETS, _declared_types  # noqa: E402

FILE = ROOT / "rocm_autopatch" / "policy" / "torch_keys.json"
PLAIN = (type(None), bool, int, float, str)
CONTAINERS = (list, dict, set, tuple)
CONFIG_ARGUMENTS = {"env_name_force": "env_force", "env_name_default": "env_default"}
BY_MACHINE = "compile_threads"  # as are paths

Record = dict[str, Any]
Keys = dict[str, dict[str, Record]]


class Source:
    """The environment variables that a config module's source reads for each key."""

    def __init__(self, text: str) -> None:
        self._nodes: dict[str, list[ast.expr | ast.FunctionDef]] = {}
        self._collect(ast.parse(text).body, "")

    def values(self, key: str) -> Sequence[ast.expr | ast.FunctionDef]:
        """What is assigned to the key, in the order of the source; nothing without such a key."""
        return self._nodes.get(key, ())

    def variables(self, key: str) -> Record:
        """The variables of the key's Config(), and those that its default is computed from."""
        found: dict[str, set[str]] = {"env": set(self._read(key, set()))}
        for node in self._walk(key):
            if isinstance(node, ast.keyword) and node.arg in CONFIG_ARGUMENTS:
                kind = CONFIG_ARGUMENTS[node.arg]
                found.setdefault(kind, set()).update(_texts(ast.walk(node.value)))
        return {kind: sorted(names) for kind, names in sorted(found.items()) if names}

    def _walk(self, name: str) -> Iterator[ast.AST]:
        for top in self._nodes.get(name, ()):
            yield from ast.walk(top)

    def _collect(self, body: Iterable[ast.stmt], prefix: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self._collect(statement.body, f"{prefix}{statement.name}.")
                self._inherit(statement, prefix)
            elif isinstance(statement, ast.FunctionDef):
                self._nodes.setdefault(prefix + statement.name, []).append(statement)
            elif isinstance(statement, (ast.If, ast.Try)):
                self._collect([*statement.body, *statement.orelse], prefix)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    self._assign(prefix, target, statement.value)
            elif isinstance(statement, ast.AnnAssign) and statement.value:
                self._assign(prefix, statement.target, statement.value)

    def _inherit(self, statement: ast.ClassDef, prefix: str) -> None:
        for base in (f"{prefix}{ast.unparse(base)}." for base in statement.bases):
            for name, nodes in list(self._nodes.items()):
                if name.startswith(base):
                    own = f"{prefix}{statement.name}.{name[len(base) :]}"
                    self._nodes.setdefault(own, nodes)

    def _assign(self, prefix: str, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._nodes.setdefault(prefix + target.id, []).append(value)

    def _read(self, name: str, seen: set[str]) -> Iterator[str]:
        """The variables read by what *name* is, and by the names and functions in that."""
        prefix = name.rpartition(".")[0]
        for node in self._walk(name):
            yield from _variables(node)
            if isinstance(node, ast.Name):
                inner = f"{prefix}.{node.id}"
                inner = inner if inner in self._nodes else node.id
                if inner not in seen:
                    seen.add(inner)
                    yield from self._read(inner, seen)


def _variables(node: ast.AST) -> Iterator[str]:
    """The variables that an expression reads by itself."""
    if isinstance(node, ast.Call):
        if re.search(r"environ\.get$|getenv$|_env$", ast.unparse(node.func)):
            yield from _texts(node.args[:1])
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
        yield from _texts([node.slice])
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
        yield from _texts([node.left])


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def describe(directory: Path) -> Keys:
    """The keys of the torch in *directory*, executed in this process."""
    load(directory)
    found: Keys = {}
    for name in TARGETS:
        with suppress(ModuleNotFoundError):  # torch 2.4 and 2.5 have no torch.compiler.config
            module = import_module(name)
            source = Source(Path(str(module.__file__)).read_text(encoding="utf-8"))
            # What other keys imply for a key, from torch 2.15 on.
            implied = vars(module).get("_implications", {})
            found[name] = {
                key: {
                    **_record(module, key, entry),
                    **source.variables(key),
                    **({"implied": implied[key]} if key in implied else {}),
                }
                for key, entry in vars(module)["_config"].items()
            }
    return found


def _record(module: Any, key: str, entry: Any) -> Record:
    if getattr(entry, "alias", None):
        return {"alias": entry.alias}
    default = getattr(module, key)
    declared = _declared_types(getattr(entry, "value_type", None)) & {*PLAIN, *CONTAINERS}
    more = {_name(kind) for kind in declared}
    record = {"type": "|".join([_name(type(default)), *sorted(more - {_name(type(default))})])}
    plain = isinstance(default, PLAIN) and "/" not in str(default) and key != BY_MACHINE
    return {**record, "default": default} if plain else record


def _name(kind: type) -> str:
    return "None" if kind is type(None) else kind.__name__


def describe_apart(directory: Path) -> Keys:
    """The same, executed in a process of its own."""
    command = [sys.executable, "-B", "-Wignore", __file__, "--describe", str(directory)]
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    found: Keys = json.loads(
        subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE).stdout
    )
    return found


def compact(torches: dict[str, Keys]) -> str:
    """The key file: of each key, what is not as in the version before."""
    modules = []
    for module in TARGETS:
        tables = {version: keys.get(module, {}) for version, keys in torches.items()}
        lines = []
        for key in sorted({key for table in tables.values() for key in table}):
            runs: dict[str, Record | None] = {}
            last = None
            for version, table in tables.items():
                if table.get(key) != last:
                    last = runs[version] = table.get(key)
            lines.append(f"{json.dumps(key)}: {json.dumps(runs, separators=(',', ':'))}")
        modules.append(f"{json.dumps(module)}: {{\n" + ",\n".join(lines) + "\n}")
    return (
        f'{{\n"versions": {json.dumps(list(torches))},\n"modules": {{\n'
        + ",\n".join(modules)
        + "\n}\n}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the linter's file of torch's config keys.")
    parser.add_argument("directory", type=Path, help="has or gets the Python files of torch wheels")
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.describe:
        json.dump(describe(options.directory), sys.stdout)
        return
    torches = {}
    for version in VERSIONS:
        directory = options.directory / version
        if not directory.is_dir():
            fetch(directory)
        torches[version.rpartition(".")[0]] = describe_apart(directory)
    FILE.write_text(compact(torches), encoding="utf-8")


if __name__ == "__main__":
    main()
