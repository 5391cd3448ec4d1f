"""Durations and counts as commands and the watchdog write them."""

from __future__ import annotations

import pytest

from rocm_autopatch.support.text import counted, duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (120, "2 min"),
        (192.4, "3 min 12 s"),
        (3599.7, "1 h"),
        (7530, "2 h 5 min"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_counted() -> None:
    assert [counted(n, "graph") for n in (0, 1, 1024)] == ["0 graphs", "1 graph", "1,024 graphs"]
    assert counted(2, "process", "es") == "2 processes"
