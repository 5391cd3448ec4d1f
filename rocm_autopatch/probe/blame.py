"""What made a config value differ from the value that this torch ships, found by experiments.

A variable is the cause if the value is another one in an interpreter without the variable. Writes
by sitecustomize, .pth files and frameworks are seen when they happen, and are missing in an
interpreter that runs none of them. If the value is still there then, torch's own source is the
cause.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from math import comb
from pathlib import Path
from typing import Any

from rocm_autopatch.policy import lint
from rocm_autopatch.probe import reading, variables
from rocm_autopatch.probe.reading import Ask, Reading

VARIABLE, SITE, IMPORT, TORCH, UNSEEN = "variable", "site", "import", "torch", "unseen"


@dataclass(frozen=True)
class Culprit:
    """What made a value differ. ``kind`` is one of the above.

    ``variables`` are NAME=VALUE. There are several if none of them alone makes the difference.
    ``file`` and ``line`` are the place of the write. ``by`` is the line of a .pth file or
    sitecustomize that led there. ``module`` is the module that was being imported.
    """

    kind: str
    variables: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    by: str = ""
    module: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        by = f", by {self.by}" if self.by else ""
        if self.kind == VARIABLE:
            where = f", set in {self.place}{by}" if self.file else ""
            return " and ".join(self.variables) + where
        if self.kind == TORCH:
            return f"torch's own source, {self.place}"
        what = f"import {self.module}" if self.kind == IMPORT else "a start-up file of this Python"
        if self.kind == SITE and self.file:
            return f"{self.place}{by}"
        return f"{what}, {self.place}{by}" if self.file else f"{what}; the place was not seen"


@dataclass(frozen=True)
class Crash:
    """An import that fails: the error, and its cause: a variable (NAME=VALUE), SITE or TORCH.

    ``set_by`` is the place in a start-up file that set the variable; "" if it was set before.
    """

    module: str
    error: str
    file: str
    line: int
    culprit: str
    set_by: str = ""

    @property
    def variable(self) -> tuple[str, str]:
        """Name and value of the variable; two empty texts if the cause is not a variable."""
        name, equals, value = self.culprit.partition("=")
        return (name, value) if equals else ("", "")


@dataclass(frozen=True)
class Difference:
    """A config value that is not what this torch ships.

    ``thread`` is what a new thread reads, which may be another value.
    """

    key: str
    shipped: Any
    value: Any
    thread: Any
    culprit: Culprit


@dataclass
class Findings:
    """What a place does to a process without us.

    ``first`` is what was read first, ``reading`` is without the variables that crash it.
    ``compared`` says what the values were compared with. ``clean`` has the values of torch itself,
    without variables and start-up files.
    """

    reading: Reading
    first: Reading
    clean: Reading | None = None
    differences: list[Difference] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    compared: str = ""
    children: int = 0


class Investigation:
    """One place, read as often as necessary. *environment* is without the changes of our hook."""

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str]) -> None:
        self.environment = environment
        self.ask = Ask(imports=tuple(imports))
        self.children = 0

    def read(self, *asks: Ask) -> list[Reading]:
        self.children += len(asks)
        return reading.read(asks, self.environment)

    def run(self) -> tuple[Findings, Reading]:
        """What is found without us, and what a process with our hook reads."""
        first, hooked = self.read(self.ask, Ask(hook=True, imports=self.ask.imports))
        return self.findings(first), hooked

    def findings(self, first: Reading) -> Findings:
        found = Findings(first, first)
        if not lacks_torch(first):
            found.reading, found.crashes = self.survive(first)
            self.compare(found)
        found.children = self.children
        return found

    # Crashes

    def survive(self, seen: Reading) -> tuple[Reading, list[Crash]]:
        """A reading without the variables that crash it, and the crashes."""
        crashes = []
        while failure(seen):
            failed = failure(seen)
            name, after = self.crasher(seen, failed)
            write = written(seen).get(name, {})
            value = write["value"] if write else self.environment.get(name)
            crashes.append(
                Crash(
                    failed["import"],
                    failed["error"],
                    failed["file"],
                    failed["line"],
                    name if value is None else f"{name}={value}",
                    f"{write['file']}:{write['line']}" if write else "",
                )
            )
            if value is None:
                break
            seen = after
        return seen, crashes

    def crasher(self, seen: Reading, failed: Mapping[str, Any]) -> tuple[str, Reading]:
        """The cause of a failed import, and the reading without it.

        It is a variable, if without it the import works or fails in another way. Otherwise it is
        SITE or TORCH.
        """
        suspects = [n for n in self.suspects(seen) if n not in seen.ask.without]
        last = failed["last_read"]
        asks = [reading.without(seen.ask, [last])] if last in suspects else []
        if not suspects:
            return self.broken(seen)
        for after in self.read(*asks):
            if _mark(failure(after)) != _mark(failed):
                return last, after
        (none,) = self.read(reading.without(seen.ask, suspects))
        if _mark(failure(none)) == _mark(failed):
            return self.broken(none)
        # It is one of several variables: each step leaves out half of those that are left.
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            (after,) = self.read(reading.without(seen.ask, half))
            gone = _mark(failure(after)) != _mark(failed)
            suspects = half if gone else suspects[len(half) :]
        (after,) = self.read(reading.without(seen.ask, suspects))
        return suspects[0], after

    def broken(self, seen: Reading) -> tuple[str, Reading]:
        (clean,) = self.read(self.clean(seen))
        if lacks_torch(clean):
            return UNSEEN, clean
        alike = _mark(failure(clean)) == _mark(failure(seen))
        return (TORCH if alike else SITE), clean

    def suspects(self, seen: Reading) -> list[str]:
        """The variables that are set here and that torch may read at its import."""
        read = seen.found.get("reads", {})
        return [
            name
            for name in dict.fromkeys([*self.environment, *written(seen)])
            if not name.startswith("ROCM_AUTOPATCH") and (name in read or variables.listed(name))
        ]

    def clean(self, seen: Reading) -> Ask:
        """How to read without the variables, and without ``site`` and frameworks."""
        names = {*self.suspects(seen), *written(seen)}
        path = tuple(seen.found.get("path") or sys.path[1:])  # a child that died gave no path
        return Ask(site=False, without=seen.ask.without | names, path=path)

    # Values

    def compare(self, found: Findings) -> None:
        seen = found.reading
        if failure(seen):
            return
        torch = str(seen.torch.get("version", ""))
        table = lint.keys(variables.minor(torch)) if seen.torch.get("hip") else {}
        shipped = {
            key: record.default
            for key, record in table.items()
            if not record.alias and record.has_default
        }
        found.compared = f"the table of torch {variables.minor(torch)} for ROCm" if table else ""
        used = self.config_variables(seen)
        touched = used or seen.found["writes"] or seen.found["changes"] or seen.threads
        differ = {key for key in shipped if _differ(seen.values, key, shipped[key])}
        if not (touched or differ or not table):
            return
        codes = _codes(used)
        noted = {key for key in seen.values if _writer(seen, key)}
        runs = max((max(code) + 1 for code in codes.values()), default=0)
        asks = [
            reading.without(seen.ask, [name for name, code in codes.items() if run in code])
            for run in range(runs)
        ]
        # If only variables make a difference, it is enough to leave them out. Otherwise torch's own
        # values are read, too.
        foreign = not table or seen.found["writes"] or seen.found["changes"] or seen.threads
        clean, others = None, self.read(*([self.clean(seen)] if foreign else []), *asks)
        if foreign:
            clean, *others = others
        elif any(len(self.alone(seen, key, codes, others)) != 1 for key in differ):
            (clean,) = self.read(self.clean(seen))
        if clean and failure(clean):
            # A start-up file is needed to find torch here, as for an editable install.
            found.compared = found.compared or "nothing: torch is not found without start-up files"
        elif clean:
            found.clean = clean
            found.compared = found.compared or "this same torch, read without variables and site"
            shipped = {**clean.values, **shipped}
        for other in others:
            # The table may lack a default. It is then known if a variable changed the value.
            for key, value in other.values.items():
                if _differ(seen.values, key, value):
                    shipped.setdefault(key, value)
        for key in sorted(seen.values):
            if key not in shipped:
                continue
            thread = seen.threads.get(key, seen.values[key])
            if same(seen.values[key], shipped[key]) and same(thread, shipped[key]):
                continue
            culprit = self.blame(found, key, codes, others, noted)
            found.differences.append(
                Difference(key, shipped[key], seen.values[key], thread, culprit)
            )

    def config_variables(self, seen: Reading) -> list[str]:
        """The variables that config modules read here, except for those that torch itself set."""
        foreign = written(seen)
        return [
            name
            for name, read in seen.found["reads"].items()
            if read["config"] and (name in self.environment or name in foreign)
        ]

    def blame(
        self,
        found: Findings,
        key: str,
        codes: Mapping[str, frozenset[int]],
        others: Sequence[Reading],
        noted: Iterable[str],
    ) -> Culprit:
        seen = found.reading
        if key in noted:
            return _culprit(seen, _writer(seen, key))
        value = seen.values[key]
        alone = self.alone(seen, key, codes, others)
        if alone:
            return self.variable(seen, alone)
        clean = found.clean
        if clean is not None and same(clean.values.get(key), value):
            file = clean.found["modules"][variables.split(key)[0]]["file"]
            return Culprit(TORCH, file=file, line=line_of(file, variables.split(key)[1]))
        fed = variables.feeds(variables.minor(str(seen.torch.get("version", ""))))
        together = [name for name in codes if key in fed.get(name, ())]
        if together:
            return self.variable(seen, together)
        stage = next((c["stage"] for c in seen.found["changes"] if c["name"] == key), "site")
        module = stage.partition(" ")[2]
        return Culprit(UNSEEN if not module else IMPORT, module=module)

    def alone(
        self,
        seen: Reading,
        key: str,
        codes: Mapping[str, frozenset[int]],
        others: Sequence[Reading],
    ) -> list[str]:
        """The variable that changes a value by itself, whatever the other variables are."""
        value = seen.values[key]
        pattern = {run for run, other in enumerate(others) if _differ(other.values, key, value)}
        return [name for name, code in codes.items() if code == pattern]

    def variable(self, seen: Reading, names: Iterable[str]) -> Culprit:
        names = list(names)
        texts = tuple(f"{name}={seen.environ.get(name, '')}" for name in names)
        places = [write for name, write in written(seen).items() if name in names]
        if not places:
            return Culprit(VARIABLE, texts)
        write = places[0]
        return Culprit(VARIABLE, texts, write["file"], write["line"], write["by"])


def _codes(names: Sequence[str]) -> dict[str, frozenset[int]]:
    """For each variable, the readings without it.

    There are only as many readings as are needed to distinguish all variables. Each variable is
    left out of the same number of readings. So the effect of two variables together can't be
    mistaken for the effect of one.
    """
    for runs in count(1):
        weight = max(runs // 2, 1)
        if comb(runs, weight) >= len(names):
            break
    return {name: frozenset(code) for name, code in zip(names, combinations(range(runs), weight))}


def failure(seen: Reading) -> dict[str, Any]:
    """The first failed import of torch or its config modules; {} if there is none."""
    return next((one for one in seen.failed if one["import"].split(".")[0] == "torch"), {})


def _mark(failed: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two failures the same."""
    return tuple(failed.get(name) for name in ("import", "error", "file", "line"))


