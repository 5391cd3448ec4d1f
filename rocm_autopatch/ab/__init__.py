"""Measuring what a switch does to a program: the parts of ``rocm-autopatch ab``."""

from __future__ import annotations


class Wrong(Exception):
    """What was asked for makes no sense anywhere; the text says why."""


class Refused(Exception):
    """What was asked for can't be measured here; the text says why."""
