"""Make the completion scripts of the command line, which the wheel has, with shtab.

python tools/completions.py    writes rocm_autopatch/cli/completions/

The choices of an argument tell what it takes. Without choices, its metavar tells: ``FILE`` and
``PATH`` are files, ``DIR`` is a directory, ``POLICY`` is a built-in policy or a file, ``VERSIONS``
are torch releases, and ``NAME=VALUE`` is a fact. What ``values.parse_entry`` reads is the name of
an entry of a policy. A new command that uses these needs no change here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rocm_autopatch.policy
from rocm_autopatch.cli import command_line, completion, values
from rocm_autopatch.policy import grammar, load
from rocm_autopatch.startup import assume

# What a shell offers: words, and files beside them. The names of functions of ours.
_POLICY, ENTRY, _FACT, _VERSION = (
    f"_rocm_autopatch_{name}" for name in ("policies", "entries", "facts", "versions")
)


def offered_words() -> dict[str, tuple[str, ...]]:
    """What each function offers."""
    keys = Path(rocm_autopatch.policy.__file__).with_name("torch_keys.json")
    return {
        _POLICY: load.names(),
        ENTRY: tuple(grammar.entry_names()),
        _FACT: tuple(f"{name}=" for name in assume.FACTS if name != "image"),
        _VERSION: tuple(json.loads(keys.read_text(encoding="utf-8"))["versions"]),
    }


def preambles() -> dict[str, str]:
    """The functions, for each shell."""
    bash, zsh = [], []
    for name, words in offered_words().items():
        listed = " ".join(words)
        files = '; compgen -f -- "$1"' if name == _POLICY else ""
        bash.append(f"{name}() {{\n  compgen -W '{listed}' -- \"$1\"{files}\n}}")
        ends = "-S '' " if name == _FACT else ""
        files = "; _files" if name == _POLICY else ""
        zsh.append(f"{name}() {{\n  compadd {ends}-- {listed}{files}\n}}")
    return {"bash": "\n".join(bash), "zsh": "\n".join(zsh)}


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def described_parser() -> argparse.ArgumentParser:
    """The parser of the command line, with what shtab reads of each argument."""
    import shtab

    made = command_line.make_parser()
    by_metavar = {
        **dict.fromkeys(("FILE", "PATH", "FILE.prom"), shtab.FILE),
        "DIR": shtab.DIRECTORY,
        "POLICY": _POLICY,
        "NAME=VALUE": _FACT,
        "VERSIONS": _VERSION,
    }
    for parser in parsers(made):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                # A list of commands has a line for each, as that of --help.
                for listed in action._choices_actions:
                    action.choices[listed.dest].description = listed.help
            how = by_metavar.get(str(action.metavar))
            if action.type is values.parse_entry:
                how = ENTRY
            if how is not None and action.choices is None:
                action.complete = (  # type: ignore[attr-defined]
                    {"bash": how, "zsh": how} if isinstance(how, str) else how
                )
    return made


# bash puts a space behind a word that is complete. Behind NAME= comes the value.
_COMPLETE = "complete -o bashdefault -F _shtab_rocm_autopatch rocm-autopatch"
_NO_SPACE = """\
_rocm_autopatch_complete() {
  _shtab_rocm_autopatch "$@"
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -o bashdefault -F _rocm_autopatch_complete rocm-autopatch"""

# zsh reads a script by "source", or as a function of fpath.
_AS_SHTAB_ENDS = "if [[ $zsh_eval_context[-1] == eval ]]; then"
_SOURCED = "if [[ $funcstack[1] != _rocm-autopatch ]]; then"


def scripts() -> dict[str, str]:
    """The text of each script, by the shell."""
    import shtab

    before = preambles()
    made = {
        shell: shtab.complete(described_parser(), shell, preamble=before[shell]).rstrip() + "\n"
        for shell in completion.SHELLS
    }
    assert _COMPLETE in made["bash"]
    assert _AS_SHTAB_ENDS in made["zsh"]
    return {
        "bash": made["bash"].replace(_COMPLETE, _NO_SPACE),
        "zsh": made["zsh"].replace(_AS_SHTAB_ENDS, _SOURCED),
    }


if __name__ == "__main__":
    for shell, text in scripts().items():
        completion.script_file(shell).write_text(text, encoding="utf-8")
