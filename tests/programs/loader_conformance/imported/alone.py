"""Alone."""

VALUE = 4


def function():
    return VALUE  # a comment
