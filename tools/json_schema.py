"""Make the JSON Schemas in docs/, of policies, images files and evidence files: editors complete
and check by them.

    python tools/json_schema.py docs

They are made from the loader's own tables, and tests/test_json_schema.py compares them with the
loader. They can't express everything, such as conflicting pins of two layers or a ``since`` after
its ``until``: ``rocm-autopatch check`` reports those.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.evidence import SUBJECTS, file, machine
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.patches import config as config_patch
from rocm_autopatch.policy import document as yaml_document
from rocm_autopatch.policy import schema, when
from rocm_autopatch.policy.model import DELETE_EMPTY
from rocm_autopatch.policy.settings import KINDS
from tools import policy_keys

TEXT: dict[str, Any] = {"type": "string"}


def texts(text: dict[str, Any]) -> dict[str, Any]:
    """A text, or a list of them."""
    return {"anyOf": [text, {"type": "array", "items": text}]}


VARIABLE = {"type": "string", "pattern": f"^{schema.VARIABLE.pattern}$"}
ROOT = {"type": "string", "pattern": "^/", "maxLength": schema.LONGEST_ROOT}
SUBJECT = {"enum": list(SUBJECTS)}
COMMON = {
    "why": TEXT,
    "since": {"type": "string", "pattern": f"^{schema.RELEASE.pattern}$"},
    "until": {"type": "string", "pattern": f"^{schema.RELEASE.pattern}$"},
    **dict.fromkeys(when.SETS, texts(SUBJECT)),
    "no_trial": TEXT,
}


def alternatives(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry, or a list of entries of which the last one that holds counts."""
    many = {"type": "array", "items": entry, "minItems": 1, "maxItems": schema.MOST_ALTERNATIVES}
    return {"anyOf": [*entry.get("anyOf", [entry]), many]}


def one_of(kinds: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """An entry with exactly one of *kinds*."""
    return {
        "type": "object",
        "properties": {**kinds, **more, **COMMON},
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in kinds],
    }


def use(words: Any) -> dict[str, Any]:
    """A word, or an entry that uses one."""
    entry = {
        "type": "object",
        "properties": {"use": words, **COMMON},
        "required": ["use"],
        "additionalProperties": False,
    }
    return {"anyOf": [words, entry]}


def setting(patch: str) -> dict[str, Any]:
    """What a policy may set of a patch."""
    settings = schema.SETTINGS[patch]
    if patch in settings:
        # YAML 1.1 reads off without quotes as false.
        words = {"enum": [*settings[patch], *([False] if "off" in settings[patch] else [])]}
        return alternatives(use(words))
    fields = {name.partition(".")[2]: KINDS[kind].json_schema() for name, kind in settings.items()}
    mapping = {
        "type": "object",
        "properties": {**fields, **COMMON},
        "anyOf": [{"required": [name]} for name in fields],
        "additionalProperties": False,
    }
    return alternatives({"anyOf": [{"enum": ["off", False]}, mapping]})


def parts() -> dict[str, Any]:
    """What policies and image records have in common."""
    scalar = {
        "type": ["string", "number", "boolean", "null"],
        "minimum": yaml_document.SMALLEST,
        "maximum": yaml_document.LARGEST,
    }
    value = {"type": "string", "minLength": 1, "maxLength": schema.LONGEST_VALUE}
    values: dict[str, Any] = {"delete": {"const": True}, "default": value, "set": value}
    values[DELETE_EMPTY] = {"const": True}
    config = one_of(
        dict.fromkeys(schema.STRENGTHS, scalar),
        {"yields_to": VARIABLE, "switch": VARIABLE, "insist": {"type": "boolean"}},
    )
    config["dependentSchemas"] = {
        "yields_to": {"required": ["default"]},
        "insist": {"required": ["pin"]},
    }
    variable = one_of(
        {kind: values[kind] for kind in schema.ENV_ACTIONS},
        {key: {"type": "boolean"} for key in schema.ENV_FLAGS},
    )
    plain = [{"required": [kind]} for kind in ("default", DELETE_EMPTY)]
    flag: dict[str, Any] = {"not": {"anyOf": plain}}
    variable["dependentSchemas"] = dict.fromkeys(schema.ENV_FLAGS, flag)
    # Both at once contradict each other.
    true = {"const": True}
    variable["not"] = {
        "properties": dict.fromkeys(schema.ENV_FLAGS, true),
        "required": list(schema.ENV_FLAGS),
    }
    mode, used = ({"enum": list(words)} for words in (compile_modes.MODES, compile_modes.USES))
    settings = {patch: setting(patch) for patch in schema.SETTINGS}
    words = {"type": "string", "maxLength": when.LONGEST}
    conditions: dict[str, Any] = {
        **dict.fromkeys(when.WORDS, texts(words)),
        **dict.fromkeys(when.SETS, texts(SUBJECT)),
        **dict.fromkeys(when.GLOBS, texts({**words, "pattern": r"^[^\[]*$"})),
        **dict.fromkeys(when.RANGES, words),
    }
    accelerator = {"enum": list(when.ACCELERATORS)}
    conditions["accelerator"] = {"anyOf": [accelerator, {"type": "array", "items": accelerator}]}
    issue = {
        "type": "object",
        "properties": {"issue": TEXT, "source": TEXT, "mitigation": TEXT},
        "required": ["issue"],
        "additionalProperties": False,
    }
    return {
        "description": TEXT,
        "when": {"type": "object", "properties": conditions, "additionalProperties": False},
        "env": {
            "type": "object",
            "propertyNames": {**VARIABLE, "not": {"pattern": "^ROCM_AUTOPATCH"}},
            "additionalProperties": alternatives(variable),
        },
        "config": {
            "type": "object",
            "properties": {
                module: {"type": "object", "additionalProperties": alternatives(config)}
                for module in config_patch.TARGETS
            },
            "additionalProperties": False,
        },
        "caches": alternatives(
            # YAML 1.1 reads on and off without quotes as booleans.
            use({"anyOf": [{"enum": [*schema.CACHES, True, False]}, ROOT]})
        ),
        "compile_modes": {
            "type": "object",
            "propertyNames": mode,
            "additionalProperties": alternatives(use(used)),
        },
        "patches": {"type": "object", "properties": settings, "additionalProperties": False},
        "known_issues": {
            "anyOf": [TEXT, {"type": "array", "items": {"anyOf": [TEXT, issue]}}],
        },
    }


