"""From layers to a plan: for each entry, the last layer that has it applies."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocm_autopatch import patches, plan
from rocm_autopatch.patches.config import FORMER_NAMES
from rocm_autopatch.policy import lint, when
from rocm_autopatch.policy.model import DELETE_EMPTY, Common, ConfigEntry, Policy, Range
from rocm_autopatch.policy.problem import Problem, Problems, quoted

# What is known when the built-in policies are lowered. On any other accelerator, a start stops at
# its gate.
BUILT_IN_FACTS = {"accelerator": "rocm"}
# Each layer is a file or the record of an image, so nobody needs more.
MAX_LAYERS = 200
_INDUCTOR = "torch._inductor.config"
_RENAMED = {old: new for new, old in FORMER_NAMES.items()}


def lower(
    stack: Sequence[Policy], facts: Mapping[str, str] = BUILT_IN_FACTS, name: str = ""
) -> plan.Plan:
    """The plan of a stack of policies, general to specific, called *name* or as the last of them.

    A layer whose ``when`` does not hold for *facts* is left out. Raises PolicyError.
    """
    layers = [held(policy, facts) for policy in stack if when.holds(policy.when, facts)]
    problems = Problems()
    pins = Pins(problems)
    for layer in layers:
        pins.add(layer)
    if len(layers) > MAX_LAYERS:
        last = layers[-1]
        problems.add(Problem(last.file, 0, 0, "", f"more than {MAX_LAYERS} layers"))
    problems.finish()
    env = _Rows()
    empty = _Rows()
    insist: dict[str, None] = {}
    image_only: dict[str, None] = {}
    config: dict[str, _Rows] = {}
    others: dict[str, _Rows] = {}
    modes, caches = _Rows(), _Rows()
    named = {
        "compile_modes": (modes, _fields_of("compile_modes")),
        "caches": (caches, plan.CACHES_FIELDS),
    }
    for layer in layers:
        for rule in layer.env:
            # Many rules have the same reason. As one object, a plan file has it once.
            why = sys.intern(rule.why)
            rows = empty if rule.action == DELETE_EMPTY else env
            given = {"name": rule.name, "action": rule.action, "value": rule.value, "why": why}
            rows.put(_row(plan.ENV_FIELDS, layer, rule, **given))
            if rows is empty:
                continue
            for names, wanted in ((insist, rule.insist), (image_only, rule.image_only)):
                names.pop(rule.name, None)
                if wanted:
                    names[rule.name] = None
        for entry in layer.config:
            rows = config.setdefault(entry.module, _Rows())
            row = _row(
                _fields_of("config"),
                layer,
                entry,
                name=current(entry.key),
                strength=entry.strength,
                wanted=entry.value,
                yields_to=entry.yields_to,
                switch=entry.switch,
            )
            rows.put(row)
        for used in layer.uses:
            if used.section == "patches":
                patch, _, _ = used.name.partition(".")
                rows, fields = others.setdefault(patch, _Rows()), _fields_of(patch)
            elif used.section in named:
                rows, fields = named[used.section]
            else:
                raise NotImplementedError(f"no code carries out {used.section} of a policy")
            rows.put(_row(fields, layer, used, name=used.name, wanted=used.use, use=used.use))
    lowered = [("config", module, rows.all()) for module, rows in config.items()]
    overruled = tuple(_overruled(config))
    inductor = config.get(_INDUCTOR, _Rows()).all()
    # What a mode stands for follows from pins, too.
    if modes.all() or any(strength == "pin" for _, strength, *_ in inductor):
        others = {"compile_modes": modes, **others}
    for patch_name, rows in others.items():
        targets = patches.load(patch_name).TARGETS
        lowered += [(patch_name, target, rows.all()) for target in targets]
    return {
        "format": plan.FORMAT,
        "policy": name or stack[-1].name,
        "layers": tuple(layer.name for layer in layers),
        "env": env.all(),
        "empty": empty.all(),
        "pinned": tuple(dict.fromkeys(variable for (variable, _), *_ in overruled)),
        "overruled": overruled,
        "insist": tuple(insist),
        "image_only": tuple(image_only),
        "caches": caches.all(),
        "digest": _digest(env.all(), lowered),
        "counts": _counts(lowered),
        "targets": tuple(dict.fromkeys(target for _, target, _ in lowered)),
        "patches": tuple(lowered),
    }


def _fields_of(patch: str) -> tuple[str, ...]:
    """The names of the fields that an entry of a patch has in a plan."""
    return (*patches.load(patch).FIELDS, *plan.RANGE_FIELDS)


def _row(fields: Sequence[str], layer: Policy, entry: Common, **values: object) -> tuple[Any, ...]:
    """A row of these fields: those of *values*, and what every entry has."""
    since, until = entry.range
    common = {"layer": layer.name, "why": entry.why, "since": since, "until": until}
    named = {**common, **values}
    return tuple(named[field] for field in fields)


def _overruled(config: Mapping[str, _Rows]) -> Iterator[tuple[Any, ...]]:
    """What a start asks of variables that torch reads for a key that is pinned or set: rows of
    plan.OVERRULED_FIELDS."""
    for module, rows in config.items():
        decided = {key for key, strength, *_ in rows.all() if strength != "default"}
        for key, strength, value, *_, since, until in rows.all():
            # Torch reads most switches by == "1", and some that it ships on by != "0".
            text, equal = str(value), False
            if isinstance(value, bool):
                text, equal = str(int(not value)), True
            if strength == "default":
                # No variable has this value, so it overrules none.
                text, equal = "\0", True
            for name in lint.variables_of(module, key) if key in decided else ():
                about = (name.encode(), f"{module}.{key}")
                yield (about, text.encode(), equal, since, until)


def held(policy: Policy, facts: Mapping[str, str]) -> Policy:
    """A policy with those of its entries for which there is the evidence that they need.

    Of alternatives, it leaves out those that a later one takes the place of for every torch.
    """
    entries = {section: _held(its, facts) for section, its in policy.entries.items()}
    return replace(policy, entries=entries)


def _held(entries: Sequence[Common], facts: Mapping[str, str]) -> tuple[Common, ...]:
    named: dict[tuple[str, ...], list[Common]] = {}
    for entry in entries:
        if when.holds(entry.needs, facts):
            alternatives = named.setdefault(entry.names, [])
            if entry.range == ((), ()):
                alternatives.clear()
            alternatives.append(entry)
    return tuple(entry for alternatives in named.values() for entry in alternatives)


def _digest(
    env: tuple[tuple[Any, ...], ...], lowered: Sequence[tuple[str, str, tuple[Any, ...]]]
) -> str:
    """What tells one plan's caches from another's: what is changed, not by which layer, nor why."""
    said: list[tuple[str, str, tuple[str, ...], tuple[Any, ...]]]
    said = [("env", "", plan.ENV_FIELDS, env)]
    said += [
        (name, target, _fields_of(name), rows)
        for name, target, rows in lowered
        if patches.load(name).CHANGES_CODE
    ]
    untold = ("layer", "why")
    changes = [
        (
            name,
            target,
            [tuple(one for key, one in zip(fields, row) if key not in untold) for row in rows],
        )
        for name, target, fields, rows in said
    ]
    return hashlib.sha256(repr(changes).encode()).hexdigest()[:16]


def _counts(lowered: Sequence[tuple[str, str, tuple[Any, ...]]]) -> str:
    """What the one line on stderr says of the patches. It does not count defaults, which yield to
    what the image and the program want."""
    counted: dict[str, set[tuple[str, str]]] = {}
    named: list[str] = []
    for name, target, rows in lowered:
        patch = patches.load(name)
        if patch.NOUN:
            entries = counted.setdefault(patch.NOUN, set())
            named_rows = [plan.named_fields(patch.FIELDS, row) for row in rows]
            entries.update(
                (target, row["name"]) for row in named_rows if row.get("strength") != "default"
            )
        elif patch.CHANGES_CODE and name not in named:
            named.append(name)
    words = [
        f"{len(entries)} {noun}{'' if len(entries) == 1 else 's'}"
        for noun, entries in counted.items()
        if entries
    ]
    # A patch that changes no compiled code is named only if there is nothing else.
    quiet = [name for name, *_ in lowered if not patches.load(name).NOUN]
    only = ["config defaults"] if lowered else []
    return ", ".join(words + named or list(dict.fromkeys(quiet)) or only)


def current(key: str) -> str:
    """The name that a config key has in the newest torch: under two names it is one key."""
    return _RENAMED.get(key, key)


class _Rows:
    """A plan's rows of one kind, in the order in which they were put."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._named: dict[str, list[int]] = {}
        self._count = 0

    def put(self, row: tuple[Any, ...]) -> None:
        """Add a row. Earlier ones of its name stay only if the new one is not for every torch."""
        name, *_, since, until = row
        if not (since or until):
            for number in self._named.pop(name, ()):
                del self._rows[number]
        self._rows[self._count] = row
        self._named.setdefault(name, []).append(self._count)
        self._count += 1

    def all(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(self._rows.values())


@dataclass(frozen=True)
class _Pin:
    """A pin, its layer, and the alternatives that come after it there."""

    layer: Policy
    entry: ConfigEntry
    later: tuple[ConfigEntry, ...]

    def conflicts(self, other: _Pin) -> bool:
        """Whether both pins may count for one torch, and have different values."""
        one, two = self.entry, other.entry
        if one.value == two.value or not _overlap(one.range, two.range):
            return False
        # Alternatives of one entry
        if self.layer is other.layer and one.names == two.names:
            return False
        evidence = {
            name: {*one.needs.get(name, ()), *two.needs.get(name, ())} for name in when.SETS
        }
        return self._counts(evidence) and other._counts(evidence)

    def _counts(self, evidence: Mapping[str, set[str]]) -> bool:
        """Whether no later alternative takes the pin's place where there is this evidence."""
        return not any(
            entry.range in (((), ()), self.entry.range)
            and all(evidence[name].issuperset(wanted) for name, wanted in entry.needs.items())
            for entry in self.later
        )


class Pins:
    """The pins of a stack of layers. Two pins of one key for one torch are a problem if their
    values differ, because a pin must not be overridden, unless the later one has ``insist``."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._pins: dict[tuple[str, str], list[_Pin]] = {}

    def add(self, layer: Policy) -> None:
        """Put a layer on top of those before it."""
        self.compare(layer)
        for pin in _pins(layer):
            self._pins.setdefault((pin.entry.module, current(pin.entry.key)), []).append(pin)

    def compare(self, layer: Policy) -> None:
        """Report the conflicts that a layer's pins would have on top of this stack."""
        # Two pins of one layer may conflict, too, under the two names of a key.
        own: dict[tuple[str, str], list[_Pin]] = {}
        for pin in _pins(layer):
            key = (pin.entry.module, current(pin.entry.key))
            if not pin.entry.insist:
                for other in (*self._pins.get(key, ()), *own.get(key, ())):
                    if pin.conflicts(other):
                        self._report(layer, pin.entry, other.layer, other.entry)
            own.setdefault(key, []).append(pin)

    def _report(self, layer: Policy, entry: ConfigEntry, other: Policy, pin: ConfigEntry) -> None:
        place = f"{other.file}:{pin.place.line}:{pin.place.column}"
        here, there = _value(entry.value), _value(pin.value)
        message = f"pinned to {here} here, but to {there} in {place}"
        message += "; with insist: true, this pin overrides that one"
        path = f"config.{entry.module}.{entry.key}"
        at = entry.place
        self._problems.add(Problem(layer.file, at.line, at.column, path, message))


def _pins(layer: Policy) -> list[_Pin]:
    found = []
    named: dict[tuple[str, ...], list[ConfigEntry]] = {}
    for entry in reversed(layer.config):
        later = named.setdefault(entry.names, [])
        if entry.strength == "pin" and entry.sound:
            found.append(_Pin(layer, entry, tuple(later)))
        later.append(entry)
    return found[::-1]


def _value(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _overlap(one: Range, other: Range) -> bool:
    """Whether there may be a torch that both are for."""
    return all(
        not until or since < until for since, until in ((one[0], other[1]), (other[0], one[1]))
    )
