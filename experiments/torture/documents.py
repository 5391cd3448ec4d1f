"""Damaged policies, images files and evidence files: valid ones with a changed structure."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import yaml

POLICIES = Path(__file__).parent.parent.parent / "policies"
# Nobody can make this directory.
NO_ROOT = "/proc/x"

LONG = "x" * 5000
WORDS: tuple[Any, ...] = (
    *(
        "",
        " ",
        "a",
        "~",
        "null",
        "on",
        "1",
        "0",
        "-1",
        "1e999",
        ".nan",
        ".inf",
        "a\0b",
        "a\nb",
        LONG,
    ),
    *("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202eright", "\u2028", "\ud800", "\U0001f600"),
    *(
        "\x7f",
        "\x9b31m",
        "a=b",
        "=",
        "../../etc/passwd",
        "/",
        ".",
        "%s%n",
        "{}",
        "${HOME}",
        "\ufeff",
    ),
    *("safe", "performance", "debug", "images", "rocm", "2.13", ">=2.4", "<", ">=2.4,<2.3", "===x"),
    *(0, 1, -1, 2**31, 2**63, 10**40, 1.5, 1e308, float("inf"), float("nan"), True, False, None),
    *([], {}, [[]], [None], {"": ""}, {None: None}, {1: 2}, b"bytes", (1, 2)),
)
KEYS = (
    *("version", "name", "description", "extends", "when", "env", "config", "compile_modes"),
    *("patches", "known_issues", "images", "image", "policy", "sets", "default", "set", "pin"),
    *("delete", "use", "why", "since", "until", "insist", "switch", "yields_to", "warn_after"),
    *("torch._inductor.config", "torch._dynamo.config", "max_autotune", "watchdog", "capture"),
    *("TORCHINDUCTOR_MAX_AUTOTUNE", "A", "A B", "PYTHONPATH", "LD_PRELOAD", "ROCM_AUTOPATCH"),
    *("accelerator", "torch", "framework", "gfx", "python", "os", "date", "verison", "<<"),
    *("proven", "gains", "no_trial", "made", "place", "subjects", "trials", "sound", "device"),
)
# YAML that has no structure to change: it is inserted as text.
TEXTS = (
    *(
        "&a ",
        "*a",
        "<<: *a\n",
        "!!python/object/apply:os.system ['true'] ",
        '!!int ""',
        "!!bool foo",
    ),
    *(
        "!!timestamp foo",
        "!!float x",
        "!!binary ####",
        "!!set {a}",
        "!!omap [a]",
        "!unknown x",
        "? ",
    ),
    *(
        "---\n",
        "...\n",
        "%YAML 9.9\n---\n",
        "%TAG ! tag:x,2000:\n",
        "\t",
        "\r",
        "\0",
        "\ufeff",
        "|\n",
    ),
    *(
        ">\n  folded\n",
        "'",
        '"',
        '"\\',
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "#",
        "\u0085",
        "1:10:10:10",
    ),
    *("2026-99-99", "0o7", "0x", "1_000", "!!str", "!", "&a *a", "[" * 60, "{a: " * 60, "\x1b[2J"),
)


def policy(random: Random, directory: Path) -> bytes:
    """A damaged policy; what it extends may be written to *directory*."""
    roll = random.random()
    if roll < 0.02:
        return _heavy(random)
    if roll < 0.05:
        return _tower(random, directory)
    names = ("safe", "debug", "performance", "capture-guard", "no-hipblaslt", "sglang-compile")
    document: Any = _load(random.choice(names))
    if random.random() < 0.5:
        document = _small(random)
    return _damaged(random, document)


def images(random: Random) -> bytes:
    """A damaged images file."""
    return _damaged(random, _load("images"))


def evidence(random: Random) -> bytes:
    """A damaged evidence file. Half of all are for the machine and the torch of the starts."""
    sound = random.choice((True, True, False, None))
    subject = {"sound": sound, "gains": bool(sound)}
    names = ("graphs", "cudagraphs", "max-autotune", "gemm-templates", "freezing", "\x1b[1m")
    row = {"trial": "mlp", "subject": "graphs", "start": "cold", "status": "ended", "wave": 1}
    document: Any = {
        "version": 1,
        "made": random.choice(("2026-11-22T18:40:00Z", "2026-11-21T00:00:00Z")),
        "by": "1.0",
        "battery": random.choice(("full", "quick", "partial")),
        "place": {
            "device": random.choice(("no GPU", "no GPU", "gfx942 0x74a1 304 CUs", LONG)),
            "driver": "none",
            "torch": "2.13.0+rocm7.0",
            "triton": random.choice(("none", "none", "3.6.0")),
        },
        "subjects": dict.fromkeys(random.sample(names, random.randrange(7)), subject),
        "trials": [row] * random.choice((0, 1, 30)),
    }
    for _ in range(random.choice((0, 0, 1, 2, 8))):
        document = _change(random, document)
    try:
        data = json.dumps(document, default=str).encode()
    except (TypeError, ValueError):
        data = repr(document).encode("utf-8", "surrogatepass")  # JSON has no such keys.
    at = random.randrange(len(data) + 1)
    roll = random.random()
    if roll < 0.1:
        return data[:at]
    if roll < 0.2:
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at + 2 :]
    if roll < 0.23:
        return random.choice((b"[" * 100_000, b"9" * 10_000, b'{"version": ' * 2000))
    return data


def _load(name: str) -> Any:
    return yaml.safe_load((POLICIES / f"{name}.yaml").read_text(encoding="utf-8"))


def _small(random: Random) -> Any:
    action = random.choice(({"set": "1"}, {"default": "x"}, {"delete": True}))
    return {
        "version": 1,
        "name": "small",
        "extends": random.choice(([], "safe", ["safe"], ["debug", "capture-guard"])),
        "env": {"FIRST": {"set": "1"}, "GIVEN": dict(action), "LAST": {"default": "2"}},
        "config": {"torch._inductor.config": {"max_autotune": {"pin": False}}},
        "patches": {"watchdog": {"warn_after": 5}},
        "caches": random.choice(("on", False, {"use": "on", "proven": "graphs"}, NO_ROOT)),
        "compile_modes": {
            "reduce-overhead": [
                {"use": "default"},
                {"use": "graphs", random.choice(("proven", "gains")): "graphs"},
            ]
        },
    }


def _damaged(random: Random, document: Any) -> bytes:
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
        document = _change(random, document)
    text = _dump(random, document)
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice(TEXTS) + text[at + random.choice((0, 0, 1, 20)) :]
    data = text.encode("utf-8", "surrogatepass")
    roll = random.random()
    if roll < 0.05:
        return data[: random.randrange(len(data) + 1)]
    if roll < 0.08:
        return text.encode(random.choice(("utf-16", "utf-32", "latin-1")), "replace")
    if roll < 0.10:
        return data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b" ")))
    if roll < 0.15:
        at = random.randrange(len(data) + 1)
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[at + 2 :]
    return data


def _dump(random: Random, document: Any) -> str:
    flow = random.choice((None, False, True))
    try:
        return yaml.safe_dump(
            document, sort_keys=False, allow_unicode=True, width=1 << 20, default_flow_style=flow
        )
    except Exception:
        # YAML can't express a tuple or half of a surrogate pair, but Python's own form can.
        return repr(document)


def _spots(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Each place in a document, as its container and its key."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(pairs):
        found.append((node, key))
        if isinstance(value, (dict, list)):
            _spots(value, found)
    return found


def _change(random: Random, document: Any) -> Any:
    """A document with one change of its structure."""
    document = copy.deepcopy(document)
    if not isinstance(document, (dict, list)):
        return document
    spots = _spots(document, [])
    if not spots:
        return random.choice(WORDS)
    node, key = random.choice(spots)
    value = node[key]
    other = copy.deepcopy(random.choice(spots))
    what = random.randrange(11)
    if what == 0:
        del node[key]
    elif what == 1:
        node[key] = random.choice(WORDS)
    elif what == 2:
        node[key] = other[0][other[1]]
    elif what == 3:
        node[key] = [value] * random.choice((1, 2, 300))
    elif what == 4:
        node[key] = {random.choice(KEYS): value}
    elif what == 5 and isinstance(node, dict):
        del node[key]
        node[_hashable(random.choice((random.choice(KEYS), random.choice(WORDS))))] = value
    elif what == 6 and isinstance(node, dict):
        node[_hashable(random.choice(KEYS))] = random.choice((random.choice(WORDS), value))
    elif what == 7 and isinstance(key, str):
        # Nearly right: a typing error.
        del node[key]
        at = random.randrange(len(key) + 1)
        node[key[:at] + random.choice(("", "_", "x", " ", "\u0430", "\x1b[1m")) + key[at + 1 :]] = (
            value
        )
    elif what == 8:
        for _ in range(random.choice((5, 30, 90))):
            value = [value] if random.random() < 0.5 else {"a": value}
        node[key] = value
    elif what == 9 and isinstance(node, dict):
        for number in range(random.choice((10, 200))):
            node[f"{random.choice(KEYS)}{number}"] = value
    elif what == 10:
        return random.choice(([document], {"policy": document}, [document, document], value))
    return document


def _hashable(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bytes, type(None))) else str(key)


def _heavy(random: Random) -> bytes:
    """A policy of the largest allowed size, as expensive to read as possible."""
    many = range(random.choice((1000, 3000, 10000)))
    return random.choice(
        (
            lambda: "version: 1\nenv:\n" + "".join(f"  V{n}: {{set: '{n}'}}\n" for n in many),
            lambda: "version: 1\n" + "".join(f"unknwon{n}: 1\n" for n in many),
            lambda: "version: 1\nenv: {A: {set: 1" + ":10" * len(many) + "}}\n",
            lambda: "version: 1\nenv: {A: {set: 1" + ":10" * len(many) + ".5}}\n",
            lambda: "version: 1\nenv: {A: {set: 1" + "0" * len(many) * 3 + "}}\n",
            lambda: "version: 1\nwhen: {torch: '" + ">=2.4," * len(many) + "'}\n",
            lambda: "version: 1\nextends: [" + "safe, " * len(many) + "]\n",
            lambda: (
                "a: &a [x]\n"
                + "".join(f"{'b' * (n + 1)}: &{'b' * (n + 1)} [*a, *a]\n" for n in range(50))
            ),
            lambda: (
                "a: &a0 [x]\n"
                + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
            ),
            lambda: "version: 1\nenv:\n" + "  A: {set: '1'}\n" * len(many),
            lambda: "#" * 60 * len(many),
            lambda: "version: 1\ndescription: '" + "''" * len(many) * 3 + "'\n",
            lambda: (
                "version: 1\nconfig:\n  torch._inductor.config:\n"
                + "".join(f"    max_autotun{n}: {{pin: false}}\n" for n in many)
            ),
        )
    )().encode()


def _tower(random: Random, directory: Path) -> bytes:
    """A policy that extends others that extend others."""
    count = random.choice((1, 2, 50, 400))
    for number in range(count):
        above = f"p{number + 1}.yaml" if number + 1 < count else random.choice(("p0.yaml", "safe"))
        text = f"version: 1\nextends: ./{above}\nenv: {{V{number}: {{set: '1'}}}}\n"
        (directory / f"p{number}.yaml").write_text(text)
    base = random.choice(("./p0.yaml", "./policy.yaml", ".", "./absent.yaml", "/", "./p0.yaml\\0"))
    return f'version: 1\nextends: ["{base}"]\nenv: {{TOP: {{set: "1"}}}}\n'.encode()
