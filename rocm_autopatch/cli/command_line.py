"""The command line: the parser, the renderer, and how errors end a command."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from rocm_autopatch import _SITE, policy_dirs
from rocm_autopatch.cli import statuses, terminal
from rocm_autopatch.cli.command import (
    CHOSEN,
    CHOSEN_WORDS,
    AnyWords,
    Command,
    CommandGroup,
    CommandResult,
    describe_command,
    typed_arguments,
)
from rocm_autopatch.cli.near_words import did_you_mean
from rocm_autopatch.support import processes, progress
from rocm_autopatch.support.text import printable, wrapped
from rocm_autopatch.support.user_error import UserError, describe_os_error

_PROGRAM = "rocm-autopatch"
# Each command is the module of its name: COMMAND there. A command line imports its own alone.
COMMANDS = {
    "status": "what happens to a Python program started here, and why",
    "explain": "who decides about one variable, config key, mode or patch, and why",
    "diff": "what differs between two machines or containers, and why their digests differ",
    "policies": "list the built-in policies, or show what applies to an image",
    "check": "everything that is wrong with a policy file or an evidence file",
    "bake": "resolve the policy once, so that starts need not",
    "probe": "what this image does to a program, with and without rocm_autopatch",
    "prove": "which modes and switches of torch.compile work on this machine",
    "ab": "measure what a switch does to your own command",
    "tune": "find the fastest policy for your own command",
    "run": "run a command, and then print what it compiled",
    "report": "what a command compiled, how long it took, and what to do about it",
    "stacks": "where a process is that hangs right now, and what it compiles",
    "bundle": "what a bug report needs, in one file, with secrets masked",
    "cache": "show, fill, pack, seed and clean up the compile caches beneath one root",
    "facts": "what compiled code depends on of this machine's GPU",
    "help": "read the documentation, without a network",
    "completion": "print a script that completes commands and options in a shell",
}


def run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its status."""
    with terminal.harmless_text(), processes.taken_interrupts():
        try:
            given = sys.argv[1:] if arguments is None else arguments
            return _run_chosen(make_parser(given).parse_args(given))
        except terminal.NotWritten as error:
            # What --help and --version print.
            return _not_written(error)
        except KeyboardInterrupt:
            # While the commands are imported.
            terminal.print_error(f"{_PROGRAM}: interrupted")
            return processes.INTERRUPTED


def _run_chosen(parsed: argparse.Namespace) -> int:
    """The one place where a command is run, its result printed and its errors told."""
    command: Command[Any] = getattr(parsed, CHOSEN)
    name = f"{_PROGRAM} {getattr(parsed, CHOSEN_WORDS)}"
    try:
        arguments = typed_arguments(command, parsed)
        with progress.progress_of(name):
            result = command.run(arguments)
        _print_result(result, name, getattr(arguments, "json", False))
    except Exception as error:
        return _tell_error(error, name, command.page)
    except KeyboardInterrupt:
        terminal.print_error(f"{name}: interrupted")
        return processes.INTERRUPTED
    try:
        sys.stdout.flush()
    except terminal.NotWritten as error:
        # The command that ran has its own status, and we printed nothing to stdout.
        return result.status if result.passed_on else _not_written(error)
    return result.status


def _print_result(result: CommandResult, name: str, as_json: bool) -> None:
    if as_json:
        terminal.print_data(result.data())
    else:
        terminal.print_lines(result.lines())
    for text in result.remarks:
        terminal.print_error(f"{name}: {text}")
    if result.summary:
        terminal.print_error(result.summary)


def _tell_error(error: Exception, name: str, page: str) -> int:
    """Tell why a command ended, and return its status. *page* is that of its errors."""
    from rocm_autopatch.policy.problem import PolicyError

    if isinstance(error, UserError):
        # Wrong usage says all that is to be said.
        page = error.page or (page if error.status == 1 else "")
    elif isinstance(error, PolicyError):
        page, error = "", UserError(*map(str, error.problems))
    elif isinstance(error, ImportError):
        # For example packaging, which is imported only for a policy with a condition.
        page, error = "", UserError(str(error))
    elif isinstance(error, (terminal.NotWritten, BrokenPipeError)):
        # fresh_interpreter raises the second one when nobody reads stdout any more.
        return _not_written(error)
    elif isinstance(error, OSError):
        error = UserError(describe_os_error(error))
    if not isinstance(error, UserError):
        # The interpreter itself would write control characters as they are.
        sys.stderr.write(
            "".join(traceback.format_exception(type(error), error, error.__traceback__))
        )
        return 1
    for text in error.messages:
        terminal.print_error(f"{name}: {text}")
    for line in (*error.quoted, *_page_lines(page)):
        terminal.print_error(line)
    return error.status


def _page_lines(page: str) -> Iterator[str]:
    """Where to read more on an error."""
    if page:
        yield f"  more: {_PROGRAM} help {page.replace('.md', '', 1)}"


