"""Fresh interpreters that run code of ours. They start as a program would in this environment.

Nothing is imported there from the working directory (search_path.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import rocm_autopatch
from rocm_autopatch import _ASSUME, _RECORD, masking, search_path, startup


class NoReport(Exception):
    """The interpreter gave no report; the text says why."""


# How the error begins that says how the import of torch ended the interpreter.
DIED = "import torch: "
# Run in the fresh interpreter. The report comes back through a pipe of its own, because what is
# imported may print.
_CHILD = """
import importlib, json, os, sys
pipe, torch, scratch = int(sys.argv[1]), sys.argv[2] == "torch", sys.argv[3]
failed = []
given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
try:
    import rocm_autopatch
    targets = [patch["target"] for patch in rocm_autopatch.status()["patches"]] if torch else []
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
    report = rocm_autopatch.status()
    report["errors"] += failed
    text = json.dumps(report, default=repr)
except BaseException as error:
    text = json.dumps("%s: %s" % (type(error).__name__, error))
try:
    with open(pipe, "w", encoding="utf-8") as stream:
        stream.write(text)
except BrokenPipeError:
    pass  # Who asked has ended.
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
    return [*(python or [sys.executable]), search_path.__file__, code, *arguments]


def report(
    torch: bool,
    assume: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    python: Sequence[str] = (),
) -> dict[str, Any]:
    """What a fresh interpreter reports, with torch and the patched modules imported if *torch*.

    *assume* are facts, NAME=VALUE, beyond those of ROCM_AUTOPATCH_ASSUME. *environ* stands for this
    process's environment, *python* is another interpreter with its options. If the import of torch
    ends the interpreter, the report is one without torch, and an error in it says so. Raises
    NoReport.
    """
    given = environment(assume, environ)
    text, status = _ask(torch, given, python)
    why = ""
    if torch and not text:
        why, torch = how_it_ended(status), False
        text, status = _ask(torch, given, python)
    if not text:
        raise NoReport(f"the interpreter that makes the report {how_it_ended(status)}")
    found: dict[str, Any] | str = json.loads(text)
    if isinstance(found, str):
        raise NoReport("; ".join([found, *_left_out(given)]))
    found["notes"] += _left_out(given)
    if why:
        found["errors"].append(_died(found, why, given, python))
    return found


def how_it_ended(status: int) -> str:
    """How an interpreter without an answer ended, by its status in subprocess."""
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with status {status}"


def _died(found: Mapping[str, Any], why: str, given: Mapping[str, str], python: Any) -> str:
    """What is said of an import of torch that ends the interpreter: whether it is our doing."""
    targets = ["torch", *dict.fromkeys(patch["target"] for patch in found["patches"])]
    done = subprocess.run(
        command(_IMPORTS, *targets, python=python),
        env={**search_path.absolute(given), "ROCM_AUTOPATCH": "off"},
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


def _ask(torch: bool, given: Mapping[str, str], python: Sequence[str]) -> tuple[str, int]:
    """The report as JSON, "" if the interpreter ended without one, and its status."""
    read, write = os.pipe()
    scratch = _scratch() if torch else ""
    with open(read, encoding="utf-8") as stream:
        child = subprocess.Popen(
            command(_CHILD, str(write), "torch" if torch else "", scratch, python=python),
            env=search_path.absolute(given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(write,),
            # A terminal's Ctrl-C is for this process, which ends the other one.
            start_new_session=True,
        )
        os.close(write)
        try:
            text = stream.read()
            status = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            if scratch:
                shutil.rmtree(scratch, ignore_errors=True)
    return text, status


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
    done = subprocess.run(
        command(_ALONE + code, *arguments, python=python),
        env=search_path.absolute(environ),
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
    entries = search_path.left_out(environ)
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
