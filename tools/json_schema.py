"""Make the JSON Schemas in docs/, of policies, images files and evidence files: editors complete
and check by them.

    python tools/json_schema.py docs

Those of policies and images files derive from the reader's own table (policy/grammar.py), and
tests/test_json_schema.py compares them with the reader. They can't express everything, such as
conflicting pins of two layers or a ``since`` after its ``until``: ``rocm-autopatch check`` reports
those.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.evidence import SUBJECTS, file, machine
from rocm_autopatch.policy import grammar
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.value_types import FieldMapping, JsonSchema, SchemaDefinitions

_FORM = "https://json-schema.org/draft/2020-12/schema"
_COLUMNS = 100
_TEXT: JsonSchema = {"type": "string"}


def _grammar_schema(title: str, keys: FieldMapping[Policy | tuple[Policy, ...]]) -> JsonSchema:
    """The schema of a file of the grammar: what stands in it more than once is in ``$defs``."""
    definitions = SchemaDefinitions()
    made = definitions.schema_of(keys)
    head = {"$schema": _FORM, "title": f"rocm_autopatch {title}"}
    return {**head, **made, "$defs": definitions.made}


def policy_schema() -> JsonSchema:
    """The schema of a policy file."""
    return _grammar_schema("policy", grammar.POLICY_FILE)


def images_schema() -> JsonSchema:
    """The schema of an images file."""
    return _grammar_schema("images file", grammar.IMAGES_FILE)


def evidence_schema() -> JsonSchema:
    """The schema of an evidence file. It may have fields that this release does not know."""
    verdict: JsonSchema = {"type": ["boolean", "null"]}
    subject: JsonSchema = {
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
    number: JsonSchema = {"type": "number"}
    kinds: dict[type, JsonSchema] = {
        str: _TEXT,
        int: {"type": "integer"},
        float: number,
        list: {"type": "array", "items": number},
    }
    place: JsonSchema = {
        "type": "object",
        "additionalProperties": _TEXT,
        "required": list(machine.REQUIRED),
    }
    return {
        "$schema": _FORM,
        "title": "rocm_autopatch evidence file",
        "type": "object",
        "properties": {
            "version": {"const": file.VERSION},
            "made": {"type": "string", "pattern": f"^{file.MADE.pattern}$"},
            "by": _TEXT,
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
    "policy.schema.json": policy_schema,
    "images.schema.json": images_schema,
    "evidence.schema.json": evidence_schema,
}


def schema_text(made: JsonSchema) -> str:
    """A JSON Schema as a file has it: what fits in a line stands in one."""
    return "\n".join(_json_lines(made, "")) + "\n"


def _json_lines(value: object, before: str, room: int = _COLUMNS) -> Iterator[str]:
    short = json.dumps(value)
    if len(before) + len(short) <= room or not (value and isinstance(value, (dict, list))):
        yield before + short
        return
    if isinstance(value, dict):
        inside = [(f"{json.dumps(name)}: ", inner) for name, inner in value.items()]
    else:
        inside = [("", inner) for inner in value]
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    yield before + opens
    for number, (name, inner) in enumerate(inside, 1):
        *lines, last = _json_lines(inner, name, room - 2)
        yield from (f"  {line}" for line in lines)
        yield f"  {last}{',' if number < len(inside) else ''}"
    yield closes


if __name__ == "__main__":
    for name, make in FILES.items():
        Path(sys.argv[1], name).write_text(schema_text(make()))
