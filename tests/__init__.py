"""The tests, as a package: each module has one name for pytest, mypy and ``experiments``."""