def lacks_torch(seen: Reading) -> bool:
    return bool(failure(seen).get("missing"))


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _differ(values: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in values and not same(values[key], value)


def written(seen: Reading) -> dict[str, dict[str, Any]]:
    """The variables that start-up files and frameworks set, each with its last write."""
    root = str(Path(str(seen.torch.get("file", "/"))).parent) + "/"
    return {
        write["name"]: write
        for write in seen.found.get("env_writes", ())
        if not (root != "//" and write["file"].startswith(root))
    }


def _writer(seen: Reading, key: str) -> dict[str, Any]:
    """The write that a config value comes from; {} if none was seen."""
    reads = (seen.values[key], seen.threads.get(key, seen.values[key]))
    for write in reversed(seen.found["writes"]):
        if write["name"] == key and any(same(write["value"], value) for value in reads):
            found: dict[str, Any] = write
            return found
    return {}


def _culprit(seen: Reading, write: Mapping[str, Any]) -> Culprit:
    root = str(Path(str(seen.torch["file"])).parent) + "/"
    kind, _, module = write["stage"].partition(" ")
    if module == "torch":
        # A start-up file may have installed a hook that waits for torch.
        kind = TORCH if write["file"].startswith(root) else SITE
    return Culprit(kind, (), write["file"], write["line"], write["by"], module)


def line_of(file: str, key: str) -> int:
    """The line of a config module's source that sets *key* last; 0 if it isn't found."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return 0
    return max((line for name, line in _assigned(tree.body, "") if name == key), default=0)


def _assigned(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, int]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _assigned(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from _assigned([*statement.body, *statement.orelse], prefix)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    yield f"{prefix}{ast.unparse(target)}", statement.lineno
