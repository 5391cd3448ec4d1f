"""Toggles: ``KEY[=VALUE,...]`` is a config key, a variable, a compile mode or a policy."""

from __future__ import annotations

import contextlib
import csv
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Union

from rocm_autopatch.measure.ab import RequestRefused, WrongRequest
from rocm_autopatch.patches import compile_modes, config
from rocm_autopatch.policy import lint, load
from rocm_autopatch.policy.value_types import Scalar
from rocm_autopatch.trust import is_path

CONFIG, VARIABLE, MODE, POLICY = "config", "variable", "mode", "policy"
OFF = "off"
# The prefix of a variable whose name could be a key: env.http_proxy.
_ENV = "env."
_MODE = "mode."
_UPPER = re.compile(r"[A-Z_][A-Z0-9_]*")
_BOOLEANS = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}


class AsHere:
    """The position of a switch that is left as it is here."""

    def __repr__(self) -> str:
        return "as here"


HERE = AsHere()
# The value of a switch; that of a variable that is not set is None.
Position = Union[Scalar, AsHere]


@dataclass(frozen=True)
class Toggle:
    """A switch and its positions, the base's first.

    ``name`` is a config key with its module, a variable, a mode, or "policy". ``label`` is what the
    user has written. ``names`` has what the policy of a file calls itself, by the file.
    """

    kind: str
    name: str
    label: str
    values: tuple[Position, ...]
    names: Mapping[str, str] = field(default_factory=dict)

    def says(self, value: Position) -> str:
        """A position in words: ``freezing=true``, ``NAME unset``, ``policy as here``."""
        if value is HERE:
            return f"{self.label} as here"
        if self.kind == VARIABLE:
            return f"{self.label} unset" if value is None else f"{self.label}={value}"
        if isinstance(value, bool) or value is None:
            return f"{self.label}={str(value).lower()}"
        if self.kind == POLICY and isinstance(value, str) and is_path(value):
            return f"{self.label}={self.names.get(value) or os.path.relpath(value)}"
        return f"{self.label}={value}"


def parse_toggle(text: str, torch: str, environ: Mapping[str, str]) -> Toggle:
    """The toggle in *text*. *torch* is a full version, or "" without torch.

    Raises Wrong, and Refused if this torch or environment does not have the switch.
    """
    label, equals, given = text.partition("=")
    label = label.strip()
    texts = _split_values(text, given) if equals else []
    if label == POLICY:
        values = [_policy_value(word) for word in texts]
        toggle = replace(
            _make_toggle(text, POLICY, label, label, values), names=_policy_names(values)
        )
    elif label.startswith(_MODE):
        mode = label[len(_MODE) :]
        for word, known in ((mode, compile_modes.MODES), *((t, compile_modes.USES) for t in texts)):
            if word not in known:
                raise WrongRequest(f"{text}: {word!r} is not one of {', '.join(known)}")
        toggle = _make_toggle(text, MODE, mode, label, texts)
    elif label.startswith(_ENV) or _UPPER.fullmatch(label):
        name = label[len(_ENV) :] if label.startswith(_ENV) else label
        toggle = _variable_toggle(text, name, texts if equals else None, environ)
    else:
        toggle = _config_toggle(text, label, texts, torch)
    if len(set(map(repr, toggle.values))) < len(toggle.values):
        raise WrongRequest(f"{text}: a value is given twice")
    return toggle


def _split_values(text: str, given: str) -> list[str]:
    try:
        rows = list(csv.reader([given], strict=True))
    except csv.Error as error:
        raise WrongRequest(f"{text}: {error}") from None
    return [word.strip() for word in rows[0]] or [""]


def _make_toggle(text: str, kind: str, name: str, label: str, values: Sequence[Position]) -> Toggle:
    if not values or "" in values:
        raise WrongRequest(f"{text}: a value is missing; give {label}=VALUE or {label}=VALUE,VALUE")
    if len(values) == 1:
        values = (HERE, *values)
    return Toggle(kind, name, label, tuple(values))