def _not_written(error: Exception) -> int:
    """stdout is a full disk or a closed pipe."""
    terminal.give_up(sys.stdout)
    cause = error.__cause__
    if isinstance(cause, OSError) and not isinstance(cause, BrokenPipeError):
        terminal.print_error(f"{_PROGRAM}: stdout: {cause.strerror}")
    return 1


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line; with *words*, only the command that they name has its
    options. To import all commands takes a third of a second."""
    made = _CommandParser(
        prog=_PROGRAM,
        description=(
            "Safe and fast torch.compile in ROCm containers, without editing the program. "
            "ROCM_AUTOPATCH=off opts a process tree out; ROCM_AUTOPATCH=observe records only. "
            f"What is read: the policies of the package; in {_SITE}: image (the image's name), "
            "baseline (its variables), images.yaml and *.yaml (policies), evidence/*.json; in the "
            f"directories that {policy_dirs.VARIABLE} names: the same, but for baseline; the "
            "policy file that ROCM_AUTOPATCH_POLICY names, and what it extends; baked.plan in the "
            "package; torch/version.py of the torch that an import finds."
        ),
        epilog="example: docker run --rm IMAGE rocm-autopatch status",
    )
    statuses.state_statuses(made, {0: "done", 1: "something is wrong with what was asked about"})
    made.add_argument("--version", action=_VersionAction)
    _add_commands(made, (), COMMANDS, words)
    return made


def _add_commands(
    parser: argparse.ArgumentParser,
    path: tuple[str, ...],
    commands: Mapping[str, str],
    words: Sequence[str] | None,
) -> None:
    """Add the commands below *path*. All get their options, or the first that *words* name."""
    below = parser.add_subparsers(metavar="ACTION" if path else "COMMAND")
    named = [word for word in words or () if word in commands][:1]
    for name, sentence in commands.items():
        one = below.add_parser(name, help=sentence)
        if words is None or name in named:
            rest = None if words is None else words[words.index(name) + 1 :]
            _fill_parser(one, (*path, name), rest)


def _fill_parser(
    parser: argparse.ArgumentParser, path: tuple[str, ...], words: Sequence[str] | None
) -> None:
    parser.set_defaults(**{CHOSEN_WORDS: " ".join(path)})
    try:
        command = importlib.import_module(f"rocm_autopatch.cli.{'.'.join(path)}").COMMAND
    except Exception as error:
        # An overlay installs the wheel alone. Where PyYAML is missing, or fails when it is
        # imported, status still works.
        describe_command(parser, _missing_command(error))
        return
    if not isinstance(command, CommandGroup):
        describe_command(parser, command)
        return
    if command.alone:
        describe_command(parser, command.alone)
    else:
        parser.description, parser.epilog = command.description, f"example: {command.example}"
        statuses.state_statuses(parser, command.statuses)
    _add_commands(parser, path, command.commands, words)


def _missing_command(error: Exception) -> Command[Any]:
    why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"

    def refuse(_: object) -> CommandResult:
        raise UserError(why)

    return Command(AnyWords, refuse, "It can't run here.", "", {1: "it can't run"})


class _CommandParser(argparse.ArgumentParser):
    """Says what may be meant by a wrong word, and lists the commands where none is named."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        chosen, rest = self.parse_known_args(words, namespace)
        at = self._named_command(words)
        command = getattr(chosen, CHOSEN, None)
        if rest and not (command and command.arguments is AnyWords):
            options_here = [text for one in at._actions for text in one.option_strings]
            hint = did_you_mean(rest[0].partition("=")[0], options_here)
            at.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        if command is None:
            at.print_usage(sys.stderr)
            terminal.print_lines(at._listed_commands(), sys.stderr)
            at.exit(2)
        return chosen

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            known = [*map(str, action.choices or ())]
            error.message += did_you_mean(str(value), known)
            raise

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        # It may quote an argument.
        super().error(printable(message))

    def _commands_of(self) -> argparse._SubParsersAction[Any] | None:
        found = (one for one in self._actions if isinstance(one, argparse._SubParsersAction))
        return next(found, None)

    def _named_command(self, words: Sequence[str]) -> _CommandParser:
        """The parser of the command that *words* name, as far as they name one."""
        found = self
        for word in words:
            commands = found._commands_of()
            if commands is not None and word in commands.choices:
                found = commands.choices[word]
        return found

    def _listed_commands(self) -> Iterator[str]:
        """The commands of this one, and what each does."""
        commands = self._commands_of()
        offered = commands._choices_actions if commands else []
        width = max([len(one.dest) for one in offered], default=0)
        yield f"{self.prog} does nothing without one of these:"
        for one in offered:
            yield from wrapped(f"{one.dest:{width}}  {one.help}", "  ", " " * (width + 4))
        yield f"Say --help after one for its options: {self.prog} {offered[0].dest} --help"


class _VersionAction(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        terminal.print_lines([version("rocm_autopatch")])
        parser.exit()
