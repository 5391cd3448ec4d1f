"""A torch.profiler trace of this process, from the import of torch to the end of the interpreter.

The file named by ROCM_AUTOPATCH_PROFILE is of the first process of the command that imports torch;
with %p in its name, each process writes one, with its id there. A process that ends by a signal or
by os._exit leaves NAME.part behind, empty, and no trace.
"""

import atexit
import functools
import os

from rocm_autopatch import failure, startup, trust
from rocm_autopatch.compile_report import PROFILE, partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def start(torch: "ModuleType") -> None:
    """Profile this process from here on."""
    try:
        _profile(torch)
    except BaseException as error:
        if failure.programs_own(error):
            raise
        startup.fail("profile", "no profile of this process: %s" % failure.describe(error))


def _profile(torch: "Any") -> None:
    wanted = trust.named(PROFILE)
    if not wanted:
        return
    if "%p" not in wanted:
        # Not for children: it is this process's.
        del os.environ[PROFILE]
    path = wanted.replace("%p", str(os.getpid()))
    try:
        # Two processes may get here at once: the first one's it is.
        os.close(os.open(partial(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return
    profiler = torch.profiler
    kineto = torch.autograd.profiler
    ours = profiler.profile(activities=list(profiler.supported_activities()))
    owner = os.getpid()
    running = False

    def finish() -> None:
        nonlocal running
        # A fork has the profile's memory, and is not it.
        if not running or os.getpid() != owner:
            return
        running = False
        try:
            ours.stop()
            ours.export_chrome_trace(partial(path))
            os.replace(partial(path), path)
        except BaseException as error:
            if failure.programs_own(error):
                raise
            startup.fail("profile", "no profile of this process: %s" % failure.describe(error))

    prepare = kineto.profile._prepare_trace

    @functools.wraps(prepare)
    def _prepare_trace(self: "Any") -> "Any":
        # There is one profiler in a process. The program's own comes first.
        if running:
            startup.fail("profile", "this process's profile ends where the program's own begins")
            finish()
        return prepare(self)

    kineto.profile._prepare_trace = _prepare_trace
    ours.start()
    running = True
    atexit.register(finish)
