"""The JSON Schemas in docs: made from the grammar, and of one mind with the loader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from rocm_autopatch.policy import load
from tests.conftest import ROOT
from tests.test_evidence_files import SAMPLE, WRONG, changed
from tests.test_policy import WRONG_IMAGES
from tests.wrong_policies import problems, wrong_policies


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "docs" / name).read_text())
    return jsonschema.Draft202012Validator(schema)


VALIDATOR = validator("policy.schema.json")
IMAGES = validator("images.schema.json")
EVIDENCE = validator("evidence.schema.json")
# Wrong in ways that a JSON Schema can't see: how YAML is written, what two values mean together.
BEYOND = (
    "given twice",
    "aliases are not allowed",
    "nested deeper",
    "the tag ",
    "merge keys are not allowed",
    "this escape stands",
    "parsing a flow node",
    "single document",
    "must be later than since",
    "as key, found",
    "not a range such as",
    "a switch needs a value",
    "version: expected 1, the schema that this release reads, found true",
)


def test_they_are_not_stale(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "json_schema.py", tmp_path], check=True)
    for name in ("policy.schema.json", "images.schema.json", "evidence.schema.json"):
        made = json.loads((tmp_path / name).read_text())
        assert made == json.loads((ROOT / "docs" / name).read_text())
        jsonschema.Draft202012Validator.check_schema(made)


@pytest.mark.parametrize("name", load.names())
def test_it_takes_the_built_in_policies(name: str) -> None:
    VALIDATOR.validate(yaml.safe_load((ROOT / "policies" / f"{name}.yaml").read_text()))


def test_it_takes_the_built_in_images() -> None:
    IMAGES.validate(yaml.safe_load(load.IMAGES.read_text()))


@pytest.mark.parametrize("text", WRONG_IMAGES)
def test_it_refuses_the_images_that_the_loader_refuses(text: bytes) -> None:
    assert not IMAGES.is_valid(yaml.safe_load(text))


def test_it_takes_the_example_of_the_docs() -> None:
    example = (ROOT / "docs" / "policies.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert problems(example.encode()) == []
    VALIDATOR.validate(yaml.safe_load(example))


def test_it_takes_on_and_off_without_quotes() -> None:
    """YAML 1.1 reads them as booleans, and so does the loader."""
    for text in ("patches: {graph_check: on}", "patches: {capture: off}", "caches: on"):
        assert problems(f"version: 1\n{text}\n".encode()) == []
        VALIDATOR.validate(yaml.safe_load(f"version: 1\n{text}\n"))
    assert not VALIDATOR.is_valid({"version": 1, "patches": {"capture": True}})


def within() -> Iterator[str]:
    for text, said in wrong_policies():
        if not any(words in line for words in BEYOND for line in said):
            yield text


@pytest.mark.parametrize("text", list(within()))
def test_it_refuses_what_the_loader_refuses(text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))


def test_evidence_files() -> None:
    EVIDENCE.validate(SAMPLE)
    for said, (path, value) in WRONG.items():
        # A pattern does not know how long a month is, nor what day it is; names have none.
        beyond = any(text in said for text in ("2026-02-30", "9999-12-31", "without blanks"))
        assert EVIDENCE.is_valid(changed(path, value)) == beyond, said
