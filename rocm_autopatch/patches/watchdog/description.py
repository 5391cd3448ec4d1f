"""What the watchdog says of a compile: who compiles what, what it is doing, and how to stop it."""

import os
import sys

from rocm_autopatch.patches import callers
from rocm_autopatch.patches.watchdog import frame_details, underway
from rocm_autopatch.patches.watchdog.phases import PHASES, find_phase
from rocm_autopatch.support.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import GraphModule

# What a line has in it if a worker is compiling C++: our own words, or the compiler's command.
_CPP = ("compiling C++", "cc1plus", "g++", "c++ ", "clang")
# What stops a phase because of what runs in it.
_REMOVE_PASS = "remove the *_custom_*_pass that the program sets in torch._inductor.config"
_NO_SYMBOLS = "use torch.compile(dynamic=False), which has no symbolic shapes"


def describe_compile(watch: "underway.Watch") -> str:
    """Who compiles what, which phase it is in and where, and how to stop it. Never raises."""
    stack = list(_compile_frames(watch))
    name, at, inner = _current_phase(stack)
    phase, within = PHASES[name], PHASES[inner]
    said = [phase.words, *_try_to_tell(phase.details, at)]
    if within.is_build:
        said.append(within.words)
    elif phase.has_helpers:
        said += _try_to_tell(_other_threads, None)
    parts = [
        _compiled_subject(watch),
        *_try_to_tell(_calling_line, watch),
        ", ".join(said),
        *_try_to_tell(_innermost_place, stack),
    ]
    if phase.calls_libraries and not within.is_build:
        parts += _try_to_tell(frame_details.tell_libraries, at)
    if phase.has_helpers or phase.is_build:
        parts += _try_to_tell(_child_processes, None)
    if name == "workers" and any(word in part for word in _CPP for part in parts):
        # Without workers, this process would wait for the same compiler.
        name = "cpp"
    parts.append("to stop it: " + _ways_to_stop(name, at, stack))
    return "; ".join([part for part in parts if part])


def _try_to_tell(teller: "Optional[Callable[[Any], list[str]]]", what: object) -> "list[str]":
    """What *teller* reads from torch's own locals. This torch may have other locals."""
    try:
        return teller(what) if teller else []
    except Exception:
        return ["but torch %s tells no details" % frame_details.torch_version()]


def _compile_frames(watch: "underway.Watch") -> "Iterator[FrameType]":
    """The frames of a compile, the innermost first, without the frames that called it."""
    frame = sys._current_frames().get(watch.ident)
    while frame is not None:
        yield frame
        if frame is watch.frame:
            return
        frame = frame.f_back


def _current_phase(stack: "list[FrameType]") -> "tuple[str, Optional[FrameType], str]":
    """The phase, its frame, and the phase within it, such as compiling C++ while autotuning."""
    within = ""
    first = None
    for frame in stack:
        name = find_phase(frame.f_code)
        if PHASES[name].is_search:
            return name, frame, within if within != name else ""
        if name and first is None:
            within, first = name, frame
    return within, first, ""


def _compiled_subject(watch: "underway.Watch") -> str:
    """What is compiled: the innermost frame, graph and kernel that are known."""
    said: dict[str, str] = {}
    for kind, args, kwargs, compile_id in list(watch.levels):
        try:
            said[kind] = _SUBJECTS[kind](args, kwargs, compile_id)
        except Exception:
            said[kind] = "a %s" % kind
    return ", ".join(said.values()) or "a compile"


def _frame_subject(args: "tuple[Any, ...]", kwargs: "dict[str, Any]", compile_id: object) -> str:
    return _frame_text(*underway.function(args, kwargs)) + _compile_text(compile_id)


def _calling_line(watch: "underway.Watch") -> "list[str]":
    """The line of the program that called the function, if a framework's function is compiled."""
    codes = [
        (*args, kwargs.get("code"))[0] for kind, args, kwargs, _ in watch.levels if kind == "frame"
    ]
    place = callers.caller(watch.frame, codes[0]) if codes else ""
    return ["called at " + place] if place else []


def _graph_subject(args: "tuple[Any, ...]", kwargs: "dict[str, Any]", compile_id: object) -> str:
    module: GraphModule = args[0] if args else kwargs["gm"]
    which = "backward graph" if kwargs.get("is_backward") else "graph"
    text = "%s of %d nodes" % (which, len(module.graph.nodes))
    frame = underway.frames.get(compile_id)
    if kwargs.get("is_backward") and frame:
        text += " of %s%s" % (_frame_text(*frame), _compile_text(compile_id))
    return text


