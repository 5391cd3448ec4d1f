"""``rocm-autopatch completion``: a completion script for a shell, made from the argument parser.

The choices of an argument tell what it takes. Without choices, its metavar tells: ``FILE`` and
``PATH`` are files, ``POLICY`` is a built-in policy or a file, ``VERSIONS`` are torch releases, and
``NAME=VALUE`` is a fact. An argument of the type ``options.entry_name`` is the name of an entry of
a policy. A new command that uses these needs no change here.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from rocm_autopatch.cli import options, statuses
from rocm_autopatch.startup import assume

SHELLS = ("bash", "zsh")


@dataclass(frozen=True)
class WantedArgument:
    """What an argument takes: one of *words*, or a file. ``metavar`` and ``help`` describe it."""

    words: tuple[str, ...]
    files: bool
    metavar: str
    help: str


@dataclass(frozen=True)
class CommandOption:
    """An option: its names, what its value is if it has one, and whether it may be repeated."""

    names: tuple[str, ...]
    wants: WantedArgument | None
    again: bool
    help: str


@dataclass
class CommandTree:
    """What may follow a command, or the program itself."""

    path: tuple[str, ...]
    options: list[CommandOption] = field(default_factory=list)
    positionals: list[WantedArgument] = field(default_factory=list)
    many: bool = False
    commands: dict[str, tuple[str, CommandTree]] = field(default_factory=dict)

    def all(self) -> Iterator[CommandTree]:
        """This command and the commands below it."""
        yield self
        for _, command in self.commands.values():
            yield from command.all()


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description=(
            "Print a completion script for bash or zsh. It completes commands, options, policies, "
            "their entries, facts and files. It does not run this package, so print it again after "
            "an update. "
            "For bash, write it to /etc/bash_completion.d/rocm-autopatch, or put 'source "
            "<(rocm-autopatch completion bash)' into ~/.bashrc. For zsh, write it to a file "
            "_rocm-autopatch in a directory of fpath, or put 'source <(rocm-autopatch completion "
            "zsh)' into ~/.zshrc, after compinit."
        ),
        epilog="example: source <(rocm-autopatch completion bash)",
    )
    statuses.state_statuses(parser, {0: "the script is printed"})
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from rocm_autopatch.cli import command_line

    root = read_parser(command_line.make_parser(), ())
    sys.stdout.write({"bash": bash_script, "zsh": zsh_script}[arguments.shell](root))
    return 0


def read_parser(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> CommandTree:
    """The options, positionals and commands of a parser."""
    command = CommandTree(path)
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                command.commands[name] = (helps.get(name, ""), read_parser(inner, (*path, name)))
        elif action.option_strings:
            wants = None if action.nargs == 0 else _wanted_argument(action)
            again = isinstance(action, argparse._AppendAction)
            names = tuple(action.option_strings)
            command.options.append(CommandOption(names, wants, again, action.help or ""))
        elif action.nargs != argparse.REMAINDER:
            command.positionals.append(_wanted_argument(action))
            command.many = action.nargs in ("*", "+")
    return command


def _wanted_argument(action: argparse.Action) -> WantedArgument:
    metavar = str(action.metavar or action.dest.upper())
    words: tuple[str, ...] = ()
    if action.choices is not None:
        words = tuple(map(str, action.choices))
    elif metavar == "NAME=VALUE":
        words = tuple(f"{name}=" for name in assume.FACTS)
    elif metavar == "POLICY":
        words = _policy_words()
    elif metavar == "VERSIONS":
        words = _version_words()
    elif action.type is options.entry_name:
        words = _entry_names()
    return WantedArgument(words, metavar in ("FILE", "PATH", "POLICY"), metavar, action.help or "")


def _policy_words() -> tuple[str, ...]:
    try:
        from rocm_autopatch.policy import load
    except ImportError:  # PyYAML is missing. The commands that need it say so.
        return ()
    return load.names()


def _entry_names() -> tuple[str, ...]:
    """The names of entries that the grammar of policies knows."""
    try:
        from rocm_autopatch.policy import grammar
    except ImportError:  # As above.
        return ()
    return tuple(grammar.entry_names())


def _version_words() -> tuple[str, ...]:
    import rocm_autopatch.policy

    file = Path(rocm_autopatch.policy.__file__).with_name("torch_keys.json")
    return tuple(json.loads(file.read_text(encoding="utf-8"))["versions"])


_BASH = """\
# bash completion for rocm-autopatch, printed by `rocm-autopatch completion bash`.
_rocm_autopatch() {
    local cur=${COMP_WORDS[COMP_CWORD]} at= word before= want= skip= given=0 commands= options=
    local -a positionals=()
    # For bash, : and = are separate words.
    [[ $cur == [:=] ]] && cur=
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        if [[ $word == [:=] ]]; then
            # The next word is the value of --option=value, or the rest of NAME=VALUE or NAME:TAG.
            [[ $before == -* ]] || want=
            skip=1
            continue
        fi
        before=$word
        if [[ $skip ]]; then skip=; continue; fi
        case "$at $word" in
@WALK@
            *" -"*) ;;
            *) ((given++)) ;;
        esac
    done
    case $at in
