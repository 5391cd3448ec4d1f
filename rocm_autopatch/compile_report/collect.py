"""The compile report's part of a start: that PyTorch writes its trace, and a profile where asked.

Loaded only where ROCM_AUTOPATCH_REPORT is in the environment: a directory, or nothing where only a
profile is asked for. Whatever can't be written is left out, and the program runs on.
"""

import os
import sys

from rocm_autopatch import _RECORD, _read, failure, startup, trust
from rocm_autopatch.compile_report import PROCESSES, PROFILE, TRACE, TRACES, WANTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Executed before anything is traced: torch reads TORCH_TRACE when it is itself all but imported.
_LOGGING = "torch._logging._internal"


def prepare() -> None:
    """Have torch write its trace, if this process ever imports it."""
    try:
        _prepare()
    except Exception as error:
        # A relative path, and the working directory is gone: the policy still applies.
        if failure.programs_own(error):
            raise
        _fail("no compile report of this process: %s" % (error,))


def _prepare() -> None:
    environ = os.environ
    hooks: dict[str, Any] = {}
    # Absolute from here on: a child may work in another directory.
    wanted, traced = [
        named and os.path.abspath(named) for named in (trust.named(WANTED), trust.named(PROFILE))
    ]
    if wanted:
        environ[WANTED] = wanted
        environ.setdefault(TRACE, wanted + "/" + TRACES)
        hooks[_LOGGING] = _traced
    if traced:
        environ[PROFILE] = traced
        waits = "torch" in startup.waiting

        def imported(module: "ModuleType") -> None:
            if waits:
                from rocm_autopatch.startup import patching

                patching.imported(module)
            from rocm_autopatch.compile_report import profile

            profile.start(module)

        hooks["torch"] = imported
    if hooks:
        startup.arm(hooks)


def _traced(module: "Any") -> None:
    """Look to it that torch can write its trace, and say that this process has a torch."""
    directory = os.environ.get(WANTED, "")
    traces = os.environ.get(TRACE, "")
    ours = directory + "/" + TRACES
    try:
        if traces != ours:
            _RECORD["notes"].append(
                "the compile report reads the program's own %s=%s" % (TRACE, traces)
                if traces
                else "no compile report: the program has unset %s" % TRACE
            )
        for path in (directory, ours):
            if os.path.islink(path):
                # Of somebody else, perhaps, to have files made elsewhere.
                raise PermissionError("%s is a symbolic link" % path)
        os.makedirs(ours if traces == ours else directory, exist_ok=True)
        # Relative where it is ours: the directory may be moved before it is read.
        _announce(directory, TRACES if traces == ours else traces)
        if traces == ours and not os.access(ours, os.W_OK | os.X_OK):
            raise PermissionError("%s can't be written" % ours)
        if traces:
            _guard(module)
    except BaseException as error:
        if failure.programs_own(error):
            raise
        # torch would raise inside a compile where the directory can't be made.
        if traces == ours:
            os.environ.pop(TRACE, None)
        _fail("no compile report of this process: %s" % (error,))


def _announce(directory: str, traces: str) -> None:
    # torch has imported these two.
    import json
    import time

    # The report is for others to read.
    from rocm_autopatch import masking

    command = _read("/proc/self/cmdline", 4096).decode("utf-8", "replace").rstrip("\0").split("\0")
    version = sys.modules.get("torch.version")
    row = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "time": time.time(),
        "command": masking.command(command),
        "torch": getattr(version, "__version__", ""),
        "traces": traces,
    }
    line = json.dumps(row).encode("ascii") + b"\n"
    # One write at the end of the file: other processes do the same.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(directory + "/" + PROCESSES, flags, 0o666)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _guard(module: "Any") -> None:
    """End the trace, and nothing else, where it can't be written any more: a full disk, say.

    torch's handler raises into the compile where it can't make its file, and writes a traceback to
    stderr for each event that it can't write.
    """
    handler = module.LazyTraceHandler
    emit, complain = handler.emit, handler.handleError

    def stop(self: "Any", error: OSError) -> None:
        module.trace_log.removeHandler(self)
        self.stream = None
        _fail("the compile report of this process ends early: %s" % error)

    def guarded_emit(self: "Any", record: "Any") -> None:
        try:
            emit(self, record)
        except OSError as error:
            stop(self, error)

    def guarded_complain(self: "Any", record: "Any") -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            stop(self, error)
        else:
            complain(self, record)

    handler.emit = guarded_emit
    handler.handleError = guarded_complain


def _fail(text: str) -> None:
    startup.fail("report", text)
