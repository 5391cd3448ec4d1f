"""What each key of a policy means: keys of a JSON Schema by their paths, and policy_keys.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rocm_autopatch import patches

MEANINGS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
# What stands for a name that a user chooses, below these keys.
_NAMES = {"env": "VARIABLE", "compile_modes": "MODE", "sets": "VARIABLE", "MODULE": "KEY"}


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The path above each key, the key, and its schema. Names that a user chooses are capitals."""
    for part in schema.get("anyOf", ()):
        yield from walk(part, path)
    if "items" in schema:
        yield from walk(schema["items"], path)
    for key, inner in schema.get("properties", {}).items():
        name = "MODULE" if path == "config" or path.endswith(".config") else key
        yield path, name, inner
        yield from walk(inner, below(path, name))
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        yield from walk(more, below(path, _NAMES[path.rpartition(".")[2]]))


def below(path: str, key: str) -> str:
    """The path of a key."""
    return f"{path}.{key}" if path else key


def meaning(path: str, key: str) -> str:
    """What a key means. Raises KeyError where nothing says it."""
    # A record of an image has the keys of a policy, too.
    of_policy = below(path, key).removeprefix("images.")
    for name in (below(path, key), of_policy, f"any.{key}"):
        if name in MEANINGS:
            return MEANINGS[name]
    parts = of_policy.split(".")
    if parts[0] == "patches":
        patch = patches.load(parts[1])
        said: str = patch.__doc__ or patch.TITLE
        return said.partition("\n\n")[0].replace("\n", " ")
    raise KeyError(f"tools/policy_keys.yaml does not say what {of_policy} means")


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of the schema in which each key has its meaning as a description."""
    # The copy shares nothing: in the original, one dict may stand for several keys.
    made: dict[str, Any] = json.loads(json.dumps(schema))
    for path, key, inner in walk(made):
        inner["description"] = meaning(path, key)
    return made
