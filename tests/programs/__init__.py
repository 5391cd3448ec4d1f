"""The programs that tests run, as files that ruff reads. tests/test_watchdog.py has those in
watchdog/, and so on. What several of them share is a module beside them, which they import: the
directory of a program is the first on its sys.path.

They run on each Python that is supported, and many beside the real torch, so mypy leaves them out.
"""

from __future__ import annotations

from pathlib import Path


def program_file(name: str) -> Path:
    """The file of a program, such as ``watchdog/stuck_in_c.py``."""
    path = Path(__file__).parent.absolute() / name
    assert path.is_file(), f"{path} is not there"
    return path


def import_of(path: Path) -> str:
    """A beginning for forks (tests/forked.py): the import of a module that is beside programs."""
    return f"import sys; sys.path[0] = {str(path.parent)!r}; import {path.stem}\n"


def line_of(path: Path, beginning: str) -> int:
    """The number of the line of a program that begins so; no other line may."""
    lines = path.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.startswith(beginning)]
    return number
