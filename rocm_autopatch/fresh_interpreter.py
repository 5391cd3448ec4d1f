"""Fresh interpreters that run code of ours. They start as a program would in this environment.

Nothing is imported there from the working directory (safe_path.py).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import rocm_autopatch
from rocm_autopatch import _ASSUME, _RECORD, startup
from rocm_autopatch.support import masking, progress, safe_path
from rocm_autopatch.support.user_error import UserError


class NoReport(UserError):
    """The interpreter gave no report; the text says why."""


# How the error begins that says how the import of torch ended the interpreter.
DIED = "import torch: "
# Run in the fresh interpreter. What is imported may print, so reports come back through a pipe of
# their own, a line each: one of the start, and with torch, one of what it then met.
_CHILD = """
import importlib, json, os, sys
pipe, torch, scratch = int(sys.argv[1]), sys.argv[2] == "torch", sys.argv[3]
failed = []
given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")

def send(found):
    text = memoryview((json.dumps(found, default=repr) + "\\n").encode())
    while text:
        text = text[os.write(pipe, text):]

try:
    import rocm_autopatch
    report = rocm_autopatch.status()
    send(report)
    targets = [patch["target"] for patch in report["patches"]] if torch else []
    # torch 2.10 and later make the directory of their caches when they are imported.
    if scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
    try:
        for target in ["torch", *targets] if targets else ():
            importlib.import_module(target)
    except BaseException as error:
        failed.append("import %s: %s: %s" % (target, type(error).__name__, error))
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if given is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = given
    if torch:
        report = rocm_autopatch.status() if targets else report
        report["errors"] += failed
        send(report)
except BrokenPipeError:
    pass  # Who asked has ended.
except BaseException as error:
    send("%s: %s" % (type(error).__name__, error))
"""


# From here on, stdout is for what this code itself prints. What it imports prints to nowhere.
_ALONE = """
import functools, os, sys
sys.stdout.flush()
print = functools.partial(print, file=os.fdopen(os.dup(1), "w", encoding="utf-8"), flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
"""


# Run without us: what the other one imports.
_IMPORTS = """
import importlib, sys
try:
    for name in sys.argv[1:]:
        importlib.import_module(name)
except BaseException:
    pass
"""


def command(code: str, *arguments: str, python: Sequence[str] = ()) -> list[str]:
    """The command that runs *code*; *python* is another interpreter with its options.

    ``sys.argv[1:]`` are the arguments there, and ``__file__`` is the file that all its frames name.
    """
    return [*(python or [sys.executable]), safe_path.__file__, code, *arguments]


def report(
    torch: bool,
    assume: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    python: Sequence[str] = (),
    started: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """What a fresh interpreter reports, with torch and the patched modules imported if *torch*.

    *assume* are facts, NAME=VALUE, beyond those of ROCM_AUTOPATCH_ASSUME. *environ* stands for this
    process's environment, *python* is another interpreter with its options. If the import of torch
    ends the interpreter, the report is one without torch, and an error in it says so.

    *started* gets the report of the start before torch is imported. If nobody reads stdout then,
    the interpreter is ended. Raises NoReport, and with *started*, BrokenPipeError.
    """
    given = environment(assume, environ)
    found: list[dict[str, Any]] = []

    def take(text: str) -> None:
        said: dict[str, Any] | str = json.loads(text)
        if isinstance(said, str):
            raise NoReport("; ".join([said, *_left_out(given)]))
        said["notes"] += _left_out(given)
        found.append(said)
        if started and len(found) == 1:
            started(said)

    status = _ask(torch, given, python, take, None if started is None else _stdout())
    if not found:
        raise NoReport(f"the interpreter that makes the report {how_it_ended(status)}")
    if torch and len(found) == 1:
        patched = [patch["target"] for patch in found[0]["patches"]]
        found[0]["errors"].append(_died(patched, how_it_ended(status), given, python))
    return found[-1]


def _stdout() -> int | None:
    """The descriptor of stdout, None if it is closed or no file."""
    try:
        return sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def how_it_ended(status: int) -> str:
    """How an interpreter without an answer ended, by its status in subprocess."""
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with status {status}"


def _died(patched: Iterable[str], why: str, given: Mapping[str, str], python: Sequence[str]) -> str:
    """What is said of an import of torch that ends the interpreter: whether it is our doing."""
    targets = ["torch", *dict.fromkeys(patched)]
    done = subprocess.run(
        command(_IMPORTS, *targets, python=python),
        env={**safe_path.absolute(given), "ROCM_AUTOPATCH": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    without = "it goes on"
    if done.returncode:
        how = how_it_ended(done.returncode)
        without = "so it is, too" if how == why else f"it {how}"
    return (
        f"{DIED}the interpreter {why}; without rocm_autopatch (ROCM_AUTOPATCH=off), "
        f"{without}. This report is of a start without torch, as with --no-torch"
    )


def _ask(
    torch: bool,
    given: Mapping[str, str],
    python: Sequence[str],
    take: Callable[[str], None],
    watched: int | None,
) -> int:
    """Have *take* get each report of a fresh interpreter as JSON; return how that ended."""
    if torch:
        progress.tell_step("a fresh interpreter imports torch")
    read, write = os.pipe()
    scratch = _scratch() if torch else ""
    with open(read, "rb", buffering=0):
        child = subprocess.Popen(
            command(_CHILD, str(write), "torch" if torch else "", scratch, python=python),
            env=safe_path.absolute(given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(write,),
            # A terminal's Ctrl-C is for this process, which ends the other one.
            start_new_session=True,
        )
        os.close(write)
        try:
            for text in _received(read, watched):
                take(text)
            return child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            if scratch:
                shutil.rmtree(scratch, ignore_errors=True)


def _received(pipe: int, watched: int | None) -> Iterator[str]:
    """The lines that come through a pipe, each when it is whole.

    Raises BrokenPipeError when nobody reads any more what is written to *watched*.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if watched is not None:
        waiting.register(watched, 0)  # What is polled in any case: an error, or the other end gone
    rest = b""
    while True:
        if any(one == watched for one, _ in waiting.poll()):
            raise BrokenPipeError
        part = os.read(pipe, 1 << 16)
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.decode() for line in whole)
        if not part:
            return


