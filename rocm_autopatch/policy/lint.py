"""What a policy's config keys and modes are in each torch from 2.4 to 2.15.

An error is a key that none of the requested torches has, or a value that one of them can't take. A
remark tells the author of an entry what they may not know. The keys of each torch are in
torch_keys.json, made by tools/torch_keys.py.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rocm_autopatch import startup, trust
from rocm_autopatch.patches.config import FORMER_NAMES, fits
from rocm_autopatch.policy.model import DELETE_EMPTY, ConfigEntry, Policy, Range
from rocm_autopatch.policy.problem import ERROR, REMARK, Hint, Problem, Problems, quoted
from rocm_autopatch.startup import cpus

_UNKNOWN: Any = object()
# The first torch in which a mode can stand for it (experiments/matrix/modes_versions.py).
_SINCE = {"lite": "2.10", "training-graphs": "2.6"}
# The limit for torch_keys.json, which has less than a tenth of it.
_LARGEST = 4 << 20
_KINDS: dict[str, Any] = {
    "None": type(None),
    **{kind.__name__: kind for kind in (bool, int, float, str, list, dict, set, tuple)},
}


@dataclass(frozen=True)
class Record:
    """A key of one torch: the types that it takes, the default's first; and the variables.

    An ``alias`` (``MODULE.KEY``) has nothing else. torch reads ``env_force`` before what a program
    writes and ``env_default`` after it; its default is computed from ``env``. ``implied`` has other
    keys of the module, a value of each, and what that implies for this key, ahead of all else.
    """

    type: str = ""
    default: Any = _UNKNOWN
    alias: str = ""
    env: Sequence[str] = ()
    env_default: Sequence[str] = ()
    env_force: Sequence[str] = ()
    implied: Sequence[tuple[str, Any, Any]] = ()

    @property
    def has_default(self) -> bool:
        """Whether the default is known: it is no plain value, or the machine's, otherwise."""
        return self.default is not _UNKNOWN

    def fits(self, value: Any) -> bool:
        """Whether patches.config takes *value* for the key."""
        kinds = [_KINDS[name] for name in self.type.split("|")]
        if value == cpus.WORD and int in kinds:
            return True
        before = kinds[0]() if self.default is _UNKNOWN else self.default
        return fits(value, before, set(kinds))


@dataclass(frozen=True)
class _Torches:
    versions: tuple[str, ...]
    modules: dict[str, dict[str, dict[str, Record]]]
    """Module, key, version; a torch that lacks the key is not among its versions."""


@cache
def _document() -> dict[str, Any]:
    file = Path(__file__).with_name("torch_keys.json")
    found: dict[str, Any] = json.loads(trust.read(str(file), _LARGEST, judged=False))
    return found


def variables_of(module: str, key: str) -> list[str]:
    """The variables from which any torch computes the default of a key, or reads its value."""
    modules = _document()["modules"]
    found: set[str] = set()
    for name in (key, FORMER_NAMES.get(key, key)):
        for run in modules.get(module, {}).get(name, {}).values():
            for kind in ("env", "env_default", "env_force"):
                found.update((run or {}).get(kind, ()))
    return sorted(found)


def keys_by_variable(variable: str) -> list[str]:
    """The full names of the keys whose variables_of() have this one."""
    return [
        f"{module}.{key}"
        for module, keys in _document()["modules"].items()
        for key in keys
        if variable in variables_of(module, key)
    ]


@cache
def _torches() -> _Torches:
    document = _document()
    versions = tuple(document["versions"])

    def spread(runs: dict[str, Any]) -> dict[str, Record]:
        records, record = {}, None
        for version in versions:
            if version in runs:
                record = runs[version] and Record(**runs[version])
            if record:
                records[version] = record
        return records

    modules = {
        module: {key: spread(runs) for key, runs in keys.items()}
        for module, keys in document["modules"].items()
    }
    return _Torches(versions, modules)


