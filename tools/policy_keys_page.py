"""Make docs/policy-keys.md from the JSON Schemas of policies and images files.

python tools/policy_keys_page.py > docs/policy-keys.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.patches import compile_modes, config
from tools import json_schema, policy_keys

HEAD = """\
# Policy keys

Made from the [JSON Schemas](policies.md#in-an-editor) by `make docs`; a test fails when it is
stale. [Policies](policies.md) explains how keys work together, and has an example to start from.
Names in capitals stand for others:

- `VARIABLE`: an environment variable, but none whose name begins with `ROCM_AUTOPATCH`
- `MODULE`: {modules}
- `KEY`: a key of that module, as it is written there
- `MODE`: {modes}"""
# The heading of each section, and what stands below it.
ANY = "What every entry may carry"
ENTRY = (
    f"And [what every entry may carry](#{ANY.lower().replace(' ', '-')}). A list of entries, "
    "[alternatives](policies.md#evidence-and-alternatives), may stand where one does."
)
COMMON = f"""\
## {ANY}
The entries of `env`, `config`, `compile_modes`, `patches` and `caches` may have these."""
IMAGES = """\
## In `images.yaml`
A record has the keys of a policy but `extends`, and these. It needs `image`, or `when` and
`name`. [Image records](policies.md#image-records) shows some."""
HEADER = "| key | value | meaning |\n|---|---|---|"


def page() -> Iterator[str]:
    """The lines of the page."""
    names = {
        "modules": _words(config.TARGETS),
        "modes": _words(compile_modes.MODES),
    }
    yield from HEAD.format(**names).splitlines()
    policy = sections(json_schema.policy())
    common: dict[str, dict[str, Any]] = {}
    for path, keys in policy.items():
        own = dict(keys)
        entry = set(json_schema.COMMON) <= set(keys)
        if entry:
            common = {key: own.pop(key) for key in json_schema.COMMON}
        # These would say the same for each patch, and of each module that it is one.
        if (set(own) == {"use"} and path.startswith("patches.")) or set(own) == {"MODULE"}:
            continue
        yield ""
        yield f"## `{path}`" if path else "## The file"
        yield from ("", *_table(own))
        if entry:
            yield from ("", ENTRY)
    yield from ("", *COMMON.splitlines(), "", *_table(common))
    yield from ("", *IMAGES.splitlines())
    for path, keys in sections(json_schema.images()).items():
        inside = path.removeprefix("images").removeprefix(".")
        own = {key: schema for key, schema in keys.items() if key not in policy.get(inside, ())}
        if path and own:
            yield from ("", *([f"### `{inside}`", ""] if inside else []), *_table(own))


def sections(schema: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The keys of a schema by the path above them, each once, in the order of the schema."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path, key, inner in policy_keys.walk(schema):
        found.setdefault(path, {}).setdefault(key, inner)
    return found


def _table(keys: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield from HEADER.splitlines()
    for key, schema in keys.items():
        text = _escaped(schema["description"])
        yield f"| `{key}` | {_escaped(value(schema))} | {text} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def value(schema: dict[str, Any]) -> str:
    """What a key may have, in words."""
    found = list(dict.fromkeys(_values(schema)))
    return ", ".join(found[:-1]) + " or " + found[-1] if len(found) > 1 else found[0]


def _values(schema: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in schema and "type" not in schema:
        for part in schema["anyOf"]:
            yield from _values(part)
    elif "const" in schema:
        yield _word(schema["const"])
    elif schema == json_schema.SUBJECT:
        yield "a [subject](evidence.md#the-format)"
    elif "enum" in schema:
        # true and false are how YAML 1.1 reads on and off, which stand beside them.
        words = [word for word in schema["enum"] if not isinstance(word, bool)]
        yield from (_word(word) for word in words)
    elif isinstance(schema["type"], list):
        yield "a text, a number, `true`, `false` or `null`"
    else:
        yield _TYPES[schema["type"]](schema)


def _word(word: Any) -> str:
    return f"`{word}`" if isinstance(word, str) else f"`{str(word).lower()}`"


def _words(words: Iterable[str]) -> str:
    return ", ".join(_word(word) for word in words)


def _text(schema: dict[str, Any]) -> str:
    return _PATTERNS.get(schema.get("pattern", ""), "a text")


_TYPES: dict[str, Any] = {
    "string": _text,
    "boolean": lambda schema: "`true` or `false`",
    "null": lambda schema: "`null`",
    "number": lambda schema: "seconds" if schema["exclusiveMinimum"] == 0 else "a number",
    "array": lambda schema: "a list of these",
    "object": lambda schema: "a mapping",
}
_PATTERNS = {
    json_schema.VARIABLE["pattern"]: "a variable's name",
    json_schema.ROOT["pattern"]: "an absolute path",
    json_schema.COMMON["since"]["pattern"]: 'a version such as `"2.6"`',
}


if __name__ == "__main__":
    print("\n".join(page()))
