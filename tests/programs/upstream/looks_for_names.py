"""Tests that look themselves for names which this torch lacks."""

import pytest
import torch

try:
    from torch import gone
except ImportError:
    gone = None


def test_import():
    assert gone is None


def test_has():
    assert not hasattr(torch, "other") or torch.other()


def test_get():
    assert getattr(torch, "third", 3) == 3


def test_tried():
    try:
        torch.fourth
    except (AttributeError, KeyError):
        return
    raise RuntimeError


def test_expected():
    with pytest.raises(AttributeError, match="fifth"):
        torch.fifth
    pytest.raises((KeyError, AttributeError), lambda: torch.fifth)


def test_other():
    with pytest.raises(KeyError):
        torch.sixth
