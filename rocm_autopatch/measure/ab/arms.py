"""The arms of a comparison: toggles as an environment and a policy, and whether they take effect.

A variable is set in the environment, and excluded from our policies. A config value or a compile
mode reaches the command's processes through our own hook: each arm gets a policy with the entries
that apply here, and with pins of the arm's values on top.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rocm_autopatch import _ASSUME, patches
from rocm_autopatch.measure.ab import RequestRefused, WrongRequest
from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.measure.ab.runner import CACHES
from rocm_autopatch.measure.ab.toggles import (
    CONFIG,
    HERE,
    MODE,
    OFF,
    POLICY,
    VARIABLE,
    Position,
    Toggle,
)
from rocm_autopatch.policy import document, load, lower, when
from rocm_autopatch.trust import is_path

_KEEP = "ROCM_AUTOPATCH_KEEP"
_POLICY = "ROCM_AUTOPATCH_POLICY"
_NAME = "ab"


@dataclass(frozen=True)
class ToggleArm:
    """A position of each toggle, and the environment for these positions."""

    label: str
    values: tuple[Position, ...]
    environ: Mapping[str, str]


def positions_of(toggles: Sequence[Toggle], grid: bool) -> list[tuple[Position, ...]]:
    """The positions to compare, the base first. Without *grid*, only one toggle moves at a time."""
    if grid:
        return list(itertools.product(*(toggle.values for toggle in toggles)))
    base = tuple(toggle.values[0] for toggle in toggles)
    return [base] + [
        (*base[:place], value, *base[place + 1 :])
        for place, toggle in enumerate(toggles)
        for value in toggle.values[1:]
    ]


def make_arms(
    place: ProgramPlace, toggles: Sequence[Toggle], grid: bool, directory: Path
) -> list[ToggleArm]:
    """The arms, the base first. Their policies are written to *directory*.

    Raises Wrong, Refused and PolicyError.
    """
    check_toggles(place, toggles)
    rows = positions_of(toggles, grid)
    return [
        make_arm(place, toggles, values, rows[0], directory / f"arm{number}.yaml")
        for number, values in enumerate(rows)
    ]


def make_arm(
    place: ProgramPlace,
    toggles: Sequence[Toggle],
    values: tuple[Position, ...],
    base: Sequence[Position],
    file: Path,
) -> ToggleArm:
    """The arm that has the toggles at *values*; *file* is for its policy, if it needs one.

    *base* are the base's values, for the label. Raises PolicyError.
    """
    environ = dict(place.environ)
    settings = list(zip(toggles, values))
    _set_variables(environ, settings)
    named = next((value for toggle, value in settings if toggle.kind == POLICY), HERE)
    if any(toggle.kind in (CONFIG, MODE) for toggle in toggles):
        file.write_text(_policy_text(place, named, settings), encoding="utf-8")
        file.chmod(0o644)  # A start refuses a policy that everybody may write.
        _name_policy(environ, place, str(file))
    elif isinstance(named, str):
        _name_policy(environ, place, named)
    return ToggleArm(_arm_label(toggles, values, base), values, environ)


def check_toggles(place: ProgramPlace, toggles: Sequence[Toggle]) -> None:
    """Raise WrongRequest or RequestRefused if the toggles can't be set together, or not here."""
    names = [(toggle.kind, toggle.name) for toggle in toggles]
    twice = [toggle for toggle in toggles if names.count((toggle.kind, toggle.name)) > 1]
    if twice:
        raise WrongRequest(f"{twice[0].label} is toggled twice")
    ours = [t for t in toggles if t.kind == VARIABLE and t.name.startswith("ROCM_AUTOPATCH")]
    hooked = [t for t in toggles if t.kind != VARIABLE]
    if ours and hooked:
        raise WrongRequest(
            f"{ours[0].name} and {hooked[0].label} influence each other: toggle only one of them"
        )
    own = [t.name for t in toggles if t.name in CACHES]
    if own:
        raise WrongRequest(
            f"{own[0]} can't be toggled, because each run has its own caches; see --caches"
        )
    if hooked and place.report is None:
        raise RequestRefused(
            f"{hooked[0].label} is set through rocm_autopatch, which {place.python[0]} does not "
            f"have: {place.without}"
        )
    by_policy = [toggle for toggle in hooked if toggle.kind in (CONFIG, MODE)]
    policies = [toggle for toggle in hooked if toggle.kind == POLICY]
    if by_policy and any(OFF in toggle.values for toggle in policies):
        raise WrongRequest(
            f"{by_policy[0].label} is set through our hook, which policy=off turns off: use one "
            "command for each"
        )
    if hooked and place.switch != "on" and (by_policy or HERE in policies[0].values):
        raise RequestRefused(
            f"{hooked[0].label} needs our hook, but ROCM_AUTOPATCH={place.switch} is set here"
        )
    if hooked and place.report and place.report["errors"] and not place.report["active"]:
        raise RequestRefused(f"no policy can be used here: {place.report['errors'][0]}")