def document(title: str, required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"rocm_autopatch {title}",
        "type": "object",
        "properties": {"version": {"const": schema.VERSION}, **properties},
        "required": ["version", *required],
        "additionalProperties": False,
    }


def policy() -> dict[str, Any]:
    """The schema of a policy file."""
    made = document("policy", [], {"name": TEXT, "extends": texts(TEXT), **parts()})
    return policy_keys.described(made)


def images() -> dict[str, Any]:
    """The schema of an images file."""
    setting = {
        "type": "object",
        "properties": {"value": TEXT, "why": TEXT},
        "required": ["value"],
        "additionalProperties": False,
    }
    record = {
        "type": "object",
        "properties": {
            "name": TEXT,
            "image": TEXT,
            "policy": TEXT,
            "sets": {
                "type": "object",
                "propertyNames": VARIABLE,
                "additionalProperties": {"anyOf": [TEXT, setting]},
            },
            **parts(),
        },
        "anyOf": [{"required": ["image"]}, {"required": ["when", "name"]}],
        "additionalProperties": False,
    }
    rows = {"type": "array", "items": record}
    return policy_keys.described(document("images file", ["images"], {"images": rows}))


def evidence() -> dict[str, Any]:
    """The schema of an evidence file. It may have fields that this release does not know."""
    verdict = {"type": ["boolean", "null"]}
    subject = {
        "type": "object",
        "properties": {
            **dict.fromkeys(file.VERDICTS, verdict),
            file.FRESH_STARTS: {"type": "integer", "minimum": 0},
        },
        "required": list(file.VERDICTS),
        # Only what is sound can gain.
        "if": {"properties": {"gains": {"const": True}}},
        "then": {"properties": {"sound": {"const": True}}},
    }
    number = {"type": "number"}
    kinds: dict[type, Any] = {
        str: TEXT,
        int: {"type": "integer"},
        float: number,
        list: {"type": "array", "items": number},
    }
    place = {"type": "object", "additionalProperties": TEXT, "required": list(machine.REQUIRED)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rocm_autopatch evidence file",
        "type": "object",
        "properties": {
            "version": {"const": file.VERSION},
            "made": {"type": "string", "pattern": f"^{file.MADE.pattern}$"},
            "by": TEXT,
            "battery": {"enum": list(file.BATTERIES)},
            "place": place,
            "subjects": {
                "type": "object",
                "properties": {
                    name: {"description": sentence, **subject}
                    for name, sentence in SUBJECTS.items()
                },
                "additionalProperties": subject,
            },
            "trials": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {name: kinds[kind] for name, (kind, _) in file.ROW.items()},
                    "required": [name for name, (_, always) in file.ROW.items() if always],
                },
            },
        },
        "required": list(file.FIELDS),
    }


FILES = {
    "policy.schema.json": policy,
    "images.schema.json": images,
    "evidence.schema.json": evidence,
}

if __name__ == "__main__":
    for name, make in FILES.items():
        Path(sys.argv[1], name).write_text(json.dumps(make(), indent=2) + "\n")
