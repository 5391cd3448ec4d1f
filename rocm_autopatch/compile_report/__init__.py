"""The compile report: what a process writes while it compiles, and what is read from that later.

``collect`` and ``profile`` run in the program's own process. Everything else runs in the commands
``rocm-autopatch run`` and ``report``. Both sides use the names in this file.
"""

import os

# The variable that names the directory of a report. It is set but empty where only a profile is
# asked for, because a start looks for this one name.
WANTED = "ROCM_AUTOPATCH_REPORT"
# The variable that names the file of a profile.
PROFILE = "ROCM_AUTOPATCH_PROFILE"
# PyTorch's own variable for the directory of its trace.
TRACE = "TORCH_TRACE"
# In the directory of a report: PyTorch's trace, and a line of JSON for each process that imported
# torch, for each mode in which it asked torch.compile to compile, and for what ended it.
TRACES = "trace"
PROCESSES = "processes.jsonl"
# In such a line: the exception that ended a process; the command, where and when it began, and its
# exit status.
ENDED = "ended"
COMMAND = "run"
STATUS = "status"


def unfinished_path(path: str) -> str:
    """Where a profile is written before it gets its name *path*.

    The suffix stays the same, because torch decides by it whether to compress.
    """
    directory, name = os.path.split(path)
    return os.path.join(directory, ".part-" + name)