def _kernel_subject(args: "tuple[Any, ...]", kwargs: "dict[str, Any]", compile_id: object) -> str:
    tuner = args[0]
    return "Triton kernel %s" % getattr(tuner.fn, "__name__", tuner.fn)


_SUBJECTS = {"frame": _frame_subject, "graph": _graph_subject, "kernel": _kernel_subject}


def _frame_text(name: str, file: str, line: int) -> str:
    return "%s (%s:%d)" % (name, file, line)


def _compile_text(compile_id: object) -> str:
    return ", compile %s" % (compile_id,) if compile_id is not None else ""


def _other_threads(_: object) -> "list[str]":
    """What the threads do that compile for this one."""
    said = {}
    for ident, frame in sys._current_frames().items():
        if ident in underway.running:
            continue
        stack = []
        above: Optional[FrameType] = frame
        while above is not None:
            stack.append(above)
            above = above.f_back
        name = next(filter(None, map(find_phase, [one.f_code for one in stack])), "")
        if PHASES[name].is_build:
            said[name] = "another thread is " + PHASES[name].words
    return list(said.values())


def _innermost_place(stack: "list[FrameType]") -> "list[str]":
    """The innermost frame that is not in the standard library."""
    others = [one for one in stack if not callers.of_library(one.f_code.co_filename)]
    for frame in others or stack[:1]:
        code = frame.f_code
        return ["at %s:%d in %s" % (code.co_filename, frame.f_lineno or 0, code.co_name)]
    return []


def _ways_to_stop(name: str, at: "Optional[FrameType]", stack: "list[FrameType]") -> str:
    """What to set to stop it, and what to write into a policy for that."""
    phase = PHASES[name]
    inner = [frame.f_code.co_filename for frame in stack[:12]]
    if not phase.details and any("sympy/" in file for file in inner):
        return _NO_SYMBOLS
    if name == "passes" and at is not None:
        within = [frame.f_code.co_filename for frame in stack[: stack.index(at)]]
        if any("/torch/" not in file and not file.startswith("<") for file in within):
            return _REMOVE_PASS
    ways = []
    asked = _asked_options(stack)
    for key, variable in _switches_that_stop(name):
        if key in asked:
            ways.append(
                "use another mode= or options= of torch.compile (this one asks for %s)" % key
            )
        if os.environ.get(variable) == "1":
            ways.append("unset %s (it is 1)" % variable)
        ways.append(
            "write this into a policy: config: {torch._inductor.config: {%s: {pin: false}}}" % key
        )
    return ", or ".join(ways) or phase.way


def _switches_that_stop(phase: str) -> "list[tuple[str, str]]":
    """Keys of torch._inductor.config that end a phase where they are false, and their variables."""
    try:
        from rocm_autopatch import switches  # No start loads it.
    except Exception:
        return []  # The package was removed meanwhile. The rest of the line still holds.
    return switches.switches_that_stop(phase)


def _asked_options(stack: "list[FrameType]") -> "dict[str, object]":
    """The options of this compile, from mode= or options=."""
    for frame in stack:
        if frame.f_code.co_filename.endswith("/_inductor/compile_fx.py"):
            given = frame.f_locals.get("config_patches")
            if isinstance(given, dict) and given:
                return {key: value for key, value in given.items() if value}
    return {}


def _child_processes(_: object) -> "list[str]":
    """The processes that this one may wait for: the leaves of its process tree, from /proc."""
    found: list[tuple[int, float, str]] = []
    _add_leaves(os.getpid(), 0, found)
    texts = [
        "%s (pid %d, started %s ago)" % (command, pid, duration(age))
        for pid, age, command in found[:3]
    ]
    more = ["%d more" % (len(found) - 3)] if len(found) > 3 else []
    return ["child processes: " + ", ".join(texts + more)] if found else []


def _add_leaves(pid: int, depth: int, found: "list[tuple[int, float, str]]") -> None:
    children = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                children += [int(child) for child in file.read().split()]
        if depth and not children:
            with open("/proc/%d/cmdline" % pid, "rb") as words:
                command = words.read().split(b"\0")
            with open("/proc/%d/stat" % pid) as file:
                fields = file.read().rpartition(")")[2].split()
            with open("/proc/uptime") as file:
                up = float(file.read().split()[0])
            age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
            command[0] = os.path.basename(command[0])
            text = b" ".join(command[:4]).decode("utf-8", "replace").strip()
            found.append((pid, age, text[:60] or "?"))
    except (OSError, ValueError, IndexError):
        return  # It has ended meanwhile, or this kernel lacks these files.
    if depth < 8:
        for child in children:
            _add_leaves(child, depth + 1, found)
