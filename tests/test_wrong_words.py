"""A mistyped command, option or choice, and a command line that names no command."""

from __future__ import annotations

import argparse

import pytest

from rocm_autopatch.cli import command_line, main
from rocm_autopatch.cli.command import CHOSEN
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.running import run_command


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("statu", "status"),
        ("exlpain cudagraphs", "explain"),
        ("cache stats", "status"),
        ("policies shwo", "show"),
        ("completion bahs", "bash"),
        ("status --jsn", "--json"),
        ("status --polcy=safe", "--policy"),
        ("cache gc --maxx 5G --max 1G", "--max"),
        ("policies show --asume gfx=gfx942", "--assume"),
        ("--versoin", "--version"),
        ("prove --only memsett", "memset"),
        ("status --assume acelerator=rocm", "accelerator"),
    ],
)
def test_what_is_meant(capsys: pytest.CaptureFixture[str], line: str, meant: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("line", ["xyzzy", "status --xyzzy", "completion xyzzy"])
def test_nothing_is_guessed_of_what_is_not_near(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("cache",)], ids=["alone", "cache"])
def test_no_command_lists_what_there_is(
    python311: Interpreter, words: tuple[str, ...], golden: Golden
) -> None:
    done = run_command(python311, *words, env={"COLUMNS": "80"})
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) <= 24
    golden(done.stderr)


def test_each_command_is_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    def lists(parser: argparse.ArgumentParser, words: list[str]) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                if parser.get_default(CHOSEN) is None:
                    with pytest.raises(SystemExit, match="2"):
                        main(words)
                    said = capsys.readouterr().err
                    assert all(f"\n  {name} " in said for name in action.choices)
                for name, inner in action.choices.items():
                    lists(inner, [*words, name])

    lists(command_line.make_parser(), [])
