"""Make docs/policy.schema.json, by which editors complete and check policy files.

    python tools/json_schema.py > docs/policy.schema.json

It is made from the loader's own tables, and tests/test_json_schema.py holds it against the loader.
What it can't say (pins of two layers, since after until) ``rocm-autopatch check`` does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.policy import schema, when

TEXT = {"type": "string"}
TEXTS = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
VARIABLE = {"type": "string", "pattern": f"^{schema.VARIABLE.pattern}$"}
COMMON = {
    "why": {**TEXT, "description": "One line: what is known, and from where."},
    "since": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)*$"},
    "until": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)*$"},
}


def one_of(kinds: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """An entry with exactly one of *kinds*."""
    return {
        "type": "object",
        "properties": {**kinds, **more, **COMMON},
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in kinds],
    }


def policy() -> dict[str, Any]:
    """The schema of a policy file."""
    scalar = {"type": ["string", "number", "boolean", "null"]}
    values: dict[str, Any] = {
        "delete": {"const": True},
        "default": {"type": "string", "minLength": 1},
        "set": {"type": "string", "minLength": 1},
    }
    config = one_of(
        dict.fromkeys(schema.STRENGTHS, scalar),
        {"yields_to": VARIABLE, "switch": VARIABLE},
    )
    config["dependentSchemas"] = {"yields_to": {"required": ["default"]}}
    mode = {"enum": list(schema.MODES)}
    conditions: dict[str, Any] = dict.fromkeys((*when.WORDS, *when.GLOBS), TEXTS)
    accelerator = {"enum": list(when.ACCELERATORS)}
    conditions["accelerator"] = {"anyOf": [accelerator, {"type": "array", "items": accelerator}]}
    conditions.update(dict.fromkeys(when.RANGES, TEXT))
    properties = {
        "version": {"const": schema.VERSION},
        "name": TEXT,
        "description": TEXT,
        "extends": TEXTS,
        "when": {"type": "object", "properties": conditions, "additionalProperties": False},
        "env": {
            "type": "object",
            "propertyNames": {**VARIABLE, "not": {"pattern": "^ROCM_AUTOPATCH"}},
            "additionalProperties": one_of({kind: values[kind] for kind in schema.ENV_ACTIONS}, {}),
        },
        "config": {
            "type": "object",
            "properties": {
                module: {"type": "object", "additionalProperties": config}
                for module in schema.CONFIG_MODULES
            },
            "additionalProperties": False,
        },
        "compile_modes": {
            "type": "object",
            "propertyNames": mode,
            "additionalProperties": {
                "anyOf": [
                    mode,
                    {
                        "type": "object",
                        "properties": {"use": mode, **COMMON},
                        "required": ["use"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
        "known_issues": TEXTS,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rocm_autopatch policy",
        "type": "object",
        "properties": properties,
        "required": ["version"],
        "additionalProperties": False,
    }


if __name__ == "__main__":
    print(json.dumps(policy(), indent=2))
