"""Raises a signal at the n-th step of our code. It runs inside the process under test.

A .pth file that sorts before ours imports it. ``TORTURE_SIGNAL`` is ``NUMBER:N:EVENT:PHASE``. The
signal NUMBER is raised at the N-th EVENT (``line`` or ``opcode``; with N = 0 never). PHASE is
``start``, or ``import`` after the program has called ``begin``. Events count in functions of our
files, and in everything that these call.
"""

import os
import sys

number, at, event, phase = os.environ.get("TORTURE_SIGNAL", "0:0:line:").split(":")
number, at = int(number), int(at)
count = 0
hit = False


def _is_ours(frame):
    code = frame.f_code
    # Python prints an exception in a weak reference's callback and goes on. "cb" and "remove" are
    # importlib's own callbacks.
    return code.co_name not in ("cb", "remove", "__del__") and (
        "rocm_autopatch" in code.co_filename
        # What runs in place of a loader's exec_module has another file's name.
        or (code.co_name == "exec_module" and code.co_freevars)
        or (frame.f_back is not None and frame.f_back.f_trace is _step)
    )


def _enter(frame, what, argument):
    if not _is_ours(frame):
        return None
    frame.f_trace_opcodes = event == "opcode"
    frame.f_trace_lines = event == "line"
    return _step


def _step(frame, what, argument):
    global count, hit
    if what == event:
        count += 1
        if count == at:
            hit = True
            import _signal

            if at and "TORTURE_HITS" in os.environ:
                with open(os.environ["TORTURE_HITS"], "w") as stream:
                    stream.write(frame.f_code.co_filename)

            _signal.raise_signal(number)
    return _step


def begin():
    sys.settrace(_enter)


def end():
    sys.settrace(None)
    if not at and "TORTURE_HITS" in os.environ:
        with open(os.environ["TORTURE_HITS"], "w") as stream:
            stream.write(str(count))


if phase == "start":
    begin()
