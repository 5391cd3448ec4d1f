"""From layers to a plan: later layers win, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocm_autopatch import plan
from rocm_autopatch.patches.config import FORMER_NAMES
from rocm_autopatch.policy import when
from rocm_autopatch.policy.problem import PolicyError, Problem
from rocm_autopatch.policy.schema import ConfigEntry, Policy, Range

# What is known when the built-in policies are lowered: the start goes no further than its gate on
# any other accelerator.
BUILT_IN_FACTS = {"accelerator": "rocm"}
_RENAMED = {old: new for new, old in FORMER_NAMES.items()}
# The module of torch that each patch of a policy's ``patches`` is applied to.
_TARGETS = {
    "capture": "torch._dynamo.convert_frame",
    "watchdog": "torch._dynamo.convert_frame",
}


def lower(
    stack: Sequence[Policy], facts: Mapping[str, str] = BUILT_IN_FACTS, name: str = ""
) -> plan.Plan:
    """The plan of a stack of policies, general to specific, called *name* or as the last of them.

    A layer whose ``when`` does not hold for *facts* is left out.
    """
    layers = [policy for policy in stack if when.holds(policy.when, facts)]
    _refuse_two_pins(layers)
    env: list[tuple[Any, ...]] = []
    insist: dict[str, None] = {}
    config: dict[str, list[tuple[Any, ...]]] = {}
    modes: list[tuple[Any, ...]] = []
    others: dict[str, list[tuple[Any, ...]]] = {}
    for layer in layers:
        for rule in layer.env:
            _put(env, (rule.name, rule.action, rule.value, layer.name, rule.why, *rule.range))
            insist.pop(rule.name, None)
            if rule.insist:
                insist[rule.name] = None
        for entry in layer.config:
            row = (current(entry.key), entry.strength, entry.value, entry.yields_to, entry.switch)
            _put(config.setdefault(entry.module, []), (*row, layer.name, entry.why, *entry.range))
        for mode in layer.compile_modes:
            _put(modes, (mode.mode, mode.use, layer.name, mode.why, *mode.range))
        for patch in layer.patches:
            rows = others.setdefault(patch.patch.partition(".")[0], [])
            _put(rows, (patch.patch, patch.use, layer.name, patch.why, *patch.range))
    patches = [("config", module, tuple(rows)) for module, rows in config.items()]
    if modes:
        patches.append(("compile_modes", "torch", tuple(modes)))
    patches += [(name, _TARGETS[name], tuple(rows)) for name, rows in others.items()]
    return {
        "format": plan.FORMAT,
        "policy": name or stack[-1].name,
        "layers": tuple(layer.name for layer in layers),
        "env": tuple(env),
        "insist": tuple(insist),
        "counts": _counts(patches),
        "targets": tuple(dict.fromkeys(target for _, target, _ in patches)),
        "patches": tuple(patches),
    }


def _counts(patches: Sequence[tuple[str, str, tuple[Any, ...]]]) -> str:
    words = []
    for name, noun in (("config", "config value"), ("compile_modes", "compile mode")):
        names = {
            (target, row[0]) for patch, target, rows in patches if patch == name for row in rows
        }
        if names:
            words.append(f"{len(names)} {noun}{'' if len(names) == 1 else 's'}")
    # The watchdog changes nothing that is compiled: it is named where there is nothing else.
    words += [name for name, _, _ in patches if name in _TARGETS and name != "watchdog"]
    return ", ".join(words) or ("watchdog" if patches else "")


def current(key: str) -> str:
    """The name that a config key has in the newest torch: under two names it is one key."""
    return _RENAMED.get(key, key)


def _put(rows: list[tuple[Any, ...]], row: tuple[Any, ...]) -> None:
    """Add a row. Earlier ones of its name stay only where the new one is not for every torch."""
    if not any(row[-2:]):
        rows[:] = [other for other in rows if other[0] != row[0]]
    rows.append(row)


def _refuse_two_pins(layers: Sequence[Policy]) -> None:
    """Raise PolicyError if two layers pin one key of one torch to different values: neither is to
    give way, unless the later one insists."""
    pins: dict[tuple[str, str], list[tuple[Policy, ConfigEntry]]] = {}
    problems = []
    for layer in layers:
        for entry in layer.config:
            if entry.strength != "pin":
                continue
            earlier = pins.setdefault((entry.module, current(entry.key)), [])
            for other, pin in () if entry.insist else earlier:
                if pin.value != entry.value and _overlap(pin.range, entry.range):
                    place = f"{other.file}:{pin.place.line}:{pin.place.column}"
                    message = f"pinned to {entry.value!r} here, and to {pin.value!r} in {place}"
                    path = f"config.{entry.module}.{entry.key}"
                    at = entry.place
                    problems.append(Problem(layer.file, at.line, at.column, path, message))
            earlier.append((layer, entry))
    if problems:
        raise PolicyError(problems)


def _overlap(one: Range, other: Range) -> bool:
    """Whether there may be a torch that both are for."""
    return all(
        not until or since < until for since, until in ((one[0], other[1]), (other[0], one[1]))
    )
