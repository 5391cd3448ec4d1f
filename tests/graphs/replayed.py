"""A test of graphs in which none is replayed shows nothing of them, and must not pass unnoticed.

A module of tests takes the fixture: ``replaying = replayed.replaying``. It needs no conftest.py,
because these tests also run without one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import stand_in
import torch

from rocm_autopatch.graphs import record, soundness


def nothing(reason: str) -> pytest.MarkDecorator:
    """A mark for a test that replays nothing, and why that is so."""
    return pytest.mark.replays_nothing(reason)


@pytest.fixture(autouse=True)
def replaying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that replayed nothing, or that replayed in spite of its mark."""
    stand_in.between_tests()
    rows: list[record.CallableRow] = []
    # A record of its own: the process's is full after some number of callables.
    monkeypatch.setattr(record, "_rows", rows)
    # A wrong replay of another test ended all graphs of the process.
    monkeypatch.setattr(soundness, "distrusted", [])
    node: Any = request.node
    test, mark = node.obj, node.get_closest_marker("replays_nothing")

    def checked(**given: Any) -> None:
        test(**given)
        replays = sum(record.finished_row(row)["replays"] for row in rows)
        if mark is None:
            assert replays, "no graph was replayed; if none should be, mark it: replayed.nothing"
        else:
            assert not replays, f"it replays, and is marked: {', '.join(mark.args)}"

    # Not at the teardown: a test that fails or is skipped halfway says so itself, and only that.
    node.obj = checked


@pytest.fixture(autouse=True)
def in_modes() -> Iterator[None]:
    """Graphs in the modes, from a known state, and no garbage for the next test."""
    if not torch.cuda.is_available():
        stand_in.install()
    stand_in.graphs_in_modes()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    gc.collect()
