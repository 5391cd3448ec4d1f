"""The compile report's part of a start: it makes PyTorch write its trace, and a profile.

It is loaded only if ROCM_AUTOPATCH_REPORT is in the environment. The variable names a directory. It
is empty if only a profile is wanted. What can't be written is left out, and the program goes on.
"""

import atexit
import functools
import os
import sys

from rocm_autopatch import _RECORD, _read, failure, startup, trust
from rocm_autopatch.compile_report import ENDED, PROCESSES, PROFILE, TRACE, TRACES, WANTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# This module is executed before anything is traced. Torch reads TORCH_TRACE near the end of its own
# import.
_LOGGING = "torch._logging._internal"
# Whether this process is in the report.
_announced: "list[bool]" = []
# Of the facts, what the head of a report names.
_FACTS = ("image", "rocm", "gfx", "gpu", "framework", "framework_version")
# How much of an exception is written down, in characters.
_LONGEST_ERROR = 500


def prepare_trace() -> None:
    """Make torch write its trace, if this process ever imports torch."""
    try:
        _prepare_directory()
    except Exception as error:
        # For example a relative path without a working directory. The policy still applies.
        if failure.programs_own(error):
            raise
        _say_failure("this process writes no compile report: " + _reason_of(error))


def _prepare_directory() -> None:
    environ = os.environ
    hooks: dict[str, Any] = {}
    # The paths are absolute from here on, because a child may have another working directory.
    wanted, traced = [
        named and os.path.abspath(named) for named in (trust.named(WANTED), trust.named(PROFILE))
    ]
    if wanted:
        environ[WANTED] = wanted
        environ.setdefault(TRACE, wanted + "/" + TRACES)
        hooks[_LOGGING] = _check_trace
        # The trace has no modes.
        _at_torch(_tell_modes)
    if traced:
        environ[PROFILE] = traced
        _at_torch(_profile_when_imported)
    if hooks:
        startup.arm(hooks)


def _at_torch(hook: "Any") -> None:
    from rocm_autopatch.startup import hooks as imports

    imports.add(startup.finder, "torch", hook)


def _profile_when_imported(module: "ModuleType") -> None:
    from rocm_autopatch.compile_report import profile

    profile.start_profile(module)


def _check_trace(module: "Any") -> None:
    """Check that torch can write its trace, and record that this process has torch."""
    directory = os.environ.get(WANTED, "")
    traces = os.environ.get(TRACE, "")
    ours = directory + "/" + TRACES
    try:
        if traces != ours:
            _RECORD["notes"].append(
                "the compile report reads the trace of %s=%s, which the program has set"
                % (TRACE, traces)
                if traces
                else "no compile report: the program has unset %s" % TRACE
            )
        for path in (directory, ours):
            if os.path.islink(path):
                # It may be somebody else's link, which would make files elsewhere.
                raise PermissionError("%s is a symbolic link" % path)
        os.makedirs(ours if traces == ours else directory, exist_ok=True)
        # Our own directory is relative, because it may be moved before it is read.
        _announce_process(TRACES if traces == ours else traces)
        atexit.register(_tell_end)
        if traces == ours and not os.access(ours, os.W_OK | os.X_OK):
            raise PermissionError("%s can't be written" % ours)
        if traces:
            _end_trace_on_errors(module)
    except BaseException as error:
        if failure.programs_own(error):
            raise
        # torch would raise inside a compile if it can't make the directory.
        if traces == ours:
            os.environ.pop(TRACE, None)
        _say_failure("this process writes no compile report: " + _reason_of(error))


def _tell_modes(module: "ModuleType") -> None:
    """Write down each mode in which the program asks torch.compile to compile, once."""
    wrapper = getattr(module, "_TorchCompileInductorWrapper", None)
    if wrapper is None or not _announced:
        return
    init, told = wrapper.__init__, set()

    @functools.wraps(init)
    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        mode = args[0] if args else kwargs.get("mode")
        if isinstance(mode, str) and mode not in told:
            told.add(mode)
            try:
                _append_line({"pid": os.getpid(), "mode": mode, "given": _given_mode(mode)})
            except OSError as error:
                _say_failure(
                    "the compile report lacks the modes of this process: " + _reason_of(error)
                )
        init(self, *args, **kwargs)

    wrapper.__init__ = __init__


