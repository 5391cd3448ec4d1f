"""Run an experiment of manifest.yaml by its name, or list all of them.

    python -m experiments                        # the list
    python -m experiments NAME [OPTIONS]         # OPTIONS go to the experiment's command
    python -m experiments --keep NAME [OPTIONS]  # and write results/NAME.json beside the manifest

The exit status is the experiment's: 128 + N if signal N ended it, 130 after Ctrl-C. It is 1 if what
the experiment needs is missing here, or if a file can't be read or written, and 2 for wrong usage.
``--manifest FILE`` takes another manifest. ``--keep`` may stand behind NAME, too.

The words of a command: ``python`` at its beginning and ``PYTHON`` are the interpreter that runs
this, ``WORK`` is .work/experiments/NAME.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MANIFEST = HERE / "manifest.yaml"
# What stands in the manifest of an experiment that nobody has run, or whose page does not say it.
NONE_YET, NOT_SAID = "none yet", "not said"
_LINES = 20  # of the output's end, in a result
_LINE = 400  # characters of such a line
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Paths of a machine; an address of the web, the first group, is none.
_PATHS = re.compile(
    r"(\b(?!file:)[a-z][a-z+.-]*://\S*)"
    r"|(?<![\w.)\]>/])(?:file://)?/[\w.+@~%-][^\s'\",;:)]*"
)
_TORCH = (
    "import json, torch; print(json.dumps([torch.__version__, "
    "[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]]))"
)


class ExperimentError(Exception):
    """What a user can mend: the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Needs:
    """What a machine must have. ``given`` is what a user adds as options, ``before`` ran before."""

    gpus: int = 0
    packages: tuple[str, ...] = ()
    wheel: bool = False
    rocm_label: bool = False
    root: bool = False
    network: bool = False
    quiet: bool = False
    disk_gb: float = 0
    before: str = ""
    given: str = ""

    def words(self) -> str:
        """All of it as one phrase; "nothing more" if that is all."""
        found = [
            (f"{self.gpus} GPUs" if self.gpus > 1 else "a GPU") if self.gpus else "",
            *self.packages,
            "the wheel" if self.wheel else "",
            "a ROCm torch or the label of one" if self.rocm_label else "",
            "root" if self.root else "",
            "network" if self.network else "",
            "a quiet machine" if self.quiet else "",
            f"{self.disk_gb:g} GB of disk" if self.disk_gb else "",
            f"{self.before} before it" if self.before else "",
            self.given,
        ]
        return ", ".join(filter(None, found)) or "nothing more"

    def missing(self, options: Sequence[str]) -> str:
        """What is seen to be missing here, and what to do; "" if nothing is.

        A GPU is not looked for: with an option, some do without one.
        """
        if self.root and os.geteuid() != 0:
            return "root"
        if self.given and not options:
            return f"an option: {self.given}"
        absent = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if absent:
            return (
                f"{', '.join(absent)}: run it by an interpreter that has them, PYTHON -m "
                "experiments or make experiment WITH=PYTHON"
            )
        return ""


@dataclass(frozen=True)
class Experiment:
    """A row of the manifest.

    ``minutes`` is None where nobody has said them. ``last_run`` is a date, NONE_YET or NOT_SAID;
    ``machine`` and ``result`` are text, or one of the two. A result is a file of the checkout, with
    an anchor if it is a page. ``wanted`` says where a run is wanted.
    """

    name: str
    purpose: str
    command: str
    needs: Needs
    minutes: float | None
    last_run: datetime.date | str
    machine: str
    result: str
    nightly: bool = False
    wanted: str = ""
    notes: str = ""

    @property
    def place(self) -> str:
        """The directory that WORK stands for."""
        return f".work/experiments/{self.name}"

    def words(self, options: Sequence[str]) -> list[str]:
        """The command as it is run."""
        first, *rest = shlex.split(self.command)
        stands_for = {"PYTHON": sys.executable, "WORK": self.place}
        first = sys.executable if first == "python" else first
        return [first, *(stands_for.get(word, word) for word in rest), *options]


