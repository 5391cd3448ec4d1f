"""Documents as large as a policy may be, each of the shape that some reader is slowest with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocm_autopatch.policy import document
from tests.names import INDUCTOR

# Every limit is reached by one of them: bytes by long scalars, values by short ones.
BYTES, VALUES = document.MAX_BYTES, document.MAX_VALUES


def _fill(part: str, room: int, head: str = "", tail: str = "") -> str:
    """*head*, *part* as often as there is room for it, *tail*."""
    return head + part * ((room - len(head) - len(tail)) // len(part)) + tail


def _lines(line: str, count: int, room: int, head: str = "version: 1\n") -> str:
    """*head*, and *count* lines with a number each, as far as there is room."""
    lines = [head]
    left = room - len(head)
    for number in range(count):
        made = line.format(number, number // 100, number % 100) + "\n"
        left -= len(made.encode())
        if left < 0:
            break
        lines.append(made)
    return "".join(lines)


# Shape -> a document of about so many bytes and values.
POLICIES: dict[str, Callable[[int, int], str]] = {
    "variables": lambda size, count: _lines(
        "  V{}: {{set: a}}", count // 4 - 4, size, "version: 1\nenv:\n"
    ),
    "variables with all fields": lambda size, count: _lines(
        "  V{}: {{default: a, since: '2.6', until: '2.9', why: w}}",
        count // 10 - 4,
        size,
        "version: 1\nenv:\n",
    ),
    "pins": lambda size, count: _lines(
        "    k{}: {{pin: 1}}", count // 4 - 4, size, f"version: 1\nconfig:\n  {INDUCTOR}:\n"
    ),
    "pins of a wrong type": lambda size, count: _lines(
        "    max_autotune{}: {{pin: [], yields_to: 1}}",
        count // 6 - 4,
        size,
        f"version: 1\nconfig:\n  {INDUCTOR}:\n",
    ),
    "unknown keys": lambda size, count: _lines("descriptio{}: 1", count // 2 - 4, size),
    "unknown fields": lambda size, count: _lines(
        "  V{}: {{dlete{}: 1}}", count // 4 - 4, size, "version: 1\nenv:\n"
    ),
    "unknown modules": lambda size, count: _lines(
        "  torch._inductor.confi{}: 1", count // 2 - 4, size, "version: 1\nconfig:\n"
    ),
    "unknown modes": lambda size, count: _lines(
        "  max-autotun{}: max-autotun{}", count // 2 - 4, size, "version: 1\ncompile_modes:\n"
    ),
    "unknown bases": lambda size, count: _lines(
        "  - saf{}", count - 8, size, "version: 1\nextends:\n"
    ),
    "missing files": lambda size, count: _lines(
        "  - ./saf{}.yaml", count - 4, size, "version: 1\nextends:\n"
    ),
    "one base often": lambda size, count: _lines(
        "  - safe", count - 8, size, "version: 1\nextends:\n"
    ),
    "a long path": lambda size, count: _fill("a/", size, "version: 1\nextends: ", "b.yaml\n"),
    "unknown mitigations": lambda size, count: _lines(
        "  - {{issue: a, mitigation: sa{}}}", count // 5 - 4, size, "version: 1\nknown_issues:\n"
    ),
    "long unknown key": lambda size, count: _fill("envv", size, "version: 1\n? ", "\n: 1\n"),
    "long unknown word": lambda size, count: _fill(
        "guardg", size, "version: 1\npatches: {capture: ", "}\n"
    ),
    "long value": lambda size, count: _fill("a", size, "version: 1\nenv: {A: {set: ", "}}\n"),
    "long why": lambda size, count: _fill(
        "a ", size, "version: 1\nenv: {A: {set: a, why: ", "}}\n"
    ),
    "long key, many fields": lambda size, count: _lines(
        "    f{}: 1", count // 2 - 4, size, f"version: 1\nenv:\n  {'A' * 1000}:\n"
    ),
    "sexagesimal": lambda size, count: _fill(":10", size, "version: 1\nenv: {A: {set: 1", "}}\n"),
    "sexagesimal fraction": lambda size, count: _fill(
        ":10", size, "version: 1\nenv: {A: {set: 1", ".5}}\n"
    ),
    "digits": lambda size, count: _fill("9", size, "version: 1\nenv: {A: {set: ", "}}\n"),
    "decimals": lambda size, count: _fill("9", size, "version: 1\nenv: {A: {set: 1.", "}}\n"),
    "exponent": lambda size, count: _fill("9", size, "version: 1\nenv: {A: {set: 1.0e+", "}}\n"),
    "binary": lambda size, count: _fill("1", size, "version: 1\nenv: {A: {set: 0b", "}}\n"),
    "underscores": lambda size, count: _fill("_", size, "version: 1\nenv: {A: {set: 1", "}}\n"),
    "a long release": lambda size, count: _fill(
        "9", size, "version: 1\nenv: {A: {set: a, since: '", "'}}\n"
    ),
    "a release of many parts": lambda size, count: _fill(
        ".9", size, "version: 1\nenv: {A: {set: a, since: '2", "'}}\n"
    ),
    "a range of many parts": lambda size, count: _fill(
        ">1,", size, "version: 1\nwhen: {torch: '", ">1'}\n"
    ),
    "a range of many digits": lambda size, count: _fill(
        "9", size, "version: 1\nwhen: {torch: '>", "'}\n"
    ),
    "a pattern of many stars": lambda size, count: _fill(
        "*a", size, "version: 1\nwhen: {tag: '", "'}\n"
    ),
    "many patterns": lambda size, count: _lines(
        "    - '*a?{}*'", count - 8, size, "version: 1\nwhen:\n  tag:\n"
    ),
    "long patterns": lambda size, count: _lines(
        "    - '" + "*a?" * 70 + "{}'", count - 8, size, "version: 1\nwhen:\n  tag:\n"
    ),
    "gpus": lambda size, count: _lines(
        "    - gfx{}", count - 8, size, "version: 1\nwhen:\n  gfx:\n"
    ),
    "accelerators": lambda size, count: _lines(
        "    - roc{}", count - 8, size, "version: 1\nwhen:\n  accelerator:\n"
    ),
    "deep": lambda size, count: "[" * size,
    "deep blocks": lambda size, count: "- " * (size // 2),
    "as deep as allowed": lambda size, count: "[" * 30 + "1," * (count - 50) + "]" * 30,
    "wide and deep": lambda size, count: _fill(
        "[" * 20 + "]" * 20 + ",", min(size, 2 * count), "[", "]"
    ),
    "pairs": lambda size, count: _fill("a:,", min(size, count), "[", "]"),
    "values of nothing": lambda size, count: _fill("? ,", min(size, count), "[", "]"),
    "too many values": lambda size, count: _fill("a:,", size, "[", "]"),
    "too many items": lambda size, count: _fill("- 1\n", size),
    "plain text": lambda size, count: _fill("a ", size),
    "lines of plain text": lambda size, count: _fill("a\n", size),
    "quoted text": lambda size, count: _fill("a ", size, '"', '"'),
    "lines of quoted text": lambda size, count: _fill("a\n", size, '"', '"'),
    "escapes": lambda size, count: _fill("\\x41", size, '"', '"'),
    "surrogates": lambda size, count: _fill('"\\ud800",', min(size, 9 * count), "[", "]"),
    "block text": lambda size, count: _fill(" x\n", size, "|\n"),
    "folded text": lambda size, count: _fill(" x\n", size, ">\n"),
    "comments": lambda size, count: _fill("#\n", size),
    "blank lines": lambda size, count: _fill("\n", size),
    "directives": lambda size, count: _fill("%A\n", size, "", "--- 1"),
    "tag directives": lambda size, count: _lines("%TAG !{}! a", size, size - 8, "") + "--- 1\n",
    "tags": lambda size, count: _fill("!!int 1,", min(size, 7 * count), "[", "]"),
    "unknown tags": lambda size, count: _fill("!a a,", min(size, 5 * count), "[", "]"),
    "anchors": lambda size, count: _lines("- &a{} 1", count - 8, size, ""),
    "aliases": lambda size, count: _fill("*a,", min(size, 3 * count), "[&a 1,", "]"),
    "merge keys": lambda size, count: _fill("<<: {},", min(size, 3 * count), "{", "}"),
    "duplicate keys": lambda size, count: _lines("version: 1", count // 2 - 4, size),
    "documents": lambda size, count: _fill("--- 1\n", size),
    "control characters": lambda size, count: _fill('"\\e\\r": 1,', min(size, 4 * count), "{", "}"),
    "no key": lambda size, count: _fill("? [a] : b,", min(size, 3 * count), "{", "}"),
}


def _image_rows(row: str, values: int) -> Callable[[int, int], str]:
    return lambda size, count: _lines(row, (count - 8) // values, size, "version: 1\nimages:\n")


IMAGES: dict[str, Callable[[int, int], str]] = {
    "images": _image_rows("- image: a:{}", 3),
    "images with a base": _image_rows("- {{image: a:{}, policy: performance}}", 5),
    "images with unknown bases": _image_rows("- {{image: a:{}, policy: sa{}}}", 5),
    "images with a pin": _image_rows(
        "- {{image: a:{}, config: {{" + INDUCTOR + ": {{triton.cudagraphs: {{pin: true}}}}}}}}", 11
    ),
    "records with ranges": _image_rows("- {{name: a{}, when: {{torch: '>=2.{}.{}'}}}}", 7),
    "records with wide ranges": _image_rows(
        "- {{name: a{}, when: {{torch: '>=1.{},<3.{}," + ">=1," * 50 + "<4'}}}}", 7
    ),
    "records with patterns": _image_rows("- {{name: a{}, when: {{tag: '*a?{}*b?*'}}}}", 7),
    "records that hold": _image_rows(
        "- {{name: a{}, when: {{accelerator: rocm}}, env: {{V{}: {{set: a}}}}}}", 13
    ),
    "records that pin for torches of their own": _image_rows(
        "- {{name: a{0}, when: {{accelerator: rocm}}, config: {{"
        + INDUCTOR
        + ": {{kk: {{pin: {0}, since: '2.{0}.0', until: '2.{0}.1'}}}}}}}}",
        17,
    ),
}


def shapes() -> Iterator[tuple[str, Callable[[int, int], str]]]:
    """Name of the file and what is in it."""
    for shape in POLICIES.values():
        yield "policy.yaml", shape
    for shape in IMAGES.values():
        yield "images.yaml", shape