def _policy_value(word: str) -> str:
    if word == OFF or not word:
        return word
    if is_path(word):
        word = os.path.abspath(word)
    load.layers(load.top(word))
    return word


def _policy_names(words: Sequence[str]) -> dict[str, str]:
    """What the policies in files call themselves, where no other of *words* is called so."""
    called = {word: load.top(word).name if is_path(word) else word for word in words}
    names = list(called.values())
    return {word: name for word, name in called.items() if is_path(word) and names.count(name) == 1}


def _variable_toggle(
    text: str, name: str, texts: Sequence[str] | None, environ: Mapping[str, str]
) -> Toggle:
    if not name or "\0" in text:
        raise WrongRequest(f"{text}: this can't be the name of an environment variable")
    if texts is None:
        if name not in environ:
            raise RequestRefused(
                f"{name} is not set here, so give a value: {name}=VALUE compares unset with VALUE"
            )
        return Toggle(VARIABLE, name, name, (environ[name], None))
    values = [word or None for word in texts]
    if len(values) == 1:
        values.insert(0, environ.get(name))
        if values[0] == values[1]:
            state = "not set" if values[0] is None else f"{values[0]!r}"
            raise RequestRefused(f"{name} is already {state} here: give another value")
    return Toggle(VARIABLE, name, name, tuple(values))


def _config_toggle(text: str, label: str, texts: Sequence[str], torch: str) -> Toggle:
    if not torch:
        raise RequestRefused(f"{label} would be a config key of torch, but no torch was found here")
    name, record = _find_key(label, torch)
    kinds = record.type.split("|")
    if texts:
        values: list[Position] = [_typed_value(text, word, kinds) for word in texts]
        if len(values) == 1:
            values.insert(0, HERE)
    elif "bool" in kinds:
        # The base is what torch has by itself.
        base = record.default if record.has_default and isinstance(record.default, bool) else False
        values = [base, not base]
    else:
        kind = " or ".join(kinds)
        raise WrongRequest(
            f"{label} is not a boolean but {kind}, so give values: {label}=VALUE,VALUE"
        )
    return Toggle(CONFIG, name, label, tuple(values))


def _find_key(label: str, torch: str) -> tuple[str, lint.Record]:
    """The config key of this torch whose name is *label* or ends with it."""
    keys = lint.keys_of(torch)
    # A whole key has priority over the end of a longer one: debug over halide.debug.
    whole = {
        keys[name][0] for name in (label, *(f"{m}.{label}" for m in config.TARGETS)) if name in keys
    }
    ends = {there for name, (there, _) in keys.items() if name.endswith("." + label)}
    found = sorted(whole or ends)
    if len(found) > 1:
        raise RequestRefused(f"{label} may mean {_alternatives(found)}: give one of these")
    if not found:
        close = difflib.get_close_matches(label, keys, n=1, cutoff=0.5)
        tails = {name.rpartition(".config.")[2]: name for name in keys}
        close = difflib.get_close_matches(label, tails, n=1) or close
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RequestRefused(f"torch {torch} has no config key {label}{hint}")
    return found[0], keys[found[0]][1]


def _alternatives(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _typed_value(text: str, word: str, kinds: Sequence[str]) -> Scalar:
    """*word* as a value of the first of the key's types that fits."""
    readings: list[Scalar] = []
    for read in (int, float):
        with contextlib.suppress(ValueError):
            readings.append(read(word))
    if word.lower() in _BOOLEANS:
        readings.append(_BOOLEANS[word.lower()])
    if word.lower() in ("none", "null"):
        readings.append(None)
    readings.append(word)
    # If only the type None is known of a key, it takes any value.
    for value in readings:
        if type(value).__name__.replace("NoneType", "None") in kinds or kinds == ["None"]:
            return value
    plain = [kind for kind in kinds if kind in ("bool", "int", "float", "str", "None")]
    if not plain:
        raise RequestRefused(
            f"{text}: a value of type {' or '.join(kinds)} can't be written as a toggle"
        )
    raise WrongRequest(f"{text}: {word!r} does not have the type {' or '.join(plain)}")