@dataclass
class Outcome:
    """How a run ended, and the last bytes that it wrote if somebody asked for them."""

    status: int
    seconds: float
    output: bytearray = field(default_factory=bytearray)


def read_manifest(path: Path = MANIFEST) -> dict[str, Experiment]:
    """The experiments by name. Raises ExperimentError if the file can't be used."""
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ExperimentError(f"{path} can't be read: {error}") from None
    if not isinstance(rows, dict):
        raise ExperimentError(f"{path} is no mapping of names to experiments")
    found = {}
    for name, row in rows.items():
        where = f"{path}: {name}"
        if not isinstance(row, dict):
            raise ExperimentError(f"{where} is no mapping")
        needs = _made(Needs, row.get("needs"), f"{where}: needs")
        found[name] = _made(Experiment, {**row, "name": name, "needs": needs}, where)
    return found


def _made(kind: Any, row: object, where: str) -> Any:
    """A dataclass from a mapping. Raises ExperimentError if keys are unknown or missing."""
    if not isinstance(row, dict):
        raise ExperimentError(f"{where} is no mapping")
    known = {one.name for one in fields(kind)}
    needed = {one.name for one in fields(kind) if one.default is MISSING}
    for what, keys in (("unknown", row.keys() - known), ("missing", needed - row.keys())):
        if keys:
            raise ExperimentError(f"{where}: {what}: {', '.join(sorted(map(str, keys)))}")
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})


def listed(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """The lines of the list."""
    width = max(map(len, experiments), default=0)
    for one in experiments.values():
        minutes = "? min" if one.minutes is None else f"{one.minutes:g} min"
        nightly = "; by night, too" if one.nightly else ""
        yield f"{one.name:<{width}}  {minutes:>7}  {one.purpose}"
        yield f"{'':<{width}}  {'':>7}  needs: {one.needs.words()}{nightly}"


def run(command: Sequence[str], look: bool) -> Outcome:
    """Run a command in the checkout. With *look*, what it writes is shown and kept.

    Raises ExperimentError if it can't be started.
    """
    begun = time.monotonic()
    pipes = (subprocess.PIPE, subprocess.STDOUT) if look else (None, None)
    try:
        process = subprocess.Popen(command, cwd=ROOT, stdout=pipes[0], stderr=pipes[1])
    except OSError as error:
        raise ExperimentError(f"{command[0]} can't be started: {error.strerror}") from None
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    outcome = Outcome(0, 0.0)
    reader = threading.Thread(target=_pass_on, args=(process.stdout, outcome.output), daemon=True)
    if look:
        reader.start()
    try:
        status = process.wait()
    except KeyboardInterrupt:  # The command got it, too.
        process.wait()
        status = 130
    if look:
        reader.join(5)  # What the command has left behind may hold the pipe for ever.
    outcome.status = 128 - status if status < 0 else status
    outcome.seconds = time.monotonic() - begun
    return outcome


def _pass_on(pipe: Any, kept: bytearray) -> None:
    """Show what comes out of a pipe at once, and keep its end, also if nobody reads any more."""
    shown = True
    while part := os.read(pipe.fileno(), 65536):
        try:
            shown = shown and os.write(sys.stdout.fileno(), part) > 0
        except OSError:
            shown = False
        kept += part
        del kept[: -_LINES * _LINE * 4]


def result(one: Experiment, options: Sequence[str], outcome: Outcome) -> dict[str, Any]:
    """What is kept of a run: nothing in it names this machine or a path of it."""
    torch, gpus = _torch()
    text = _COLOUR.sub("", outcome.output.decode(errors="replace")).replace("\r", "\n")
    lines = [line for line in text.splitlines() if line.strip()][-_LINES:]
    return {
        "name": one.name,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "torch": torch,
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "gpus": gpus},
        "command": " ".join([one.command, *(shlex.quote(nameless(word)) for word in options)]),
        "status": outcome.status,
        "seconds": round(outcome.seconds, 1),
        "output": [nameless(line)[:_LINE] for line in lines],
    }


