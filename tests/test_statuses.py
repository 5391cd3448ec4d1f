"""Exit statuses: what commands state, what they return, and the page that is made of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from rocm_autopatch.cli import command_line, main, statuses
from tests.conftest import ROOT
from tools import statuses_page


def test_the_page_is_not_stale() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert statuses_page.page(page) == page
    for name in command_line.COMMANDS:
        assert f"\n- `{name}" in page, name
    with pytest.raises(ValueError, match="the page has no lines"):
        statuses_page.page("# Commands\n")


def returned(name: str) -> Iterator[int]:
    """The statuses that a command gives its results and errors as numbers."""
    room = ROOT / "rocm_autopatch" / "cli"
    files = [room / f"{name}.py"] if (room / f"{name}.py").exists() else (room / name).glob("*.py")
    for file in files:
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            usual = {"CommandResult": 0, "UserError": 1}.get(ast.unparse(call.func))
            if usual is not None and "status" not in [given.arg for given in call.keywords]:
                yield usual
            for given in call.keywords:
                if given.arg == "status":
                    for part in ast.walk(given.value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, int):
                            yield part.value


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_what_a_command_returns_is_stated(name: str) -> None:
    stated: set[int | str] = set()
    for parser in statuses_page.parsers(command_line.make_parser()):
        if parser.prog.split()[1:2] == [name]:
            stated.update(statuses.stated_statuses(parser))
    assert stated >= {2, 130}
    found = set(returned(name))
    # ab ends with what its measurement says.
    assert found or name == "ab"
    assert found <= stated


def test_the_help_says_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["cache", "gc", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit status 0: at most SIZE is left; 1: more than SIZE is left, or " in said
    assert said.count("Exit status") == 1
