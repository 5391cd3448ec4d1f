"""What is said of each key of a policy: in the JSON Schemas, and on the page made from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ROOT
from tools import json_schema, policy_keys, policy_keys_page

PAGE = (ROOT / "docs" / "policy-keys.md").read_text(encoding="utf-8")


def names(schema: Any) -> set[str]:
    """The names of all properties, wherever they are: without the walk that the page uses."""
    if isinstance(schema, list):
        return set().union(*map(names, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties")
    return {*(own if isinstance(own, dict) else ()), *names(list(schema.values()))}


def test_the_page_is_not_stale() -> None:
    assert "\n".join(policy_keys_page.page()) + "\n" == PAGE


@pytest.mark.parametrize("file", ["policy.schema.json", "images.schema.json"])
def test_the_page_has_every_key(file: str) -> None:
    schema = json.loads((ROOT / "docs" / file).read_text(encoding="utf-8"))
    found = names(schema)
    assert {"version", "pin", "warn_after", "framework_version"} <= found
    for name in found - {"images"}:
        # Names of config modules stand in the head of the page.
        row = f"`{name}`" if name.startswith("torch.") else f"\n| `{name}` | "
        assert row in PAGE, name


def test_each_meaning_is_of_a_key() -> None:
    used = set()
    for make in (json_schema.policy, json_schema.images):
        for path, key, schema in policy_keys.walk(make()):
            full = policy_keys.below(path, key)
            used |= {full, full.removeprefix("images."), f"any.{key}"}
            assert schema["description"].endswith("."), full
    assert set(policy_keys.MEANINGS) - used == set()


def test_a_key_that_nothing_describes() -> None:
    schema = {"properties": {"version": {"const": 1}, "colour": {"type": "string"}}}
    with pytest.raises(KeyError, match="does not say what colour means"):
        policy_keys.described(schema)


def test_a_word_and_its_meaning_are_not_shared() -> None:
    """One dict stands for many keys in the tables, and each key has a meaning of its own."""
    keys = policy_keys_page.sections(json_schema.policy())
    assert keys["env.VARIABLE"]["default"] != keys["config.MODULE.KEY"]["default"]
    assert keys[""]["name"]["description"] != keys[""]["description"]["description"]