def _scratch() -> str:
    """A directory for what torch makes when it is imported, "" where there is no room for one."""
    try:
        return tempfile.mkdtemp(prefix="rocm-autopatch-")
    except OSError:
        return ""


def answer(
    code: str, *arguments: str, environ: Mapping[str, str], python: Sequence[str] = ()
) -> Any:
    """What *code* prints as JSON in its last line, in a fresh interpreter in *environ*.

    What it imports may print, too, also at the exit. Raises NoReport with the last line of its
    stderr.
    """
    progress.tell_step("a fresh interpreter looks at this place")
    done = subprocess.run(
        command(_ALONE + code, *arguments, python=python),
        env=safe_path.absolute(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NoReport(last[-1])
    return json.loads(done.stdout.splitlines()[-1])


def _left_out(environ: Mapping[str, str]) -> list[str]:
    entries = safe_path.left_out(environ)
    text = (
        f"PYTHONPATH={environ.get('PYTHONPATH')}: these entries are relative, so they were not read"
    )
    return [f"{text}: {', '.join(entries)}"] if entries else []


def environment(
    assume: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What the interpreter is given: *environ*, or before_us(), quiet and with *assume*."""
    given = dict(before_us() if environ is None else environ)
    if assume:
        given[_ASSUME] = ",".join(filter(None, (given.get(_ASSUME, ""), *assume)))
    # Whatever the child has to say is in its report.
    given["ROCM_AUTOPATCH_LOG"] = "quiet"
    return given


def secrets() -> masking.Secrets:
    """The secrets of this place, including those that our own hook removed from this process."""
    return masking.Secrets({**os.environ, **before_us()})


def before_us() -> dict[str, str]:
    """The environment as it was before this process started and our own hook changed it."""
    before_us = dict(os.environ)
    for (name, *_), before, status in _RECORD["env"]:
        if status == "applied":
            if before is None:
                before_us.pop(name, None)
            else:
                before_us[name] = before
    if rocm_autopatch._started:
        # Where this process has no hook, it is what a process above has done.
        before_us.pop(startup.SAID, None)
    return before_us
