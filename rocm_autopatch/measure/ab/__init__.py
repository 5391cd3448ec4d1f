"""Measure the effect of a switch on a program: the parts of ``rocm-autopatch ab``."""

from __future__ import annotations


class WrongRequest(Exception):
    """The request can't be right on any machine. The text says why."""


class RequestRefused(Exception):
    """The request can't be measured here. The text says why."""
