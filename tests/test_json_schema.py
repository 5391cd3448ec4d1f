"""docs/policy.schema.json: made from the loader's tables, and of one mind with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import jsonschema
import pytest
import yaml
from conftest import ROOT
from test_policy import problems, wrong_policies

SCHEMA = json.loads((ROOT / "docs" / "policy.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
# Wrong in ways that a JSON Schema can't see: how YAML is written, what two values mean together.
BEYOND = (
    "given twice",
    "aliases are not allowed",
    "nested deeper",
    "constructor for the tag",
    "parsing a flow node",
    "single document",
    "not after since",
    "as key, found",
    "not a range such as",
    "no type that a variable",
    "version: expected 1, the schema that this release reads, found true",
)


def test_it_is_not_stale() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "json_schema.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(made.stdout) == SCHEMA
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["safe", "performance", "debug"])
def test_it_takes_the_built_in_policies(name: str) -> None:
    VALIDATOR.validate(yaml.safe_load((ROOT / "policies" / f"{name}.yaml").read_text()))


def test_it_takes_the_example_of_the_docs() -> None:
    example = (ROOT / "docs" / "policies.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert problems(example.encode()) == []
    VALIDATOR.validate(yaml.safe_load(example))


def within() -> Iterator[str]:
    for text, said in wrong_policies():
        if not any(words in line for words in BEYOND for line in said):
            yield text


@pytest.mark.parametrize("text", list(within()))
def test_it_refuses_what_the_loader_refuses(text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