@cache
def _aliases() -> dict[str, list[tuple[str, dict[str, Record]]]]:
    """Key by full name -> the keys that are its alias in some torch, with their records."""
    found: dict[str, list[tuple[str, dict[str, Record]]]] = {}
    for module, keys in _torches().modules.items():
        for key, records in keys.items():
            for home in {record.alias for record in records.values() if record.alias}:
                found.setdefault(home, []).append((f"{module}.{key}", records))
    return found


def keys(version: str) -> dict[str, Record]:
    """The keys of torch *version*, such as "2.13", by full name; none of a version not known."""
    return {
        f"{module}.{key}": records[version]
        for module, keys in _torches().modules.items()
        for key, records in keys.items()
        if version in records
    }


def known_versions() -> tuple[str, ...]:
    """All torch versions that are known, from the oldest."""
    return _torches().versions


def versions(text: str) -> tuple[str, ...]:
    """The torch versions in ``2.13``, ``2.4..2.15`` or ``2.6,2.13``. Raises ValueError."""
    known = _torches().versions
    chosen: set[str] = set()
    for part in text.split(","):
        ends = [end.strip() for end in part.split("..")]
        wrong = [end for end in ends if end not in known]
        if wrong or len(ends) > 2:
            said = wrong[0] if wrong else part
            raise ValueError(f"{said!r} is not one of the torch versions {', '.join(known)}")
        first, last = known.index(ends[0]), known.index(ends[-1])
        if first > last:
            raise ValueError(f"{part.strip()!r} is no range: {ends[0]} is later than {ends[-1]}")
        chosen.update(known[first : last + 1])
    return tuple(version for version in known if version in chosen)


def keys_of(torch: str) -> dict[str, tuple[str, Record]]:
    """The config keys of one torch: name with module -> the name that holds the value, its record.

    The two differ for an alias. *torch* is a full version; one that is not in the table is taken
    for the nearest that is.
    """
    release = startup.release(torch)[:2]
    known = _torches().versions
    numbers = [startup.release(number) for number in known]
    version = known[max(0, sum(number <= release for number in numbers) - 1)]
    known_keys = keys(version)
    found = {}
    for name, record in known_keys.items():
        home = record.alias or name
        if home in known_keys:
            found[name] = (home, known_keys[home])
    return found


def lint(policy: Policy, versions: Sequence[str], below: Sequence[Policy] = ()) -> list[Problem]:
    """The findings on a policy's config entries in the torch *versions*, line by line.

    *below* are the policies that it extends: an entry that differs from theirs has an effect.
    """
    found = Problems()
    Linter(versions, below).lint(policy, found)
    return found.shown()


class Linter:
    """Finds errors and remarks in policies on top of *below*, in the torch *versions*."""

    def __init__(self, versions: Sequence[str], below: Sequence[Policy] = ()) -> None:
        self._versions = versions
        self._deleted = _deletions({}, below)
        self._changed = {entry.names for layer in below for entry in layer.config}
        self._below = below

    def lint(self, policy: Policy, problems: Problems) -> None:
        """Add to *problems* the findings on a policy's config entries and modes."""
        deleted = _deletions(self._deleted, [policy])
        seen = Counter(entry.names for entry in policy.config)
        wanted = {
            f"{entry.module}.{entry.key}": entry.value
            for layer in (*self._below, policy)
            for entry in layer.config
        }
        for entry in policy.config:
            versions = [version for version in self._versions if _within(version, entry.range)]
            path = f"config.{entry.module}.{entry.key}"
            for severity, message, hint in _Key(entry, versions, wanted).say(
                deleted, entry.names in self._changed or seen[entry.names] > 1
            ):
                place = entry.place
                problem = Problem(policy.file, place.line, place.column, path, message, severity)
                problems.add(problem, hint)
        for rule in policy.uses:
            since = _SINCE.get(str(rule.use), "0")
            older = [
                version
                for version in self._versions
                if _within(version, rule.range)
                and startup.release(version) < startup.release(since)
            ]
            if older and not rule.needs:
                message = f"torch {_span(older)} has no {rule.use}, which is there from {since} on"
                where = policy.file, rule.place.line, rule.place.column
                path = f"{rule.section}.{rule.name}"
                problems.add(Problem(*where, path, message, REMARK), None)


