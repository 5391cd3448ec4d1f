"""What a command is: a function from typed arguments to a result.

The arguments are a frozen dataclass. Each of its fields says how the command line gives it, by one
of the functions here, and the parser is made from these fields: nothing below it sees argparse. The
type of a field is the one that its ``parse`` returns. What the function returns is printed in one
place (``command_line``), as text or as JSON. An error is a ``UserError``.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from rocm_autopatch.cli import statuses
from rocm_autopatch.support.user_error import UserError

Value = TypeVar("Value")
Default = TypeVar("Default")
Arguments = TypeVar("Arguments")
_OPTION = "option"
# Where a parser keeps its command and the words that name it. No argument is called so.
CHOSEN, CHOSEN_WORDS = "chosen command", "chosen words"


@dataclass
class CommandResult:
    """What a command has to say. The renderer prints ``data`` with ``--json``, else ``lines``; then
    ``remarks`` on stderr.

    ``data`` is plain data, whose secrets are masked when it is printed. ``lines`` and ``data`` are
    called only if they are printed. ``summary`` is a remark without the name of the command. With
    ``passed_on`` the status is another program's, and stays that also where stdout can't be
    written.
    """

    lines: Callable[[], Iterable[str]] = tuple
    data: Callable[[], object] = dict
    status: int = 0
    remarks: Sequence[str] = ()
    summary: str = ""
    passed_on: bool = False


@dataclass(frozen=True)
class Command(Generic[Arguments]):
    """A command: its arguments, what it does with them, and what its help says.

    ``usage_error`` says what is wrong with a combination of arguments, None if nothing is. A
    command without ``--json`` says in ``no_json`` what to do in its place. ``page`` is the page of
    errors that name none.
    """

    arguments: type[Arguments]
    run: Callable[[Arguments], CommandResult]
    description: str
    example: str
    statuses: statuses.Statuses
    usage: str | None = None
    usage_error: Callable[[Arguments], str | None] = lambda _: None
    no_json: str = ""
    page: str = ""


@dataclass(frozen=True)
class CommandGroup:
    """Commands below a name, each with the sentence that lists it; ``alone`` is what the name does
    by itself, if it does something."""

    commands: Mapping[str, str]
    description: str = ""
    example: str = ""
    statuses: statuses.Statuses = field(default_factory=dict)
    alone: Command[Any] | None = None


@dataclass(frozen=True)
class ArgumentSource:
    """Where a field comes from: the names of an option, () for a position, and what
    ``add_argument`` takes beside them. Of options in one ``group``, one may be given. A user's own
    command may be ``needed``."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    group: str = ""
    needed: bool = False


def _declared(source: ArgumentSource, default: object) -> Any:
    return field(default=cast(Any, default), metadata={_OPTION: source})


def option_field(
    *names: str,
    parse: Callable[[str], Value],
    default: Default,
    help: str,
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
    group: str = "",
    required: bool = False,
) -> Value | Default:
    """An option with a value."""
    settings: dict[str, object] = {"type": parse, "metavar": metavar, "help": help}
    if choices is not None:
        settings["choices"] = choices
    if required:
        settings["required"] = True
    return cast("Value", _declared(ArgumentSource(names, settings, group), default))


def repeated_option(
    *names: str, parse: Callable[[str], Value], metavar: str, help: str, required: bool = False
) -> tuple[Value, ...]:
    """An option that may be given several times."""
    settings = {"type": parse, "metavar": metavar, "help": help, "action": "append"}
    if required:
        settings["required"] = True
    return cast("tuple[Value, ...]", _declared(ArgumentSource(names, settings), ()))


def flag_field(*names: str, help: str, group: str = "") -> bool:
    """An option without a value."""
    settings = {"action": "store_true", "help": help}
    return cast(bool, _declared(ArgumentSource(names, settings, group), False))


def optional_flag(
    *names: str, value: bool | None = None, help: str, group: str = ""
) -> bool | None:
    """An option without a value, None where it is not given. Without *value*, ``--no-NAME`` gives
    False, and ``--NAME`` True; with it, the option gives *value*."""
    settings: dict[str, Any] = {"help": help}
    if value is None:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings |= {"action": "store_const", "const": value}
    return cast("bool | None", _declared(ArgumentSource(names, settings, group), None))


