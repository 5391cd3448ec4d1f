"""How many CPUs this process has for its compiles: those it sees, a quota, the ranks of its node.

Torch starts a compile worker for each CPU that it sees, up to 32, in each process. A container sees
the host's CPUs whatever its quota is, and each rank does the same (pytorch#191385, #190941). On
ROCm such workers were found to be clients of the GPU's driver, too many for it (pytorch#191493).
"""

import os
import re

from rocm_autopatch import _read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The word of a policy for this number.
WORD = "cpus"
# Torch itself starts no more workers than this in a process (torch/_inductor/config.py).
MOST_WORKERS = 32
_CGROUPS = "sys/fs/cgroup"
# Where a launcher says how many ranks there are on this node: torchrun, Open MPI, MPICH, Slurm.
_LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
)


def visible_cpus() -> int:
    """The CPUs that this process may run on, as torch counts them. A cpuset limits them."""
    return len(os.sched_getaffinity(0)) or 1


def cpu_quota(root: str = "/") -> float:
    """How many CPUs' time the cgroups of this process allow, 0 if they set no limit.

    Raises nothing. *root* is the directory that stands for ``/``. A parent's limit holds, too. In a
    container the path in ``/proc/self/cgroup`` may be the host's: what is there of it is looked at.
    """
    found = []
    groups = _read(os.path.join(root, "proc/self/cgroup")).decode("utf-8", "replace")
    for line in groups.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts, files = ["", "unified"], ["cpu.max"]
        elif "cpu" in controllers.split(","):
            mounts, files = [controllers, "cpu"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        for mount in mounts:
            for directory in _upwards(os.path.join(root, _CGROUPS, mount), path):
                words = b" ".join([_read("%s/%s" % (directory, name)) for name in files]).split()
                # No limit is "max" in version 2 and -1 in version 1.
                if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
                    found.append(int(words[0]) / int(words[1]))
    return min(found, default=0.0)


def _upwards(mount: str, path: str) -> "Iterator[str]":
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:length]])


def local_ranks(environ: "Mapping[str, str]" = os.environ) -> int:
    """How many ranks of a job are on this node, by what its launcher says; 1 without a launcher."""
    for name in _LOCAL_RANKS:
        # Slurm: 8, 4(x2), or 4,3 if nodes differ. The largest is the careful one.
        counts = re.findall(r"(?<!x)(?<!\d)\d{1,6}", environ.get(name, ""))
        if counts:
            return max(1, *map(int, counts))
    return 1


def cpu_share(root: str = "/") -> int:
    """How many compile workers this process has CPUs for: 1 to 32."""
    seen = visible_cpus()
    allowed = min(seen, cpu_quota(root) or seen)
    return max(1, min(MOST_WORKERS, int(allowed / local_ranks())))


def describe_limits(root: str = "/") -> str:
    """What the share is made of, as text: ``a quota of 4 CPUs for 8 ranks on this node``."""
    seen, allowed, ranks = visible_cpus(), cpu_quota(root), local_ranks()
    limited = 0 < allowed < seen
    text = "a quota of %g" % round(allowed, 1) if limited else "%d" % seen
    text += " CPU" if (allowed if limited else seen) == 1 else " CPUs"
    return text + (" for %d ranks on this node" % ranks if ranks > 1 else "")


def describe_crowding(workers: int, root: str = "/") -> str:
    """``32 workers on a quota of 4 CPUs``, "" if this process has CPUs for so many workers."""
    # One worker is no worker: the process compiles by itself.
    if workers <= max(1, cpu_share(root)):
        return ""
    return "%d workers on %s" % (workers, describe_limits(root))
