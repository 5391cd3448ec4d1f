"""What arguments are: one meaning for each kind of value, in every command that takes it.

Each function reads a text as a user writes it, and raises ``argparse.ArgumentTypeError`` with what
is wrong.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rocm_autopatch.cli.near_words import did_you_mean
from rocm_autopatch.startup import assume

# What a value is called in a usage line. A shell completes by these, too (tools/completions.py).
DURATION, SIZE, PERCENT, COUNT = "TIME", "SIZE", "PERCENT", "N"
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?|{_NUMBER}")
_DURATION_UNITS_S = (3600, 60, 1, 1)
_LONGEST_S = 1e8
SIZE_UNITS = "KMGT"
_SIZE = re.compile(rf"{_NUMBER}([{SIZE_UNITS}]?)B?")
_CHECKSUM = re.compile(r"sha256:([0-9a-f]{64})")


def parse_duration(text: str) -> float:
    """Seconds, of ``30m``, ``2h``, ``6m30s``, ``90s`` or ``90``."""
    found = _DURATION.fullmatch(text)
    parts = zip(_DURATION_UNITS_S, found.groups()) if found else ()
    seconds = sum(unit * float(part) for unit, part in parts if part)
    if not 0 < seconds < _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 30m, 2h, 6m30s or 90s")
    return seconds


def parse_size(text: str) -> int:
    """Bytes, of ``1024``, ``500M`` or ``10G``: K is 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes, 500M or 10G")
    return int(float(match[1]) * 1024 ** (SIZE_UNITS.find(match[2]) + 1 if match[2] else 0))


def parse_path(text: str) -> Path:
    """A path. An empty text would mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, and a path is needed")
    return Path(text)


def parse_percent(text: str) -> float:
    """A part of 1, of ``5``, ``5%`` or ``0.5%``."""
    number = _parse_number(text[:-1] if text.endswith("%") else text)
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100")
    return number / 100


def parse_part(text: str) -> float:
    """A number from 0 to 1, without 1."""
    number = _parse_number(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def count_of(least: int, most: int | None = None) -> Callable[[str], int]:
    """What reads a whole number from *least* to *most*."""

    def read_count(text: str) -> int:
        right = text.isascii() and text.isdecimal() and int(text) >= least
        if not right or (most is not None and int(text) > most):
            known = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {known}")
        return int(text)

    return read_count


def parse_image(text: str) -> str:
    """A reference of an image, such as ``rocm/pytorch:latest``."""
    from rocm_autopatch.image import reference

    try:
        reference.parse_reference(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def parse_assumption(text: str) -> str:
    """``NAME=VALUE`` of a fact."""
    name, equals, _ = text.partition("=")
    if name == "image":
        raise argparse.ArgumentTypeError("the image is named by --image REF")
    if not equals or name not in assume.FACTS:
        names = ", ".join(assume.FACTS)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE, where NAME is one of {names}"
            f"{did_you_mean(name, assume.FACTS) if equals else ''}"
        )
    return text


def parse_checksum(text: str) -> str:
    """The hex digits of ``sha256:HEX``."""
    match = _CHECKSUM.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not sha256: and 64 hex digits")
    return match[1]


def parse_entry(text: str) -> str:
    """The name of an entry of a policy: any text. A shell completes those that the grammar of
    policies knows."""
    return text


def parse_variable(text: str) -> str:
    """The name of a variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def parse_module(text: str) -> str:
    """The name of a module."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a module")
    return text


def parse_pid(text: str) -> int:
    """The number of a process."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a process")
    return int(text)


def parse_words(text: str) -> tuple[str, ...]:
    """A command in one argument, as a shell splits it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("the command is empty")
    return tuple(words)


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def names_among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """What reads names with commas between them, each of which is one of *known*."""

    def read_names(text: str) -> tuple[str, ...]:
        words = parse_names(text)
        if not words or not set(words) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r} is not {', '.join(known)} or several")
        return tuple(word for word in known if word in words)

    return read_names