def position_field(
    *,
    parse: Callable[[str], Value],
    default: Default | None = None,
    metavar: str | None = None,
    help: str | None = None,
    choices: Sequence[str] | None = None,
    optional: bool = False,
) -> Value | Default:
    """An argument without a name."""
    settings = {"type": parse, "metavar": metavar, "help": help, "choices": choices}
    if optional:
        settings["nargs"] = "?"
    return cast("Value", _declared(ArgumentSource((), settings), default))


def position_fields(*, parse: Callable[[str], Value], metavar: str, help: str) -> tuple[Value, ...]:
    """All arguments without a name."""
    settings = {"type": parse, "metavar": metavar, "help": help, "nargs": "*"}
    return cast("tuple[Value, ...]", _declared(ArgumentSource((), settings), ()))


def some_values(
    *names: str, parse: Callable[[str], Value], metavar: str, help: str
) -> tuple[Value, ...] | None:
    """An option with any number of values, None where it is not given."""
    settings = {"type": parse, "metavar": metavar, "help": help, "nargs": "*"}
    return cast("tuple[Value, ...] | None", _declared(ArgumentSource(names, settings), None))


def program_words(help: str | None = None, needed: bool = True) -> tuple[str, ...]:
    """The user's own command, which is all that follows the options."""
    settings = {"nargs": argparse.REMAINDER, "metavar": "COMMAND", "help": help}
    return cast("tuple[str, ...]", _declared(ArgumentSource((), settings, needed=needed), ()))


@dataclass(frozen=True)
class AnyWords:
    """Whatever follows, for a command that can't be imported."""

    words: tuple[str, ...] = program_words(needed=False)


class _RefuseJson(argparse.Action):
    """``--json`` where there is none."""

    def __init__(self, option_strings: Sequence[str], dest: str, why: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=argparse.SUPPRESS)
        self.why = why

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(f"--json is not for this command: {self.why}")


def describe_command(parser: argparse.ArgumentParser, command: Command[Any]) -> None:
    """Give a parser what a command takes and says of itself."""
    if command.usage:
        parser.usage = command.usage
    parser.description = command.description
    parser.epilog = f"example: {command.example}" if command.example else None
    statuses.state_statuses(parser, command.statuses)
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    # What a class shares with others stands below its own.
    bases = filter(dataclasses.is_dataclass, command.arguments.__bases__)
    shared = {one.name for base in bases for one in dataclasses.fields(base)}
    for one in sorted(dataclasses.fields(command.arguments), key=lambda its: its.name in shared):
        source: ArgumentSource = one.metadata[_OPTION]
        into: argparse._ActionsContainer = parser
        if source.group:
            if source.group not in groups:
                groups[source.group] = parser.add_mutually_exclusive_group()
            into = groups[source.group]
        if source.names:
            # The field has the default. argparse would read a text as if it were given.
            settings = {"dest": one.name, "default": argparse.SUPPRESS, **source.settings}
            into.add_argument(*source.names, **settings)
        else:
            into.add_argument(one.name, **source.settings)
    if command.no_json:
        parser.add_argument("--json", action=_RefuseJson, why=command.no_json)
    parser.set_defaults(**{CHOSEN: command})


def typed_arguments(command: Command[Arguments], parsed: argparse.Namespace) -> Arguments:
    """What was given, as the command takes it. Raises UserError for wrong usage."""
    values: dict[str, object] = {}
    for one in dataclasses.fields(cast(Any, command.arguments)):
        value = getattr(parsed, one.name, None)
        if value is None:
            continue
        if one.metadata[_OPTION].settings.get("nargs") == argparse.REMAINDER:
            # Without the -- before the user's command.
            value = value[1:] if value[:1] == ["--"] else value
            if one.metadata[_OPTION].needed and not value:
                name = f"rocm-autopatch {getattr(parsed, CHOSEN_WORDS)}"
                raise UserError(f"the COMMAND is missing: {name} -- COMMAND", status=2)
        values[one.name] = tuple(value) if isinstance(value, list) else value
    arguments = command.arguments(**values)
    wrong = command.usage_error(arguments)
    if wrong:
        raise UserError(wrong, status=2)
    return arguments
