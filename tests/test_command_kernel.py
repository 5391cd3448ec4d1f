"""What every command has in common: typed arguments, one meaning of each option, errors with a
page, and a start that imports the command's own file alone."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.cli import command_line, main, values
from rocm_autopatch.cli.command import CHOSEN, Command, CommandGroup
from rocm_autopatch.support.user_error import UserError
from tests.conftest import ROOT, Interpreter
from tests.names import MI35X_IMAGE
from tools.completions import parsers

CLI = ROOT / "rocm_autopatch" / "cli"
PARSERS = {one.prog: one for one in parsers(command_line.make_parser())}
COMMANDS: dict[str, Command[Any]] = {
    name: one.get_default(CHOSEN) for name, one in PARSERS.items() if one.get_default(CHOSEN)
}


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: one for one in parser._actions for name in one.option_strings}


def having(option: str) -> dict[str, argparse.Action]:
    """The commands that have an option, with what it is there."""
    found = {name: options_of(one).get(option) for name, one in PARSERS.items()}
    return {name: one for name, one in found.items() if one is not None}


class TestCommands:
    def test_each_is_a_function_of_typed_arguments(self) -> None:
        assert len(COMMANDS) == len(command_line.COMMANDS) + 7
        for name, command in COMMANDS.items():
            assert dataclasses.is_dataclass(command.arguments), name
            given = command.arguments()
            for one in dataclasses.fields(given):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(given, one.name, None)

    def test_nothing_below_the_parser_sees_argparse(self) -> None:
        parser = {CLI / "command.py", CLI / "command_line.py", CLI / "statuses.py"}
        for file in {*CLI.rglob("*.py")} - parser:
            text = file.read_text(encoding="utf-8")
            used = set(re.findall(r"argparse\.(\w+)", text))
            assert used <= {"ArgumentTypeError"}, file

    def test_one_file_for_each(self) -> None:
        modules = [f"{file.relative_to(CLI)}" for file in CLI.rglob("*.py")]
        for name in COMMANDS:
            words = name.split()[1:]
            path = "/".join(words)
            assert {f"{path}.py", f"{path}/__init__.py"} & {*modules}, name

    def test_json_is_there_or_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name, command in COMMANDS.items():
            fields = {one.name for one in dataclasses.fields(command.arguments)}
            assert ("json" in fields) != bool(command.no_json), name
            if command.no_json:
                with pytest.raises(SystemExit, match="2"):
                    main([*name.split()[1:], "--json"])
                said = " ".join(capsys.readouterr().err.split())
                assert f"--json is not for this command: {command.no_json}" in said

    def test_a_group_and_its_commands(self) -> None:
        from rocm_autopatch.cli import cache, policies

        for group in (cache.COMMAND, policies.COMMAND):
            assert isinstance(group, CommandGroup)


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "commands"),
        [
            ("--timeout", {"ab", "tune"}),
            ("--toggle", {"ab", "tune"}),
            ("--only", {"tune", "prove"}),
            ("--metric", {"ab", "tune"}),
            ("--number", {"ab", "tune"}),
            ("--seed", {"ab", "tune"}),
            ("--plot", {"ab", "tune"}),
            ("--torch", {"status", "explain", "check"}),
        ],
    )
    def test_who_has_it(self, option: str, commands: set[str]) -> None:
        assert {name.split()[1] for name in having(option)} == commands

    @pytest.mark.parametrize("option", ["--timeout", "--toggle", "--metric", "--number", "--seed"])
    def test_one_meaning(self, option: str) -> None:
        found = having(option).values()
        assert len({one.metavar for one in found}) == 1
        assert len({one.type for one in found}) == 1
        heads = {re.split(r"[;(,]", str(one.help))[0].strip() for one in found}
        assert len(heads) == 1 or option == "--toggle"

    @pytest.mark.parametrize("words", ["run", "cache warm", "ab --toggle A=1"])
    @pytest.mark.parametrize("end", ["", " --"])
    def test_a_command_that_is_missing(
        self, words: str, end: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main((words + end).split()) == 2
        name = f"rocm-autopatch {words.partition(' --')[0]}"
        assert capsys.readouterr().err == (f"{name}: the COMMAND is missing: {name} -- COMMAND\n")

    def test_names_of_what_is_measured(self) -> None:
        for one in having("--only").values():
            assert one.metavar == "NAME,..."
            assert re.fullmatch(r"only these .*; --list shows their names", str(one.help))

    def test_times(self) -> None:
        """Each option with a time takes 30m."""
        timed = [one for parser in PARSERS.values() for one in parser._actions]
        timed = [one for one in timed if one.metavar in (values.DURATION, "SECONDS")]
        assert len(timed) == 4
        for one in timed:
            assert one.type is values.parse_duration
        assert values.parse_duration("30m") == 1800

    @pytest.mark.parametrize("command", [name for name in PARSERS if name in COMMANDS])
    def test_the_image_is_named_in_one_way(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = options_of(PARSERS[command])
        if "--assume" not in options:
            return
        assert options["--image"].type is values.parse_image
        with pytest.raises(SystemExit, match="2"):
            main([*command.split()[1:], "--assume", "image=a:b"])
        assert "the image is named by --image REF" in capsys.readouterr().err

    def test_an_image_is_a_fact(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["policies", "show", "--image", MI35X_IMAGE, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["facts"]["image"] == MI35X_IMAGE

    def test_checksums_are_not_called_digests(self) -> None:
        assert not having("--digest")
        assert set(having("--checksum")) == {"rocm-autopatch cache seed"}


class TestValues:
    @pytest.mark.parametrize(
        ("text", "size"), [("7", 7), ("2K", 2048), ("1.5M", 3 << 19), ("10G", 10 << 30)]
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert values.parse_size(text) == size

    @pytest.mark.parametrize(("text", "part"), [("5", 0.05), ("5%", 0.05), ("0", 0), ("100", 1)])
    def test_percent(self, text: str, part: float) -> None:
        assert values.parse_percent(text) == part

    @pytest.mark.parametrize(
        ("parse", "text"),
        [
            *((values.parse_duration, text) for text in ("", "0", "-1", "1d", "m", "1h5")),
            *((values.parse_size, text) for text in ("", "-1", "5X", "M", "1e3")),
            *((values.parse_percent, text) for text in ("", "-1", "101", "5%%", "nan")),
            *((values.count_of(1, 3), text) for text in ("", "0", "4", "1.0", "\u0663")),
            *((values.parse_image, text) for text in ("", "a b", "UPPER:x")),
        ],
    )
    def test_wrong(self, parse: Any, text: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


def stated_pages() -> Iterator[tuple[Path, str]]:
    """The pages that errors name, as they stand in the sources."""
    for file in (ROOT / "rocm_autopatch").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0])
            given = node.arg if isinstance(node, ast.keyword) else named
            if given in ("page", "_PAGE", "usual_page") and isinstance(
                getattr(node, "value", None), ast.Constant
            ):
                yield file, node.value.value  # type: ignore[attr-defined]


class TestErrors:
    def test_their_pages_are_there(self) -> None:
        pages = {page for _, page in stated_pages() if page}
        assert len(pages) >= 6
        for page in pages:
            name, _, heading = page.partition("#")
            text = (ROOT / "docs" / name).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
            assert not heading or heading in slugs, page

    def test_a_page_is_told(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "there").touch()
        assert main(["bundle", str(tmp_path / "there")]) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith("rocm-autopatch bundle: ")
        assert second.startswith("  more: ")
        assert "commands" in second

    def test_status_page_and_lines(self) -> None:
        class Refused(UserError):
            usual_status, usual_page = 2, "tune.md"

        usual, other = Refused("one", "two"), Refused("one", status=1, page="")
        assert (usual.status, usual.page, usual.messages) == (2, "tune.md", ("one", "two"))
        assert (other.status, other.page, str(usual)) == (1, "", "one; two")

    def test_an_unreadable_file_is_not_stdout(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "plan").mkdir()
        assert main(["bake", "--out", str(tmp_path / "no" / "plan")]) == 1
        assert "stdout" not in capsys.readouterr().err


IMPORTED = """\
import sys
from rocm_autopatch.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if name.startswith("rocm_autopatch.cli.")))
"""


class TestStart:
    @pytest.mark.parametrize(
        ("words", "own"),
        [
            (("statu",), set()),
            ((), set()),
            (("--help",), set()),
            (("cache",), {"cache"}),
            (("cache", "gcc"), {"cache"}),
            (("cache", "path", "--help"), {"cache", "cache.path"}),
            (("stacks", "--help"), {"stacks"}),
            (("tune", "--help"), {"tune"}),
        ],
    )
    def test_a_command_imports_its_own_file(
        self, python311: Interpreter, words: tuple[str, ...], own: set[str]
    ) -> None:
        done = python311.run("-c", IMPORTED, *words)
        loaded = {one.partition(".cli.")[2] for one in done.stdout.splitlines()[-1].split()}
        commands = {name.replace(" ", ".") for name in command_line.COMMANDS} | {
            f"cache.{name}" for name in ("status", "warm", "pack", "seed", "gc", "path")
        }
        assert loaded & commands == own

    @pytest.mark.parametrize(
        "words",
        [
            ("status",),
            ("status", "--line"),
            ("explain", "freezing"),
            ("statu",),
            ("explain", "--jsn"),
        ],
        ids=" ".join,
    )
    def test_what_it_costs(self, python311: Interpreter, words: tuple[str, ...]) -> None:
        """In seconds of a CPU until its first line, children counted: the least of three.

        An import of torch alone takes 2.5. On a quiet machine these take 0.2 to 0.6.
        """
        assert min(seconds_to_first_line(python311, *words) for _ in range(3)) < 1.5


def seconds_to_first_line(python: Interpreter, *words: str) -> float:
    """As of "COMMAND | head -1", of what ends there. The command reaps what it has started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        [python.path, "-m", "rocm_autopatch", *words],
        env={"PATH": os.environ["PATH"], "ROCM_AUTOPATCH_LOG": "quiet"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.terminate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
