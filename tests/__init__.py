"""The tests: a package, so that each module has one name for pytest, mypy and ``tests.torture``."""
