"""The place of a measurement: which interpreter the command starts, and what that has."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocm_autopatch import OFF, fresh_interpreter, startup
from rocm_autopatch.measure.ab import RequestRefused

_PYTHON = re.compile(r"python[0-9.]*")
# Options of an interpreter. They decide whether our hook runs, and whether it applies.
_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")
_WITH_VALUE = ("-W", "-X")

_PROBE = """
import json, sys
import torch
found = {"device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""}
if sys.argv[1:]:
    from torch._inductor import list_mode_options
    # The compile_modes patch answers in torch's place.
    torchs_own = getattr(list_mode_options, "__wrapped__", list_mode_options)
    found["modes"] = {mode: torchs_own(mode) for mode in sys.argv[1:]}
print("\\n" + json.dumps(found, default=repr))
"""


@dataclass(frozen=True)
class ProgramPlace:
    """Where the command runs.

    ``environ`` is the command's environment without us. ``python`` is the interpreter that it
    starts, with its options. If none can be seen in the command, ``seen`` is False and ``python``
    is our own. ``report`` is what our hook reports there if it is switched on. It is None if the
    hook is not installed there, and ``without`` says why.
    """

    environ: Mapping[str, str]
    python: Sequence[str]
    seen: bool
    report: Mapping[str, Any] | None
    without: str = ""

    def fact(self, name: str) -> str:
        """A fact of the place; "" if it is unknown."""
        facts = self.report["facts"] if self.report else {}
        return str(facts[name]["value"]) if name in facts else ""

    @property
    def switch(self) -> str:
        """What ROCM_AUTOPATCH says: on, off or observe."""
        word = self.environ.get("ROCM_AUTOPATCH", "").strip().lower()
        return "off" if word in OFF else word if word == "observe" else "on"

    @property
    def named(self) -> str:
        """The policy that the environment or the baked plan names here."""
        if self.report and self.report["baked"]:
            return str(startup.load(self.report["baked"])["named"])
        return self.environ.get("ROCM_AUTOPATCH_POLICY", "").strip()

    @property
    def slow_imports(self) -> str:
        """What to say if each run compiles the sources of torch again; "" if it does not."""
        source = (self.report or {"facts": {}})["facts"].get("torch", {}).get("source", "")
        directory = Path(source).parent
        named = self.environ.get("PYTHONDONTWRITEBYTECODE")
        if (
            directory.name != "torch"
            or (directory / "__pycache__").exists()
            or self.environ.get("PYTHONPYCACHEPREFIX")
            or (os.access(directory, os.W_OK) and not named)
        ):
            return ""
        why = "PYTHONDONTWRITEBYTECODE is set" if named else "its directory can't be written"
        return (
            f"torch has no bytecode here, and {why}: each run compiles its sources again, some "
            "seconds. PYTHONPYCACHEPREFIX=DIR and PYTHONDONTWRITEBYTECODE= keep it in a directory"
        )

    @property
    def is_rocm(self) -> bool:
        """Whether our hook applies here without an assumption."""
        return self.fact("accelerator") == "rocm"


def find_program_place(program: Sequence[str]) -> ProgramPlace:
    """The place where *program* runs. Raises Refused if there is no such command."""
    environ = fresh_interpreter.before_us()
    python, seen = interpreter_of(program, environ)
    switched_on = {name: value for name, value in environ.items() if name != "ROCM_AUTOPATCH"}
    report, without = None, ""
    try:
        report = fresh_interpreter.report(torch=False, environ=switched_on, python=python)
    except fresh_interpreter.NoReport as error:
        without = str(error)
    return ProgramPlace(environ, python, seen, report, without)


def interpreter_of(program: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], bool]:
    """The interpreter that a command starts, with its options, and whether the command shows it.

    Raises Refused if there is no such command.
    """
    path = shutil.which(program[0], path=environ.get("PATH"))
    if path is None:
        raise RequestRefused(f"there is no command {program[0]}")
    if _PYTHON.fullmatch(os.path.basename(path)):
        return [path, *_interpreter_options(program[1:])], True
    try:
        with open(path, "rb") as stream:
            first = stream.readline(512).decode("utf-8", "replace")
    except OSError:
        first = ""  # It may be executable but not readable.
    words = first[2:].split() if first.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
    found = shutil.which(words[0], path=environ.get("PATH")) if words else None
    if found and _PYTHON.fullmatch(os.path.basename(found)):
        return [found, *words[1:]], True
    return [sys.executable], False


def _interpreter_options(words: Sequence[str]) -> list[str]:
    options = []
    rest = list(words)
    while rest and (_FLAGS.fullmatch(rest[0]) or rest[0].startswith(_WITH_VALUE)):
        options.append(rest.pop(0))
        if options[-1] in _WITH_VALUE and rest:
            options.append(rest.pop(0))
    # -i would wait for input, and -x skips the first line of a file.
    return [option for option in options if option not in ("-i", "-x")]


def ask_torch(
    python: Sequence[str], environ: Mapping[str, str], modes: Sequence[str] = ()
) -> Mapping[str, Any]:
    """What torch itself reports: ``device``, the GPU's name, and ``modes``, Inductor's options for
    each of *modes*. Raises Refused."""
    environ = {**environ, "ROCM_AUTOPATCH_LOG": "quiet"}
    try:
        found: Mapping[str, Any] = fresh_interpreter.answer(
            _PROBE, *modes, environ=environ, python=python
        )
    except fresh_interpreter.NoReport as error:
        raise RequestRefused(f"torch gives no answer: {error}") from None
    return found
