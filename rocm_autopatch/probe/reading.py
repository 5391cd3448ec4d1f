"""Start separate interpreters that read variables and config values, several at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import _read as _read_file
from rocm_autopatch import _read_torch, fresh_interpreter, startup
from rocm_autopatch.probe.answers import (
    ChildAnswer,
    ChildTaskText,
    FailedImport,
    PlainValue,
    TorchFound,
)
from rocm_autopatch.support import progress, safe_path
from rocm_autopatch.support.text import counted

_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class ChildTask:
    """What a child does: with or without our hook, with or without what ``site`` runs, without
    which variables, and which modules it imports before torch."""

    hook: bool = False
    site: bool = True
    without: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChildReading:
    """What a child found, in the form of child.py, and why it died if it did.

    If the import of torch ends a child, another one imports nothing, and *found* is its answer.
    """

    ask: ChildTask
    found: ChildAnswer
    died: str | None = None

    @property
    def values(self) -> dict[str, PlainValue]:
        """The config values that the program's first thread reads, by full name."""
        return {
            f"{module}.{key}": value
            for module, one in self.found.get("modules", {}).items()
            for key, value in one["values"].items()
        }

    @property
    def threads(self) -> dict[str, PlainValue]:
        """The config values that differ in a new thread."""
        return {
            f"{module}.{key}": value
            for module, one in self.found.get("modules", {}).items()
            for key, value in one["threads"].items()
        }

    @property
    def failed(self) -> list[FailedImport]:
        """The imports that failed, each with its error and place."""
        if self.died:
            return [{"import": "torch", "error": self.died, "file": "", "line": 0, "last_read": ""}]
        return self.found["failed"]

    @property
    def torch(self) -> TorchFound:
        """File, version, hip and cuda of torch; {} if there is no torch."""
        return self.found.get("torch", {})

    @property
    def environ(self) -> dict[str, str]:
        """The variables at the end."""
        return self.found.get("environ", {})


def read_children(asks: Sequence[ChildTask], environment: Mapping[str, str]) -> list[ChildReading]:
    """Start a child for each, at most as many at a time as there are processors."""
    progress.tell_step(f"{counted(len(asks), 'fresh interpreter')} read what torch has here")
    with ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 1)) as pool:
        return list(pool.map(lambda ask: _read_child(ask, environment), asks))


def _read_child(ask: ChildTask, environment: Mapping[str, str]) -> ChildReading:
    child = {name: value for name, value in environment.items() if name not in ask.without}
    if not ask.hook:
        child["ROCM_AUTOPATCH"] = "off"
    child.pop(startup.SAID, None)
    given: ChildTaskText = {
        "hook": ask.hook,
        "site": ask.site,
        "without": sorted(ask.without),
        "imports": [*ask.imports],
        "path": [*ask.path],
        "torch": True,
    }
    found, died = _child_answer(given, child)
    if found is None:
        # What dies is the import of torch, or of a framework: a start imports neither.
        found, _ = _child_answer({**given, "torch": False}, child)
    if found is None:
        return ChildReading(ask, {}, died)
    torch = found["torch"]
    if torch and not torch.get("version"):
        # It could not be imported.
        facts: dict[str, tuple[str, str]] = {}
        path = str(Path(torch["file"]).with_name("version.py"))
        _read_torch(facts, path, _read_file(path).decode("utf-8", "replace"))
        torch["hip"], torch["cuda"] = (
            facts.get(name, ("", ""))[0] or None for name in ("hip", "cuda")
        )
        torch["version"] = facts.get("torch", ("", ""))[0]
    return ChildReading(ask, found, died)


def _child_answer(
    given: ChildTaskText, environment: Mapping[str, str]
) -> tuple[ChildAnswer | None, str | None]:
    """What a child answers and None, or None and why it ended without an answer."""
    # With our hook, Python itself has to run site. Otherwise the child runs it and watches.
    flags = [] if given["hook"] else ["-S"]
    code = _CHILD.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="rocm-autopatch-") as directory:
        answer = Path(directory, "answer")
        with open(Path(directory, "stderr"), "w+b") as stderr:
            status = subprocess.run(
                fresh_interpreter.command(
                    code, json.dumps(given), str(answer), python=[sys.executable, *flags]
                ),
                env=safe_path.absolute(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            ).returncode
            stderr.seek(0)
            said = stderr.read()[-10000:].decode("utf-8", "replace").strip().splitlines()
        if answer.exists():
            return json.loads(answer.read_text(encoding="utf-8")), None
    last = f": {said[-1]}" if said else ""
    return None, f"the interpreter {fresh_interpreter.how_it_ended(status)}{last}"


def task_without(ask: ChildTask, names: Iterable[str]) -> ChildTask:
    """The same without these variables, too."""
    return ChildTask(ask.hook, ask.site, ask.without | frozenset(names), ask.imports, ask.path)
