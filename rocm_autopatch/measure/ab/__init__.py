"""Measure the effect of a switch on a program: the parts of ``rocm-autopatch ab``."""

from __future__ import annotations

from rocm_autopatch.support.user_error import UserError


class WrongRequest(UserError):
    """The request can't be right on any machine. The text says why."""

    usual_status = 2


class RequestRefused(UserError):
    """The request can't be measured here. The text says why."""