def _torch() -> tuple[str | None, list[str]]:
    """The version of torch here, and the names of its GPUs; None if there is no torch."""
    if importlib.util.find_spec("torch") is None:
        return None, []
    env = {**os.environ, "ROCM_AUTOPATCH": "off"}
    try:
        told = subprocess.run(
            [sys.executable, "-c", _TORCH], env=env, capture_output=True, timeout=300, check=True
        )
        version, gpus = json.loads(told.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, []
    return version, gpus


def _cpu() -> str:
    """The CPU's model, as Linux tells it, or else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def nameless(text: str) -> str:
    """*text* without paths of this machine and without its name. Paths in the checkout stay."""
    text = text.replace(f"{ROOT}/", "")
    known = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, tempfile.gettempdir()}
    for path in sorted(known - {"/"}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(path)}(?![\w.-])", "/DIRECTORY", text)
    text = _PATHS.sub(lambda found: found[1] or _short(found[0]), text)
    names = {socket.gethostname(), platform.node(), socket.gethostname().partition(".")[0]}
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "HOST", text)
    return text


def _short(path: str) -> str:
    """A path without its directories, which are the machine's."""
    last = path.rstrip("/").rpartition("/")[2]
    return last if last == "DIRECTORY" else f"DIRECTORY/{last}"


def keep(kept: Mapping[str, Any], file: Path) -> None:
    """Write a result as a whole. Raises OSError."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def chosen(name: str, experiments: Mapping[str, Experiment]) -> Experiment:
    """The experiment of a name. Raises LookupError with a suggestion."""
    if name in experiments:
        return experiments[name]
    close = difflib.get_close_matches(name, experiments, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "python -m experiments lists them."
    raise LookupError(f"There is no experiment {name!r}: {hint}")


def main(words: Sequence[str]) -> int:
    """Do what the words of the command line ask for; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        usage="%(prog)s [-h] [--manifest FILE] [--keep] [NAME [OPTIONS ...]]",
        description="Run an experiment by its name. Without a name: the list of them.",
    )
    parser.add_argument("--manifest", type=Path, default=MANIFEST, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="write results/NAME.json")
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTIONS")
    asked = parser.parse_args(words)
    options = [word for word in asked.options if word != "--keep"]
    try:
        experiments = read_manifest(asked.manifest)
        if asked.name is None:
            print("\n".join(listed(experiments)))
            return 0
        one = chosen(asked.name, experiments)
        if missing := one.needs.missing(options):
            raise ExperimentError(f"{one.name} needs {missing}")
        return _run(one, options, asked.keep or options != asked.options, asked.manifest)
    except LookupError as error:
        print(f"experiments: {error.args[0]}", file=sys.stderr)
        return 2
    except (ExperimentError, OSError) as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 1


def _run(one: Experiment, options: Sequence[str], kept: bool, manifest: Path) -> int:
    file = manifest.resolve().parent / "results" / f"{one.name}.json"
    if kept:  # Before an hour is spent.
        file.parent.mkdir(exist_ok=True)
        if not os.access(file.parent, os.W_OK):
            raise ExperimentError(f"{file.parent} can't be written")
    words = one.words(options)
    if one.place in words:
        (ROOT / one.place).mkdir(parents=True, exist_ok=True)
    outcome = run(words, kept)
    said = f"{one.name}: exit status {outcome.status} after {outcome.seconds:.1f} s"
    print(f"experiments: {said}", file=sys.stderr)
    if kept:
        keep(result(one, options, outcome), file)
        print(f"experiments: {file} is written; manifest.yaml may name it", file=sys.stderr)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
