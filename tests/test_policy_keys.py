"""What is said of each key of a policy: in the JSON Schemas, and on the page made from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocm_autopatch import patches
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.policy import grammar, when
from rocm_autopatch.policy.value_types import MappingKey
from tests.conftest import ROOT
from tools import policy_keys_page

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
    # Names of config modules and of modes stand in the head of the page.
    for name in found - {"images"}:
        head = name.startswith("torch.") or name in compile_modes.MODES
        assert (f"`{name}`" if head else f"\n- `{name}` (") in PAGE, name


def every_key() -> list[tuple[str, MappingKey[object]]]:
    """Each key of the grammar, with the path above it."""
    files = (grammar.POLICY_FILE, grammar.IMAGES_FILE)
    return [(path, key) for file in files for path, keys in file.key_tables("") for key in keys]


def test_each_key_has_a_sentence() -> None:
    assert len(every_key()) > 100
    for path, key in every_key():
        assert key.sentence.endswith("."), f"{path}.{key.name}"


def test_each_condition_is_a_key() -> None:
    assert [key.name for key in grammar.CONDITIONS] == [*when.NAMES]


def test_each_setting_of_a_patch_has_a_sentence_of_its_own() -> None:
    settings = {name for patch in patches.NAMES for name in patches.load(patch).SETTINGS}
    assert {name for name in settings if "." in name} == {*grammar.SETTING_SENTENCES}


def test_keys_of_one_name_have_sentences_of_their_own() -> None:
    said = {(path, key.name): key.sentence for path, key in every_key()}
    assert said["env.VARIABLE", "default"] != said["config.MODULE.KEY", "default"]
    assert said["", "name"] != said["images", "name"]