def _set_variables(environ: dict[str, str], settings: Sequence[tuple[Toggle, Position]]) -> None:
    kept = []
    for toggle, value in settings:
        if toggle.kind != VARIABLE:
            continue
        environ.pop(toggle.name, None)
        if isinstance(value, str):
            environ[toggle.name] = value
        if not toggle.name.startswith("ROCM_AUTOPATCH"):
            kept.append(toggle.name)
    if kept:
        # If a policy deleted or set the variable, all arms would be the same.
        environ[_KEEP] = ",".join(filter(None, (environ.get(_KEEP, ""), *kept)))


def _name_policy(environ: dict[str, str], place: ProgramPlace, name: str) -> None:
    environ.pop("ROCM_AUTOPATCH", None)
    if name == OFF:
        environ["ROCM_AUTOPATCH"] = OFF
        return
    environ[_POLICY] = name
    if not place.is_rocm:
        given = environ.get(_ASSUME, "")
        environ[_ASSUME] = ",".join(filter(None, (given, "accelerator=rocm")))
    image = place.fact("image")
    if image:
        # Here the image's name may come from a baked plan, which a start with this policy ignores.
        environ["ROCM_AUTOPATCH_IMAGE"] = image


def _policy_text(
    place: ProgramPlace, named: Position, settings: Sequence[tuple[Toggle, Position]]
) -> str:
    """The text of an arm's policy: *named* or the policy named here, and the pins."""
    document: dict[str, Any] = {"version": 1, "name": _NAME}
    if isinstance(named, str):
        document = _copy_policy(place, named)
    elif not place.is_rocm:
        document["extends"] = []  # No policy applies here, so the arm has only the toggle.
    elif place.named:
        document = _copy_policy(place, place.named)
    for toggle, value in settings:
        if value is HERE:
            continue
        if toggle.kind == CONFIG:
            module, key = _key_parts(toggle.name)
            keys = document.setdefault("config", {}).setdefault(module, {})
            for other in [other for other in keys if lower.current(other) == key]:
                del keys[other]
            keys[key] = {"pin": value, "insist": True, "why": "A toggle of rocm-autopatch ab."}
        elif toggle.kind == MODE:
            document.setdefault("compile_modes", {})[toggle.name] = value
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def _copy_policy(place: ProgramPlace, name: str) -> dict[str, Any]:
    """A policy as a document that means the same in another directory."""
    policy = load.top(name)
    facts = {fact: place.fact(fact) for fact in (place.report or {"facts": ()})["facts"]}
    if not place.is_rocm:
        facts["accelerator"] = "rocm"
    said: dict[str, Any] = {"version": 1, "name": policy.name}
    if when.holds(policy.when, facts):
        root = document.read(Path(policy.file), judgement="")
        said.update(document.data(root) if root else {})
    said["name"] = policy.name
    said.pop("extends", None)
    if policy.extends is not None:
        said["extends"] = [
            str((Path(policy.file).parent / base).resolve()) if is_path(base) else base
            for base in policy.extends
        ]
    return said


def _key_parts(name: str) -> tuple[str, str]:
    """Module and key of a config key, by its current name as in policies."""
    module, _, key = name.partition(".config.")
    return f"{module}.config", lower.current(key)


def _arm_label(
    toggles: Sequence[Toggle], values: Sequence[Position], base: Sequence[Position]
) -> str:
    moved = [t.says(v) for t, v, there in zip(toggles, values, base) if v is not there]
    return ", ".join(moved) or "base"


def verify_arm(toggles: Sequence[Toggle], arm: ToggleArm, report: Mapping[str, Any]) -> None:
    """Raise Refused unless the *report* of a fresh interpreter shows the arm's positions."""
    for toggle, value in zip(toggles, arm.values):
        if value is not HERE:
            _VERIFY[toggle.kind](toggle, value, report)


