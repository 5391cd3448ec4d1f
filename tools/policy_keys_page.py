"""Make docs/policy-keys.md from the grammar of policies and images files (policy/grammar.py).

python tools/policy_keys_page.py > docs/policy-keys.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.patches import compile_modes, config
from rocm_autopatch.policy import grammar
from rocm_autopatch.policy.value_types import MappingKey

HEAD = """\
# Policy keys

After this page you can write each key of a [policy](policies.md), which has an example to start
from. In brackets: the value. Names in capitals stand for others:

- `VARIABLE`: an environment variable, but none whose name begins with `ROCM_AUTOPATCH`
- `MODULE`: {modules}
- `KEY`: a key of that module, as it is written there
- `MODE`: {modes}"""
ANY = "What every entry may carry"
COMMON = f"""\
## {ANY}
The entries of `env`, `config`, `compile_modes`, `patches` and `caches` may have these. A list of
entries, [alternatives](policies.md#evidence-and-alternatives), may stand where one does."""
IMAGES = """\
## In `images.yaml`
A record has the keys of a policy but `extends`, and these. It needs `image`, or `when` and
`name`. [Image records](policies.md#image-records) shows some."""


def page() -> Iterator[str]:
    """The lines of the page."""
    names = {
        "modules": _words(config.TARGETS),
        "modes": _words(compile_modes.MODES),
    }
    yield from HEAD.format(**names).splitlines()
    for path, keys in grammar.POLICY_FILE.key_tables(""):
        # It would say the same for each patch.
        if path.startswith("patches.") and grammar.USE.name in (key.name for key in keys):
            continue
        own = [key for key in keys if key not in grammar.COMMON_KEYS]
        yield from ("", f"## `{path}`" if path else "## The file", "", *_list(own))
    yield from ("", *COMMON.splitlines(), "", *_list(grammar.COMMON_KEYS))
    yield from ("", *IMAGES.splitlines())
    known = {key.name for key in grammar.POLICY_FILE.keys}
    own = [key for key in grammar.RECORD.keys if key.name not in known]
    yield from ("", *_list(own))
    for key in own:
        for path, keys in key.type.key_tables(key.name):
            yield from ("", f"### `{path}`", "", *_list(keys))


def _list(keys: Iterable[MappingKey[object]]) -> Iterator[str]:
    for key in keys:
        yield f"- `{key.name}` ({said_value(key)}): {key.sentence}"


def said_value(key: MappingKey[object]) -> str:
    """What a key may have, in words."""
    found = list(dict.fromkeys(key.type.said_values()))
    return ", ".join(found[:-1]) + " or " + found[-1] if len(found) > 1 else found[0]


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    print("\n".join(page()))
