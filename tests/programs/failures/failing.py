"""Tests that fail, of which a run says what they expected."""

import pytest


def is_done(word):
    assert word == "done", "\n".join(map(str, range(9)))


def test_statement():
    """A command says that it is done.

    Not shown.
    """
    print("much " * 1000)
    is_done(
        "not done",
    )


@pytest.fixture
def place():
    raise OSError("no room")


def test_fixture(place):
    pass


def test_passes():
    pass
