"""The command line of ``rocm-autopatch``, and how errors end a command."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from rocm_autopatch import _SITE, fresh_interpreter, policy_dirs
from rocm_autopatch.cli import options, statuses, terminal
from rocm_autopatch.policy.problem import PolicyError
from rocm_autopatch.support import processes, progress
from rocm_autopatch.support.text import printable, wrapped

COMMANDS = (
    *("status", "explain", "diff", "policies", "check", "bake", "probe", "prove", "ab", "tune"),
    *("run", "report", "stacks", "bundle", "cache", "completion", "help"),
)


def run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its status."""
    with terminal.harmless_text(), processes.taken_interrupts():
        try:
            given = sys.argv[1:] if arguments is None else arguments
            return _run_chosen(make_parser(given[:1]).parse_args(given))
        except KeyboardInterrupt:
            # While the commands are imported.
            terminal.print_error("rocm-autopatch: interrupted")
            return processes.INTERRUPTED
        finally:
            # argparse may have printed, too. Text that is still in a buffer would fail once more
            # when the interpreter ends, and change the exit status to 120.
            with contextlib.suppress(OSError):
                sys.stderr.flush()


def _run_chosen(chosen: argparse.Namespace) -> int:
    try:
        with progress.progress_of(f"rocm-autopatch {chosen.command}"):
            status: int = chosen.run(chosen)
    except (PolicyError, fresh_interpreter.NoReport) as error:
        problems = error.problems if isinstance(error, PolicyError) else [error]
        for problem in problems:
            terminal.print_error(f"rocm-autopatch {chosen.command}: {problem}")
        status = 1
    except ImportError as error:
        # For example packaging, which is imported only for a policy with a condition.
        terminal.print_error(f"rocm-autopatch {chosen.command}: {error}")
        status = 1
    except OSError as error:
        return _not_written(error)
    except KeyboardInterrupt:
        terminal.print_error(f"rocm-autopatch {chosen.command}: interrupted")
        return processes.INTERRUPTED
    except Exception:
        # The interpreter itself would write control characters as they are.
        sys.stderr.write(traceback.format_exc())
        return 1
    try:
        sys.stdout.flush()
    except OSError as error:
        # The command that ran has its own status, and we printed nothing to stdout.
        return status if chosen.command == "run" else _not_written(error)
    return status


def _not_written(error: OSError) -> int:
    """stdout is a full disk or a closed pipe."""
    terminal.give_up(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        terminal.print_error(f"rocm-autopatch: stdout: {error.strerror}")
    return 1


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the whole command line, or of one command if *words* begin with its name. To
    import all commands takes a quarter of a second."""
    made = _CommandParser(
        prog="rocm-autopatch",
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
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        try:
            importlib.import_module(f"rocm_autopatch.cli.{name}").add(commands)
        except Exception as error:
            # An overlay installs the wheel alone. Where PyYAML is missing, or fails when it is
            # imported, status still works.
            _add_missing(commands, name, error)
    return made


def _add_missing(commands: Any, name: str, error: Exception) -> None:
    why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"

    def run(_: argparse.Namespace) -> int:
        terminal.print_error(f"rocm-autopatch {name}: {why}")
        return 1

    # argparse reads it as a format.
    parser = commands.add_parser(name, help="can't run: " + why.replace("%", "%%"))
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


class _CommandParser(argparse.ArgumentParser):
    """Says what may be meant by a wrong word, and lists the commands where none is named."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        chosen, rest = self.parse_known_args(words, namespace)
        at = self._named_command(words)
        if rest:
            options_here = [text for one in at._actions for text in one.option_strings]
            hint = options.did_you_mean(rest[0].partition("=")[0], options_here)
            at.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        if getattr(chosen, "run", None) is None:
            at.print_usage(sys.stderr)
            terminal.print_lines(at._listed_commands(), sys.stderr)
            at.exit(2)
        return chosen

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            known = [*map(str, action.choices or ())]
            error.message += options.did_you_mean(str(value), known)
            raise

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
