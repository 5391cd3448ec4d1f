"""What is known of variables and config values: variables.yaml, read where it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rocm_autopatch import startup
from rocm_autopatch.policy import lint

DANGEROUS = ("crashes", "hangs", "slows")
_FILE = Path(__file__).with_name("variables.yaml")


@dataclass(frozen=True)
class Verdict:
    """A verdict, why, and the upstream thread or file it is from, "" where there is none.

    With ``elsewhere`` a variable does more than supply the values of config keys. ``row`` is False
    where there was nothing to go by.
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
def table() -> dict[str, Any]:
    """The whole of variables.yaml."""
    with open(_FILE, encoding="utf-8") as stream:
        found: dict[str, Any] = yaml.load(stream, Loader=yaml.SafeLoader)
    return found


def reader(name: str) -> str:
    """Who reads variables of such a name, "" if nobody that is known."""
    families: dict[str, str] = table()["families"]
    close = [family for family in families if name.startswith(family)]
    return families[max(close, key=len)] if close else ""


def listed(name: str) -> bool:
    """Whether a variable of this name is one to list."""
    ours = name.startswith("ROCM_AUTOPATCH")
    known = name in table()["variables"] or name in table()["parsed"] or bool(reader(name))
    return known and not ours


def known(name: str) -> bool:
    """Whether this very variable is known, and not only a family of such names: what it holds may
    be told to others."""
    ours = name in table()["variables"] or name in table()["parsed"]
    return ours or any(name in feeds(version) for version in lint.known_versions())


@cache
def feeds(version: str) -> dict[str, tuple[str, ...]]:
    """Variable to the config keys, in full, that it feeds in torch *version*, such as "2.13"."""
    found: dict[str, list[str]] = {}
    for key, record in lint.keys(version).items():
        for name in {*record.env, *record.env_default, *record.env_force}:
            found.setdefault(name, []).append(key)
    return {name: tuple(sorted(keys)) for name, keys in found.items()}


def of_variable(name: str, value: str, torch: str, imports: bool = False) -> Verdict:
    """The verdict on NAME=VALUE for a *torch*, such as "2.13.0+rocm7.0".

    *imports* says that this torch was seen to import its config with this very value.
    """
    release = startup.release(torch)
    rule = table()["parsed"].get(name)
    if rule and _within(rule, release) and not imports and not _parses(value, rule["as"]):
        wanted = rule["as"]
        said = " or ".join(wanted) if isinstance(wanted, list) else f"{wanted}()"
        how = f"is none of {said}" if isinstance(wanted, list) else f"can't be read by {said}"
        return Verdict("crashes", f"{value!r} {how}: the import of torch's config raises.", "torch")
    for case in table()["variables"].get(name, ()):
        if _within(case, release) and _fits(case, value):
            return _verdict(case)
    keys = feeds(minor(torch)).get(name, ())
    if keys:
        return Verdict("unknown", f"Feeds {', '.join(keys)}.", row=False)
    if rule:
        return Verdict("harmless", "A number that torch's config takes.", row=False)
    family = reader(name)
    if family:
        text = f"A variable of {family}, by its name; no config key of this torch comes from it."
        return Verdict("unknown", text, row=False)
    return Verdict("unknown", "Read by this torch's config; nothing is known of it.", row=False)


def of_value(key: str, value: Any, torch: str) -> Verdict:
    """The verdict on a config value, by the key's full name."""
    module, name = split(key)
    for case in table()["config"].get(module, {}).get(name, ()):
        if _within(case, startup.release(torch)) and _fits(case, value):
            return _verdict(case)
    return Verdict("unknown", "Nothing is known of it.", row=False)


def split(key: str) -> tuple[str, str]:
    """Module and key of a full name, such as torch._inductor.config.triton.cudagraphs."""
    module, _, name = key.partition(".config.")
    return f"{module}.config", name


def minor(torch: str) -> str:
    """The first two numbers of a version."""
    return ".".join(map(str, startup.release(torch)[:2]))


def _verdict(case: Mapping[str, Any]) -> Verdict:
    return Verdict(
        case["verdict"], case["why"], case.get("source", ""), bool(case.get("elsewhere"))
    )


def _within(case: Mapping[str, Any], release: tuple[int, ...]) -> bool:
    since, until = (
        startup.release(case[name]) if name in case else () for name in ("since", "until")
    )
    return since <= release and not (until and until <= release)


def _fits(case: Mapping[str, Any], value: Any) -> bool:
    if "is" in case:
        return any(type(one) is type(value) and one == value for one in case["is"])
    if "has" in case:
        return case["has"] in str(value)
    return True


def _parses(value: str, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    try:
        (int if wanted == "int" else float)(value)
    except ValueError:
        return False
    return True
