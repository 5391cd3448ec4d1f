"""A torch.profiler trace of this process, from the import of torch to the end of the interpreter.

ROCM_AUTOPATCH_PROFILE names the file. The first process of the command that imports torch writes
it. With %p in the name, each process writes a file with its own id in place of %p. A process that
ends by a signal or by os._exit writes no trace, and leaves an empty .part-NAME behind.
"""

import atexit
import functools
import os

from rocm_autopatch import failure, startup, trust
from rocm_autopatch.compile_report import PROFILE, unfinished_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def start_profile(torch: "ModuleType") -> None:
    """Profile this process from here on."""
    try:
        _profile_process(torch)
    except BaseException as error:
        if failure.programs_own(error):
            raise
        startup.fail("profile", "this process writes no profile: " + failure.describe(error))


def _profile_process(torch: "Any") -> None:
    wanted = trust.named(PROFILE)
    if not wanted:
        return
    if "%p" not in wanted:
        # The profile is of this process, so its children must not see the variable.
        del os.environ[PROFILE]
    path = wanted.replace("%p", str(os.getpid()))
    try:
        # Two processes may get here at the same time. The first one writes the profile.
        os.close(os.open(unfinished_path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return
    profiler = torch.profiler
    kineto = torch.autograd.profiler
    ours = profiler.profile(activities=list(profiler.supported_activities()))
    owner = os.getpid()
    running = False

    def finish_profile() -> None:
        nonlocal running
        # A fork has a copy of the profile in its memory, but must not write it.
        if not running or os.getpid() != owner:
            return
        running = False
        try:
            ours.stop()
            ours.export_chrome_trace(unfinished_path(path))
            os.replace(unfinished_path(path), path)
        except BaseException as error:
            if failure.programs_own(error):
                raise
            startup.fail("profile", "this process writes no profile: " + failure.describe(error))

    prepare = kineto.profile._prepare_trace

    @functools.wraps(prepare)
    def _prepare_trace(self: "Any") -> "Any":
        # A process can have only one profiler at a time. The program's own has priority.
        if running:
            startup.fail(
                "profile",
                "the program has started its own profiler, so our profile of it ends here",
            )
            finish_profile()
        return prepare(self)

    kineto.profile._prepare_trace = _prepare_trace
    ours.start()
    running = True
    atexit.register(finish_profile)
