"""What is known about variables and config values, from variables.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict, Union

import yaml

from rocm_autopatch import startup
from rocm_autopatch.policy import lint
from rocm_autopatch.policy.value_types import Scalar
from rocm_autopatch.startup import kfd

DANGEROUS = ("crashes", "hangs", "slows")
_FILE = Path(__file__).with_name("variables.yaml")
# What a shell, a terminal, a base image, an orchestrator or a login sets.
_SURROUNDINGS = re.compile(
    r"PATH|HOME|(OLD)?PWD|SHLVL|_|HOSTNAME|TERM(INFO|_PROGRAM.*)?|COLORTERM|LANG|LANGUAGE|LC_.*|"
    r"LS_COLORS|USER|LOGNAME|SHELL|MAIL|TZ|EDITOR|VISUAL|PAGER|LESS.*|DISPLAY|TMUX.*|SSH_.*|XDG_.*|"
    r"DEBIAN_FRONTEND|container|INVOCATION_ID|GPG_KEY|PYTHON_(VERSION|SHA256|PIP_VERSION)|"
    r"KUBERNETES_.*|.*_(SERVICE|PORT)(_[0-9]+_TCP)?(_(HOST|PORT|PROTO|ADDR))(_.*)?|PS[1-4]|"
    r"SUDO_.*|LINES|COLUMNS"
)


class _CaseText(TypedDict):
    verdict: str
    why: str


# When a case counts, and what else it says. The comment in variables.yaml explains them.
_CaseDetails = TypedDict(
    "_CaseDetails",
    {
        "is": list[Scalar],
        "has": str,
        "unless": dict[str, str],
        "gfx": list[str],
        "label": str,
        "since": str,
        "until": str,
        "source": str,
        "elsewhere": bool,
    },
    total=False,
)


class VerdictCase(_CaseText, _CaseDetails):
    """A case of a variable or config key."""


class EmptyGroup(VerdictCase):
    """A case of the empty text, and the names of its ``variables``."""

    variables: str


# How torch reads a variable when its config is imported: int, float, or one of a list.
ParsedRule = TypedDict(
    "ParsedRule", {"as": Union[str, list[str]], "since": str, "until": str}, total=False
)


class VerdictTable(TypedDict):
    """variables.yaml. ``config`` has modules, and for each its keys."""

    verdicts: list[str]
    parsed: dict[str, ParsedRule]
    empty: list[EmptyGroup]
    families: dict[str, str]
    variables: dict[str, list[VerdictCase]]
    config: dict[str, dict[str, list[VerdictCase]]]


@dataclass(frozen=True)
class VariableVerdict:
    """A verdict, why, and its source: an upstream thread or file; "" if there is none.

    ``elsewhere`` says that a variable has other effects than the values of config keys. ``row`` is
    False if variables.yaml has no row for it.
    """

    verdict: str
    why: str
    source: str = ""
    elsewhere: bool = False
    row: bool = True

    @property
    def dangerous(self) -> bool:
        return self.verdict in DANGEROUS


@cache
def verdict_table() -> VerdictTable:
    """The whole of variables.yaml."""
    with open(_FILE, encoding="utf-8") as stream:
        found: VerdictTable = yaml.load(stream, Loader=yaml.SafeLoader)
    return found


def family_reader(name: str) -> str:
    """Who reads variables whose name begins like this; "" if unknown."""
    families: dict[str, str] = verdict_table()["families"]
    close = [family for family in families if name.startswith(family)]
    return families[max(close, key=len)] if close else ""


def is_listed(name: str) -> bool:
    """Whether a variable of this name is listed."""
    ours = name.startswith("ROCM_AUTOPATCH")
    known = (
        name in verdict_table()["variables"]
        or name in verdict_table()["parsed"]
        or bool(family_reader(name))
    )
    return known and not ours


def is_surrounding(name: str) -> bool:
    """Whether every shell, login or container has this variable: it says nothing of the place."""
    return _SURROUNDINGS.fullmatch(name) is not None


def is_known(name: str) -> bool:
    """Whether this variable itself is known, and not only a family of such names. Then its value
    may be published."""
    ours = name in verdict_table()["variables"] or name in verdict_table()["parsed"]
    return ours or any(name in fed_keys(version) for version in lint.known_versions())


@cache
def fed_keys(version: str) -> dict[str, tuple[str, ...]]:
    """For each variable, the full names of the config keys whose defaults it sets in *version*."""
    found: dict[str, list[str]] = {}
    for key, record in lint.keys(version).items():
        for name in {*record.env, *record.env_default, *record.env_force}:
            found.setdefault(name, []).append(key)
    return {name: tuple(sorted(keys)) for name, keys in found.items()}


def of_variable(
    name: str,
    value: str,
    torch: str,
    imports: bool = False,
    environment: Mapping[str, str] | None = None,
    gfx: Sequence[str] = (),
) -> VariableVerdict:
    """The verdict on NAME=VALUE for a *torch*, such as "2.13.0+rocm7.0".

    *imports* says that this torch was seen to import its config with this value. *environment* has
    the other variables. *gfx* are the architectures of the GPUs here, such as gfx942; with none,
    the verdict is one for every GPU.
    """
    release = startup.release(torch)
    rule = verdict_table()["parsed"].get(name)
    if rule and is_within(rule, release) and not imports and not _value_parses(value, rule["as"]):
        wanted = rule["as"]
        said = " or ".join(wanted) if isinstance(wanted, list) else f"{wanted}()"
        how = f"is not {said}" if isinstance(wanted, list) else f"can't be read by {said}"
        text = f"{value!r} {how}, so the import of torch's config raises."
        return VariableVerdict("crashes", text, "torch")
    if value and re.fullmatch(kfd.OVERRIDE + "(_[0-9]+)?", name):
        override = _of_override(value, gfx)
        if override:
            return override
    for case in (*_of_nothing(name, value), *verdict_table()["variables"].get(name, ())):
        if (
            is_within(case, release)
            and _value_fits(case, value)
            and not _spared_by_another(case, environment or {})
            and _is_for(case, gfx)
            and _is_labelled(case, torch)
        ):
            return _make_verdict(case)
    keys = fed_keys(minor_version(torch)).get(name, ())
    if keys:
        return VariableVerdict(
            "unknown",
            f"It sets the default of {', '.join(keys)}; no verdict is recorded.",
            row=False,
        )
    if rule:
        return VariableVerdict("harmless", "It is a number that torch's config accepts.", row=False)
    family = family_reader(name)
    if family:
        text = f"By its name, {family} reads it; no config key of this torch depends on it."
        return VariableVerdict("unknown", text, row=False)
    return VariableVerdict(
        "unknown", "The config of this torch reads it; no verdict is recorded.", row=False
    )


@cache
def empty_verdicts() -> dict[str, list[EmptyGroup]]:
    """For each variable that the section ``empty`` has, its groups, the last one first."""
    found: dict[str, list[EmptyGroup]] = {}
    for group in reversed(verdict_table()["empty"]):
        for name in group["variables"].split():
            found.setdefault(name, []).append(group)
    return found


def _of_nothing(name: str, value: str) -> Sequence[VerdictCase]:
    return () if value else empty_verdicts().get(name, ())


def of_value(key: str, value: object, torch: str) -> VariableVerdict:
    """The verdict on a value of the config key with this full name."""
    module, name = split_key(key)
    for case in verdict_table()["config"].get(module, {}).get(name, ()):
        if is_within(case, startup.release(torch)) and _value_fits(case, value):
            return _make_verdict(case)
    return VariableVerdict("unknown", "No verdict is recorded.", row=False)


def split_key(key: str) -> tuple[str, str]:
    """Module and key of a full name, such as torch._inductor.config.triton.cudagraphs."""
    module, _, name = key.partition(".config.")
    return f"{module}.config", name


def minor_version(torch: str) -> str:
    """The first two numbers of a version."""
    return ".".join(map(str, startup.release(torch)[:2]))


def _make_verdict(case: VerdictCase) -> VariableVerdict:
    return VariableVerdict(
        case["verdict"], case["why"], case.get("source", ""), bool(case.get("elsewhere"))
    )


def is_within(case: VerdictCase | ParsedRule, release: tuple[int, ...]) -> bool:
    """Whether a case is for this release of torch, by its since and until."""
    since = startup.release(case["since"]) if "since" in case else ()
    until = startup.release(case["until"]) if "until" in case else ()
    return since <= release and not (until and until <= release)


def _value_fits(case: VerdictCase, value: object) -> bool:
    if "is" in case:
        return any(type(one) is type(value) and one == value for one in case["is"])
    if "has" in case:
        return case["has"] in str(value)
    return True


def _is_for(case: VerdictCase, gfx: Sequence[str]) -> bool:
    """Whether a case is for one of these GPUs, or for all."""
    return "gfx" not in case or any(kind.startswith(tuple(case["gfx"])) for kind in gfx)


def _is_labelled(case: VerdictCase, torch: str) -> bool:
    """Whether a case is for a torch with this local version, such as rocm7.2, or for all."""
    return "label" not in case or bool(re.fullmatch(case["label"], torch.partition("+")[2]))


def _of_override(value: str, gfx: Sequence[str]) -> VariableVerdict | None:
    """The verdict on a GPU that claims to be another one; None if nothing is known of the GPU."""
    claimed = kfd.claimed_gfx(value)
    if not claimed:
        why = f"{value!r} is no version such as '11.0.0', so ROCm finds no GPU."
        return VariableVerdict("crashes", why, "ROCm/ROCR-Runtime#354")
    if not gfx:
        return None
    others = [kind for kind in gfx if kind != claimed]
    real = " and ".join(others)
    if not others:
        return VariableVerdict("harmless", f"The GPU is {claimed}, so it changes nothing.")
    if any(kfd.gfx_family(kind) != kfd.gfx_family(claimed) for kind in others):
        why = f"The GPU is {real}, and claims to be {claimed}, of another family: kernels crash."
        return VariableVerdict("crashes", why, "ROCm/rocm-systems#5686, #3461")
    why = f"The GPU is {real}, and claims to be {claimed}: kernels that it can't run crash."
    return VariableVerdict("unknown", why, "ROCm/rocm-systems#3461")


def _spared_by_another(case: VerdictCase, environment: Mapping[str, str]) -> bool:
    """Whether another variable keeps a case from fitting."""
    return any(environment.get(name) == value for name, value in case.get("unless", {}).items())


def _value_parses(value: str, wanted: str | list[str]) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    try:
        (int if wanted == "int" else float)(value)
    except ValueError:
        return False
    return True
