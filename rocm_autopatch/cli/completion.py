"""``rocm-autopatch completion``: a completion script for a shell.

The scripts are made from the parser by ``tools/completions.py``; a test fails if they are stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.cli.command import Command, CommandResult, position_field

SHELLS = ("bash", "zsh")


@dataclass(frozen=True)
class CompletionArguments:
    shell: str = position_field(parse=str, choices=SHELLS, help="the shell")


def script_file(shell: str) -> Path:
    """The file that has the script for *shell*."""
    return Path(__file__).with_name("completions") / f"rocm-autopatch.{shell}"


def print_script(arguments: CompletionArguments) -> CommandResult:
    text = script_file(arguments.shell).read_text(encoding="utf-8")
    return CommandResult(text.splitlines)


COMMAND = Command(
    CompletionArguments,
    print_script,
    description=(
        "Print a completion script for bash or zsh. It completes commands, options, policies, "
        "their entries, facts and files. It does not run this package, so print it again after "
        "an update. "
        "For bash, write it to /etc/bash_completion.d/rocm-autopatch, or put 'source "
        "<(rocm-autopatch completion bash)' into ~/.bashrc. For zsh, write it to a file "
        "_rocm-autopatch in a directory of fpath, or put 'source <(rocm-autopatch completion "
        "zsh)' into ~/.zshrc, after compinit."
    ),
    example="source <(rocm-autopatch completion bash)",
    statuses={0: "the script is printed"},
    no_json="it prints a script for a shell",
)