def _deletions(below: dict[str, Range], layers: Iterable[Policy]) -> dict[str, Range]:
    """The variables that are deleted, and in which torch, once *layers* stand on *below*."""
    deleted = dict(below)
    for layer in layers:
        for rule in layer.env:
            if rule.action != DELETE_EMPTY:
                deleted.pop(rule.name, None)
            if rule.action == "delete" and not rule.needs:
                deleted[rule.name] = rule.range
    return deleted


class _Key:
    """A policy's key as patches.config finds it in each torch."""

    def __init__(
        self, entry: ConfigEntry, versions: Sequence[str], wanted: Mapping[str, Any]
    ) -> None:
        self.entry, self._wanted = entry, wanted
        self.found: dict[str, Record] = {}
        self.absent: list[str] = []
        self.called: dict[str, list[str]] = {}
        self.aliased: dict[str, list[str]] = {}
        keys = _torches().modules[entry.module]
        for version in versions:
            record = keys.get(entry.key, {}).get(version)
            former = FORMER_NAMES.get(entry.key, entry.key)
            if record is None and version in keys.get(former, {}):
                record = keys[former][version]
                self.called.setdefault(former, []).append(version)
            if record is None:
                self.absent.append(version)
                continue
            if record.alias:
                self.aliased.setdefault(record.alias, []).append(version)
                module, _, key = record.alias.rpartition(".")
                record = _torches().modules[module][key][version]
            self.found[version] = record

    def say(
        self, deleted: dict[str, Range], changes: bool
    ) -> Iterator[tuple[str, str, Hint | None]]:
        """Severity and message of each finding, and what may be added to it."""
        if self.absent:
            yield self._absent()
        if self.entry.sound:
            for severity, message in self._of_value(deleted, changes):
                yield severity, message, None

    def _of_value(self, deleted: dict[str, Range], changes: bool) -> Iterator[tuple[str, str]]:
        for former, versions in self.called.items():
            yield REMARK, f"in torch {_span(versions)} this key is called {former}"
        for alias, versions in self.aliased.items():
            yield REMARK, f"in torch {_span(versions)} this key is an alias of {alias}"
        wrong = list(self._wrong())
        yield from wrong
        yield from self._implied()
        if self.entry.strength == "pin":  # it overrides every variable
            return
        default = self.entry.strength == "default"
        fields = ("env_force", "env_default") if default else ("env_force",)
        for name, versions in self._variables(deleted, *fields):
            yield REMARK, f"if {name} is set, it overrides this entry in torch {_span(versions)}"
        if not (wrong or changes or self.entry.switch):
            yield from self._idle(deleted)

    def _absent(self) -> tuple[str, str, Hint | None]:
        message = f"no such key in torch {_span(self.absent)}"
        names = " and ".join(sorted(self._names_where_absent()))
        called = f"; its name in these versions is {names}" if names else ""
        if self.found:
            return REMARK, f"{message}, so this entry is skipped there{called}", None
        if names:
            return ERROR, f"{message}{called}", None
        others = _torches().modules[self.entry.module].get(self.entry.key)
        if others:
            return ERROR, f"{message}; it exists in torch {_span(others)}", None
        return ERROR, message, self._instead

    def _names_where_absent(self) -> Iterator[str]:
        """The keys that became aliases of this one in another torch."""
        for name, versions in _aliases().get(f"{self.entry.module}.{self.entry.key}", ()):
            if any(version in versions for version in self.absent):
                yield name

    def _instead(self) -> str:
        """The key of another module, or one of the same last part, or a similar one."""
        key, tables = self.entry.key, _torches().modules
        known = [
            name
            for name, records in tables[self.entry.module].items()
            if any(version in records for version in self.absent)
        ]
        tail = key.rpartition(".")[2]
        close = [f"{module}.{key}" for module, keys in tables.items() if key in keys]
        close += [name for name in known if name.rpartition(".")[2] == tail]
        close += difflib.get_close_matches(key, known, n=1)
        return f": did you mean {close[0]}?" if close else ""

    def _wrong(self) -> Iterator[tuple[str, str]]:
        types: dict[str, list[str]] = {}
        for version, record in self.found.items():
            if not record.fits(self.entry.value):
                types.setdefault(record.type.replace("|", " or "), []).append(version)
        value = json.dumps(self.entry.value, ensure_ascii=False)
        if isinstance(self.entry.value, str):
            value = value if len(value) < 100 else quoted(self.entry.value)
        meant = difflib.get_close_matches(str(self.entry.value), [cpus.WORD])
        for kind, versions in types.items():
            hint = f"; did you mean {cpus.WORD}?" if meant and "int" in kind else ""
            yield ERROR, f"{value} is not of type {kind} in torch {_span(versions)}{hint}"

    def _implied(self) -> Iterator[tuple[str, str]]:
        """What other keys imply for this one, if it is not what the entry says."""
        found: dict[tuple[str, Any], dict[str, list[Any]]] = {}
        for version, record in self.found.items():
            for source, condition, value in record.implied:
                if value != self.entry.value:
                    conditions = found.setdefault((source, value), {}).setdefault(version, [])
                    conditions.append(condition)
        for (source, value), by_version in found.items():
            conditions = list(dict.fromkeys(one for some in by_version.values() for one in some))
            said = " or ".join(map(json.dumps, conditions))
            where = f"in torch {_span(by_version)}"
            said = f"{where}, {source} {said} implies {json.dumps(value)} for this key"
            home = f"{self.entry.module}.{source}"
            if self.entry.strength != "pin":
                yield REMARK, f"{said}, whatever this entry says"
            elif home in self._wanted and self._wanted[home] in conditions:
                yield ERROR, f"{said}, and this policy asks for that value: pin one of the two"
            else:
                yield REMARK, f"{said}: this pin refuses such values of {source}, too"

    def _variables(self, deleted: dict[str, Range], *fields: str) -> list[tuple[str, list[str]]]:
        """The variables in *fields* that can speak for the key, and in which torches."""
        variables: dict[str, list[str]] = {}
        for version, record in self.found.items():
            for name in (name for field in fields for name in getattr(record, field)):
                gone = name in deleted and _within(version, deleted[name])
                if name != self.entry.yields_to and not gone:
                    variables.setdefault(name, []).append(version)
        return sorted(variables.items())

    def _idle(self, deleted: dict[str, Range]) -> Iterator[tuple[str, str]]:
        defaults = [record.default for record in self.found.values()]
        if defaults and all(default == self.entry.value for default in defaults):
            fields = ("env",) if self.entry.strength == "default" else ("env", "env_default")
            overruled = [
                f"{name} in {_span(versions)}"
                for name, versions in self._variables(deleted, *fields)
            ]
            effect = (
                f"the only effect of this entry is to override {' and '.join(overruled)}"
                if overruled
                else "this entry has no effect"
            )
            yield REMARK, f"torch {_span(self.found)} ships this value, so {effect}"


def _within(version: str, range: Range) -> bool:
    """Whether an entry of a range is for a release of torch *version*."""
    since, until = range
    release = startup.release(version)
    return since[: len(release)] <= release and not (until and until <= release)


def _span(versions: Iterable[str]) -> str:
    """Versions in words: ``2.4``, ``2.4 to 2.6``, ``2.9 and later``."""
    known = _torches().versions
    places = sorted(known.index(version) for version in versions)
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(_run(known[run[0] : run[-1] + 1]) for run in runs)


def _run(versions: tuple[str, ...]) -> str:
    known = _torches().versions
    if len(versions) == 1:
        return versions[0]
    if versions[-1] == known[-1] and versions != known:
        return f"{versions[0]} and later"
    return f"{versions[0]} to {versions[-1]}"
