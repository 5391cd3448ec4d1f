"""rocm-autopatch completion: the scripts, tried in their shells."""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rocm_autopatch.cli import command_line, completion, main
from rocm_autopatch.patches.compile_modes import MODES
from rocm_autopatch.startup import assume
from tools import completions

FACTS = {f"{name}=" for name in assume.FACTS if name != "image"}
POLICIES = {"capture-guard", "debug", "no-hipblaslt", "no-library-search", "performance", "safe"}
POLICIES |= {"sglang-compile", "tuning-notes"}
PATCHES = {"capture", "watchdog", "recompiles", "ranks", "graph_check"}
WATCHDOG = {f"watchdog.{name}" for name in ("warn_after", "dump_stacks", "abort_after")}
# bash splits words like this because of its COMP_WORDBREAKS.
BREAKS = re.compile(r"[:=]|[^:=]+")


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for shell in completion.SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return tmp_path


def bash(scripts: Path, line: str) -> set[str]:
    """What bash offers for the last word of *line*."""
    words = [part for word in line.split(" ") for part in BREAKS.findall(word) or [""]]
    script = (
        f'source {scripts}/bash; cd {scripts}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        "function=$(complete -p rocm-autopatch); function=${function#*-F };"
        '${function% *} rocm-autopatch "${COMP_WORDS[COMP_CWORD]}" "";'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == ""
    return {word for word in done.stdout.split("\n") if word}


def test_bash(scripts: Path) -> None:
    (scripts / "team.yaml").touch()
    (scripts / "two words.yaml").touch()
    files = {"bash", "zsh", "team.yaml", "two words.yaml"}
    status = {
        *("--help", "--all", "--why", "--json", "--line", "--textfile", "--check"),
        *("--policy", "--torch", "--no-torch", "--image", "--assume"),
    }
    for line, offered in (
        ("rocm-autopatch ", set(command_line.COMMANDS)),
        ("rocm-autopatch sta", {"status", "stacks"}),
        ("rocm-autopatch stat", {"status"}),
        ("rocm-autopatch --v", {"--version"}),
        ("rocm-autopatch status --", status),
        ("rocm-autopatch status --assume ", FACTS),
        ("rocm-autopatch status --assume acc", {"accelerator="}),
        ("rocm-autopatch status --assume accelerator=r", set()),
        ("rocm-autopatch status --image a:b --j", {"--json"}),
        ("rocm-autopatch explain cudagraphs --no", {"--no-torch"}),
        ("rocm-autopatch status --policy pe", {"performance"}),
        ("rocm-autopatch explain ", {*MODES, *PATCHES, *WATCHDOG, "caches"}),
        ("rocm-autopatch explain watchdog.w", {"watchdog.warn_after"}),
        ("rocm-autopatch policies ", {"show"}),
        ("rocm-autopatch policies --json show pe", {"performance"}),
        ("rocm-autopatch policies show ", POLICIES | files),
        ("rocm-autopatch check t", {"team.yaml", "two words.yaml"}),
        ("rocm-autopatch check one.yaml t", {"team.yaml", "two words.yaml"}),
        ("rocm-autopatch check --torch 2.1", {f"2.1{minor}" for minor in range(6)}),
        ("rocm-autopatch bake --out tea", {"team.yaml"}),
        ("rocm-autopatch bake --image ", set()),
        ("rocm-autopatch completion z", {"zsh"}),
        ("rocm-autopatch completion zsh b", set()),
    ):
        assert bash(scripts, line) == offered, line


def typed(command: list[str], start: str, keys: str, until: str) -> str:
    """What a terminal shows after *keys* were typed into a shell that has read *start*."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "> "})
    shown = ""

    def read(wanted: str) -> None:
        nonlocal shown
        end = time.monotonic() + 20
        while wanted not in screen(shown) and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    shown += os.read(terminal, 4096).decode(errors="replace")
                except OSError:  # the shell has ended
                    break

    try:
        os.write(terminal, f"{start}; echo rea''dy\n".encode())
        read("ready\r\n")
        assert "ready\r\n" in shown
        shown = ""
        os.write(terminal, keys.encode())
        read(until)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)
    return screen(shown)


def screen(text: str) -> str:
    """What a terminal shows: after a backspace, the next character replaces the last one."""
    seen: list[str] = []
    for character in text:
        if character != "\b":
            seen.append(character)
        elif seen:
            seen.pop()
    return "".join(seen)


def test_bash_at_a_terminal(scripts: Path) -> None:
    start = f"bind 'set enable-bracketed-paste off'; source {scripts}/bash; cd {scripts}"
    shown = typed(
        ["bash", "--norc", "--noprofile", "-i"],
        start,
        "rocm-autopatch expl\t--assu\tacc\trocm",
        "--assume accelerator=rocm",
    )
    assert "rocm-autopatch explain --assume accelerator=rocm" in shown


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("rocm-autopatch stat\t--no-t\t", "rocm-autopatch status --no-torch "),
        ("rocm-autopatch expl\t--assu\tacc\trocm", "explain --assume accelerator=rocm"),
        ("rocm-autopatch poli\tsho\tperf\t", "policies show performance "),
        ("rocm-autopatch expl\twatchdog.w\t", "explain watchdog.warn_after "),
        ("rocm-autopatch check --torch 2.4\ttea\t", "check --torch 2.4 team.yaml "),
    ],
)
def test_zsh_at_a_terminal(scripts: Path, keys: str, line: str) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here: apt-get install zsh")
    (scripts / "team.yaml").touch()
    start = f"cd {scripts}; autoload -U compinit; compinit -u -D; source ./zsh"
    shown = typed(["zsh", "-f", "-i"], start, keys, line)
    assert line in shown


def test_zsh_from_fpath(scripts: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here: apt-get install zsh")
    (scripts / "fpath").mkdir()
    shutil.copy(scripts / "zsh", scripts / "fpath" / "_rocm-autopatch")
    start = f"fpath=({scripts}/fpath $fpath); autoload -U compinit; compinit -u -D"
    shown = typed(["zsh", "-f", "-i"], start, "rocm-autopatch compl\tb\t", "completion bash ")
    assert "rocm-autopatch completion bash " in shown


def test_a_command_has_the_line_of_help() -> None:
    script = completion.script_file("zsh").read_text(encoding="utf-8").replace("""'"'"'""", "'")
    listed = [
        one
        for parser in completions.parsers(command_line.make_parser())
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for one in action._choices_actions
    ]
    assert len(listed) > 20
    for one in listed:
        assert f"    {one.dest}:'{one.help}'\n" in script


def test_every_option_is_there() -> None:
    for shell in completion.SHELLS:
        script = completion.script_file(shell).read_text(encoding="utf-8")
        for parser in completions.parsers(command_line.make_parser()):
            for action in parser._actions:
                if action.help != argparse.SUPPRESS:
                    assert all(name in script for name in action.option_strings)


def test_the_scripts_are_not_stale() -> None:
    pytest.importorskip("shtab", reason="make installs it")
    for shell, text in completions.scripts().items():
        # The help of an argument is part of it, and must be the same in each checkout.
        assert str(Path(completion.__file__).parents[2]) not in text
        assert completion.script_file(shell).read_text(encoding="utf-8") == text


def test_words_are_not_stale() -> None:
    """Policies, entries, facts and torch's releases, also where shtab is not installed."""
    for shell, text in completions.preambles().items():
        assert text in completion.script_file(shell).read_text(encoding="utf-8")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "fish"])
    assert "'bash', 'zsh'" in capsys.readouterr().err.replace("bash, zsh", "'bash', 'zsh'")