def _given_mode(mode: str) -> str:
    """What the mode stands for here: the policy's table of modes may name another."""
    table: Any = _RECORD["patches"].get(("compile_modes", "torch"), {"entries": ()})
    given = [row["after"] for row in table["entries"] if row["name"] == mode]
    return str(given[-1]) if given else mode


def _announce_process(traces: str) -> None:
    import time

    # Other people may read the report, so secrets are masked.
    from rocm_autopatch.support import masking

    command = _read("/proc/self/cmdline", 4096).decode("utf-8", "replace").rstrip("\0").split("\0")
    version = sys.modules.get("torch.version")
    row = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "time": time.time(),
        "command": masking.command(command),
        "torch": getattr(version, "__version__", ""),
        "traces": traces,
        "host": os.uname().nodename,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "policy": _named_policy(),
        "facts": {name: fact[0] for name, fact in _RECORD["facts"].items() if name in _FACTS},
        "hip": getattr(version, "hip", None),
    }
    _append_line(row)
    _announced.append(True)


def _named_policy() -> str:
    """The policies that apply, general to specific, or why none does."""
    plan: Any = _RECORD["plan"]
    if _RECORD["active"] and plan:
        only = " (observed, not applied)" if _RECORD["observe"] else ""
        return " < ".join(plan["layers"]) + only
    return "none: %s" % _RECORD["reason"] if _RECORD["reason"] else "none"


def _tell_end() -> None:
    """Write down the exception that ends this process, if one does.

    The interpreter keeps it where a debugger looks for it. Torch up to 2.5 traces no compile that
    ends at the recompile limit, and a trace does not say what a program caught.
    """
    error: Any = getattr(sys, "last_value", None)
    trace: Any = getattr(sys, "last_traceback", None)
    # A prompt goes on after an exception, and pytest keeps those of its tests there.
    if error is None or trace is None or hasattr(sys, "ps1") or trace.tb_frame.f_back:
        return
    try:
        from rocm_autopatch.patches import callers
        from rocm_autopatch.support import masking

        row = {"pid": os.getpid(), ENDED: ""}
        while trace is not None:
            code = trace.tb_frame.f_code
            # The line of the program that led to it.
            if "file" not in row or not callers.INSTALLED.search(code.co_filename):
                row.update(file=code.co_filename, line=trace.tb_lineno, function=code.co_name)
            trace = trace.tb_next
        first = str(error).strip().partition("\n")[0]
        name = type(error).__name__
        row[ENDED] = masking.looks("%s: %s" % (name, first) if first else name)[:_LONGEST_ERROR]
        _append_line(row)
    except Exception as why:
        if failure.programs_own(why):
            raise


def _append_line(row: "dict[str, Any]") -> None:
    """Add a line to what processes tell of themselves."""
    # torch has imported it before.
    import json

    directory = os.environ.get(WANTED, "")
    line = json.dumps(row).encode("ascii") + b"\n"
    # This is one write to the end of the file, because other processes write to it, too.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(directory + "/" + PROCESSES, flags, 0o666)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _end_trace_on_errors(module: "Any") -> None:
    """If the trace can't be written any more (a full disk), end the trace and nothing else.

    torch's own handler raises into the compile if it can't make its file. For each event that it
    can't write, it writes a traceback to stderr.
    """
    handler = module.LazyTraceHandler
    emit, complain = handler.emit, handler.handleError

    def stop(self: "Any", error: OSError) -> None:
        module.trace_log.removeHandler(self)
        self.stream = None
        _say_failure("the compile report of this process ends early: " + _reason_of(error))

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


def _reason_of(error: BaseException) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return "%s: %s" % (error.filename, error.strerror) if error.filename else error.strerror


def _say_failure(text: str) -> None:
    startup.fail("report", text)
