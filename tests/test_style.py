"""Colour and help: what a terminal shows, what a pipe gets, what every command says of itself."""

from __future__ import annotations

import io
import re

import pytest

from rocm_autopatch.cli import command_line, style, terminal
from tests.conftest import MAX, ROOT, Interpreter
from tests.running import run_on_terminal
from tools.statuses_page import parsers

COLOUR = re.compile(r"\x1b\[[0-9]*m")
STATUS = ("-m", "rocm_autopatch", "status", "--no-torch", "--all")
ENV = {MAX: "1", "TERM": "xterm", "ROCM_AUTOPATCH_LOG": "quiet"}


def shown(python: Interpreter, *arguments: str, **env: str) -> str:
    return run_on_terminal(python, *arguments, env={**ENV, **env})


def test_a_terminal_and_a_pipe(python311: Interpreter) -> None:
    plain = python311.run(*STATUS, env=ENV).stdout
    assert "\x1b" not in plain
    coloured = shown(python311, *STATUS)
    assert f"{MAX}: '1' -> unset  [delete \x1b[32mapplied\x1b[0m, safe]" in coloured
    assert "config of torch._inductor.config: \x1b[33mwaiting\x1b[0m: " in coloured
    assert COLOUR.sub("", coloured) == plain
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert shown(python311, *STATUS, **env) == plain
    assert shown(python311, *STATUS, NO_COLOR="") == coloured
    explain = ("-m", "rocm_autopatch", "explain", "--no-torch", MAX)
    coloured = shown(python311, *explain)
    assert "safe: delete  (\x1b[32mapplies\x1b[0m), " in coloured
    assert COLOUR.sub("", coloured) == python311.run(*explain, env=ENV).stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_words_of_a_sentence_have_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())
    for line in (
        "      It failed: applied, skipped.",
        "  A: 'applied' -> 'failed'  [unheard applied",
    ):
        assert style.colour_statuses(line) == line
    row = "  a.b: 1  [pin failed, safe] (still failed)"
    written = terminal.HarmlessWriter(Terminal()).harmless(style.colour_statuses(row))
    assert written == row.replace("[pin failed", "[pin \x1b[31mfailed\x1b[0m")
    coloured = style.colour_word("harmless")
    assert terminal.HarmlessWriter(Terminal()).harmless(coloured) == "\x1b[32mharmless\x1b[0m"
    assert terminal.plain(coloured) == "harmless"
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert style.colour_word("harmless") == "harmless"


def test_every_help_has_an_example_and_exit_statuses() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    # Its page has those of the cache command.
    page += (ROOT / "docs" / "caches.md").read_text(encoding="utf-8")
    for parser in parsers(command_line.make_parser()):
        text = " ".join(parser.format_help().split())
        assert "example: " in text, parser.prog
        assert re.search("Exit status (0|COMMAND's own): ", text), parser.prog
        assert "; 2: wrong usage; 130: interrupted." in text, parser.prog
        if parser.prog != "rocm-autopatch":
            cached = parser.prog.replace(" cache ", " cache`](caches.md#commands)", 1)
            assert f"\n- [`{cached.partition(')')[0]}" in page, parser.prog
            example = str(parser.epilog).removeprefix("example: ")
            assert example in page, example


def test_examples_are_right_usage() -> None:
    for parser in parsers(command_line.make_parser()):
        command = str(parser.epilog).removeprefix("example: ")
        arguments = re.sub(r".*rocm-autopatch |\)$", "", command).split()
        arguments = [word.replace("HEX", "0" * 64).replace("IMAGE", "image") for word in arguments]
        command_line.make_parser().parse_args(arguments)