def verify_all(
    toggles: Sequence[Toggle],
    arms: Sequence[ToggleArm],
    reports: Sequence[Mapping[str, Any]],
    modes: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise Refused unless the arms differ by their *reports*.

    *modes* are Inductor's options for each compile mode that a toggle names.
    """
    for number, (arm, report) in enumerate(zip(arms, reports)):
        for other, its in zip(arms[:number], reports[:number]):
            if _variable_positions(toggles, arm) == _variable_positions(
                toggles, other
            ) and _same_values(report, its):
                here = (
                    toggles[0].says(toggles[0].values[0]) if other.label == "base" else other.label
                )
                raise RequestRefused(
                    f"{arm.label} and {here} have the same effect here, so there is nothing to "
                    "compare"
                )
    for toggle in toggles:
        if toggle.kind == MODE:
            _verify_mode_differs(toggle, toggles, arms, reports, modes)


def _verify_config(toggle: Toggle, value: Position, report: Mapping[str, Any]) -> None:
    module, key = _key_parts(toggle.name)
    row = _report_row(toggle, report, "config", f"{module}.{key}")
    if row["status"] != "applied" or row["after"] != value:
        raise RequestRefused(f"{toggle.says(value)} does not take effect: {_row_text(row)}")


def _verify_mode(toggle: Toggle, value: Position, report: Mapping[str, Any]) -> None:
    row = _report_row(toggle, report, "compile_modes", toggle.name)
    if row["status"] != "applied" or row["after"] != value:
        raise RequestRefused(f"{toggle.says(value)} does not take effect: {_row_text(row)}")


def _report_row(
    toggle: Toggle, report: Mapping[str, Any], section: str, name: str
) -> Mapping[str, Any]:
    for row in report[section]:
        if row["name"] == name:
            found: Mapping[str, Any] = row
            return found
    raise RequestRefused(f"{toggle.label} does not take effect: {_why_not_applied(report)}")


def _row_text(row: Mapping[str, Any]) -> str:
    by = f" by policy {row['layer']}" if row["layer"] != _NAME else ""
    reason = f", {row['reason']}" if row["reason"] else ""
    return f"its entry is {row['status']}{by}{reason}, and the value is {row['after']!r}"


def _why_not_applied(report: Mapping[str, Any]) -> str:
    notes = [note for note in report["notes"] if _POLICY in note]
    return "; ".join(notes or report["errors"]) or str(report["reason"])


def _verify_policy(toggle: Toggle, value: Position, report: Mapping[str, Any]) -> None:
    if value == OFF:
        if report["active"]:
            raise RequestRefused(f"{toggle.says(value)} does not take effect: {report['reason']}")
    elif not report["active"] or report["policy"] != load.top(str(value)).name:
        raise RequestRefused(
            f"{toggle.says(value)} does not take effect: {_why_not_applied(report)}"
        )


def _verify_variable(toggle: Toggle, value: Position, report: Mapping[str, Any]) -> None:
    for row in report["env"]:
        if row["name"] == toggle.name and row["after"] != value:
            raise RequestRefused(f"{toggle.says(value)} does not take effect: {_row_text(row)}")


_VERIFY = {
    CONFIG: _verify_config,
    MODE: _verify_mode,
    POLICY: _verify_policy,
    VARIABLE: _verify_variable,
}


def _variable_positions(toggles: Sequence[Toggle], arm: ToggleArm) -> list[Position]:
    return [value for toggle, value in zip(toggles, arm.values) if toggle.kind == VARIABLE]


def _same_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two reports have the same values, set in the same way."""
    return list(_report_effects(one)) == list(_report_effects(other))


def _report_effects(report: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    yield (report["active"], report["observe"])
    changing = [name for name in patches.NAMES if patches.load(name).CHANGES_CODE]
    for section in ("env", *changing):
        for row in sorted(report[section], key=lambda row: str(row["name"])):
            held = row.get("strength") or row.get("action")
            yield (section, row["name"], held, row["status"], repr(row["after"]))


def _verify_mode_differs(
    toggle: Toggle,
    toggles: Sequence[Toggle],
    arms: Sequence[ToggleArm],
    reports: Sequence[Mapping[str, Any]],
    modes: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise RequestRefused if two modes differ only in pinned keys."""
    place = toggles.index(toggle)
    base = _mode_meaning(toggle, reports[0])
    for arm, report in zip(arms, reports):
        meaning = _mode_meaning(toggle, report)
        if arm.values[place] is arms[0].values[place] or not {base, meaning} <= modes.keys():
            continue
        one, other = modes[base], modes[meaning]
        keys = {key for key in {*one, *other} if one.get(key) != other.get(key)}
        pins = {
            row["name"].partition(".config.")[2]: row
            for row in report["config"]
            if row["strength"] == "pin" and row["status"] == "applied"
        }
        if not keys:
            raise RequestRefused(f"{toggle.label}: {base} and {meaning} do the same in this torch")
        if keys <= pins.keys():
            layers = " and ".join(sorted({pins[key]["layer"] for key in keys}))
            raise RequestRefused(
                f"{toggle.label}: {base} and {meaning} differ only in {', '.join(sorted(keys))}, "
                f"and policy {layers} pins that: toggle the key, or try another policy"
            )


def _mode_meaning(toggle: Toggle, report: Mapping[str, Any]) -> str:
    """What a compile mode stands for."""
    rows = [row for row in report["compile_modes"] if row["name"] == toggle.name]
    return str(rows[0]["after"]) if rows else toggle.name