@PLACES@
    esac
    if [[ ! $skip ]]; then
        if [[ $cur == -* ]]; then
            want=$options
        elif [[ $commands && $given == 0 ]]; then
            want=$commands
        elif ((${#positionals[@]})); then
            if ((given >= ${#positionals[@]} && many)); then ((given = ${#positionals[@]} - 1)); fi
            want=${positionals[given]-$options}
        else
            want=$options
        fi
    fi
    COMPREPLY=()
    if [[ $want == "@files"* ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        want=${want#@files}
    fi
    local -a words=()
    mapfile -t words < <(compgen -W "$want" -- "$cur")
    COMPREPLY=("${words[@]}" "${COMPREPLY[@]}")
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _rocm_autopatch rocm-autopatch
"""


def bash_script(root: CommandTree) -> str:
    """The script for bash 4 and later."""
    walk, places = [], []
    for command in root.all():
        at = " ".join(command.path)
        for name in command.commands:
            inner = " ".join((*command.path, name))
            walk.append(f"{shlex.quote(f'{at} {name}')}) at={shlex.quote(inner)} given=0 ;;")
        for option in command.options:
            if option.wants:
                names = "|".join(shlex.quote(f"{at} {name}") for name in option.names)
                walk.append(f"{names}) skip=1 want={shlex.quote(_wanted_words(option.wants))} ;;")
        options = " ".join(name for option in command.options for name in option.names)
        positionals = " ".join(shlex.quote(_wanted_words(wants)) for wants in command.positionals)
        places.append(
            f"{shlex.quote(at)})\n"
            f"    commands={shlex.quote(' '.join(command.commands))}\n"
            f"    options={shlex.quote(options)}\n"
            f"    positionals=({positionals})\n"
            f"    local many={int(command.many)}\n"
            "    ;;"
        )
    return _BASH.replace("@WALK@", indent("\n".join(walk), " " * 12)).replace(
        "@PLACES@", indent("\n".join(places), " " * 8)
    )


def _wanted_words(wants: WantedArgument) -> str:
    return " ".join([*(["@files"] if wants.files else []), *wants.words])


def zsh_script(root: CommandTree) -> str:
    """The script for zsh. It can be sourced, or be a file in fpath."""
    helpers: dict[str, str] = {}
    functions = [_zsh_function(command, helpers) for command in root.all()]
    return "\n".join(
        [
            "#compdef rocm-autopatch",
            "# zsh completion for rocm-autopatch, printed by `rocm-autopatch completion zsh`.",
            *(body for _, body in sorted(helpers.items())),
            *functions,
            "if [[ $funcstack[1] == _rocm-autopatch ]]; then",
            '    _rocm_autopatch "$@"',
            "else",
            "    compdef _rocm_autopatch rocm-autopatch",
            "fi",
            "",
        ]
    )


def _zsh_function(command: CommandTree, helpers: dict[str, str]) -> str:
    specs = []
    for option in command.options:
        said = f"[{_zsh_text(option.help)}]"
        if option.wants:
            said += f":{_zsh_text(option.wants.metavar)}:{_zsh_action(option.wants, helpers)}"
        names = option.names
        others = "*" if option.again else f"({' '.join(names)})" if len(names) > 1 else ""
        specs += [f"{others}{name}{said}" for name in names]
    for number, wants in enumerate(command.positionals, 1):
        last = command.many and number == len(command.positionals)
        optional = "*:" if last else f"{number}::"
        specs.append(f"{optional}{_zsh_text(wants.metavar)}:{_zsh_action(wants, helpers)}")
    name = _zsh_name(command.path)
    if not command.commands:
        body = "_arguments -s : \\\n" + _zsh_specs(specs)
    else:
        described = " ".join(
            shlex.quote(f"{name}:{_zsh_text(text)}") for name, (text, _) in command.commands.items()
        )
        cases = "\n".join(
            f"        {name}) {_zsh_name(inner.path)} ;;"
            for name, (_, inner) in command.commands.items()
        )
        specs += ["1: :->command", "*:: :->rest"]
        body = (
            'local curcontext="$curcontext" state line\n'
            "typeset -A opt_args\n"
            f"_arguments -C : \\\n{_zsh_specs(specs)}\n"
            "case $state in\n"
            "    command)\n"
            f"        local -a commands=({described})\n"
            "        _describe command commands ;;\n"
            "    rest) case $line[1] in\n"
            f"{cases}\n"
            "    esac ;;\n"
            "esac"
        )
    return f"{name}() {{\n{indent(body, '    ')}\n}}"


def _zsh_name(path: tuple[str, ...]) -> str:
    return "_".join(("_rocm_autopatch", *path)).replace("-", "_")


def _zsh_specs(specs: list[str]) -> str:
    return " \\\n".join(f"    {shlex.quote(spec)}" for spec in specs)


def _zsh_text(text: str) -> str:
    for character in "\\:[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split()).replace("%%", "%")


def _zsh_action(wants: WantedArgument, helpers: dict[str, str]) -> str:
    words = " ".join(map(shlex.quote, wants.words))
    if not wants.words:
        return "_files" if wants.files else "()"
    if not wants.files and not any(word.endswith("=") for word in wants.words):
        return f"({words})"
    name = "_rocm_autopatch__" + "".join(c if c.isalnum() else "_" for c in wants.metavar.lower())
    if wants.files:
        body = f'local -a names=({words})\n    _describe name names\n    _files "$@"'
    else:
        body = f"compadd \"$@\" -S '' -- {words}"
    helpers[name] = f"{name}() {{\n    {body}\n}}"
    return name
