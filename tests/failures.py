"""What a failing test says in its last lines: what was expected of whom, where, and what was found.

A plugin of pytest. Each failure is three lines at the end of a run, below all captured output.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Generator, Iterator
from typing import Any

import pytest

# Lines of what was found, and of a statement, and how long each may be.
_LINES, _LONGEST = 4, 160


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Note on the report of a failure what the run says of it at the end."""
    report = yield
    if report.failed and call.excinfo is not None:
        # With xdist it comes from another process, as JSON.
        report.failure_lines = [*_lines_of(item, call.excinfo)]
    return report


def _lines_of(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> Iterator[str]:
    expected = inspect.getdoc(getattr(item, "function", None)) or ""
    if expected:
        yield "expected: " + " ".join(expected.split("\n\n")[0].split())
    # The test's own statement, and not that of a helper in which it ended.
    own = [entry for entry in error.traceback if entry.path == item.path]
    tests = [entry for entry in own if entry.name == getattr(item, "originalname", None)]
    entry = (tests or own or [*error.traceback])[-1]
    yield from _shortened("statement: ", textwrap.dedent(str(entry.statement)))
    yield f"in: {entry.path}:{entry.lineno + 1}"
    yield from _shortened("found: ", f"{error.typename}: {error.value}")


def _shortened(before: str, text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > _LINES:
        lines[_LINES:] = ["..."]
    for number, line in enumerate(lines):
        yield (before if number == 0 else " " * len(before)) + line[:_LONGEST]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say of each failure what was expected of whom, below what it has printed."""
    failed = [
        report
        for kind in ("failed", "error")
        for report in terminalreporter.stats.get(kind, ())
        if getattr(report, "failure_lines", None)
    ]
    if failed:
        terminalreporter.section("what was expected, and what was found")
    for report in failed:
        terminalreporter.write_line(report.nodeid)
        for line in report.failure_lines:
            terminalreporter.write_line(f"  {line}")
