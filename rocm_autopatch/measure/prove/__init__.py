"""Which modes and switches of torch.compile work on this machine: the battery of ``prove``.

``subjects`` are what is tried: a mode or a switch, each as a policy. ``trials`` are the programs,
one file each, and ``bench`` what they share. ``child`` runs trials under one subject in a process
of its own, and ``fresh_starts`` looks at graphs in many that are forked. ``supervisor`` starts such
processes and tells how they ended, and ``rows`` has what is kept of that. ``battery`` decides which
ones, in which order. ``verdicts`` makes from all results what is proven, and ``document`` the
evidence file of a ``place``. ``proof`` is all of it, from the request on.
"""

from rocm_autopatch.support.user_error import UserError

# How a start of a trial ended.
ENDED = "ended"
# A result differs from what eager mode computes.
WRONG = "wrong"
CRASHED = "crashed"
HUNG = "hung"
# The memory grows with each call.
LEAKS = "leaks"
# The GPU only compiles (compiling_gpu): there are no results.
COMPILED = "compiled"
# The trial or the switch is not possible here; this says nothing of the subject.
NOT_HERE = "not here"
# Other trials of the subject hung, which is enough.
NOT_TRIED = "not tried"
FAULTS = (WRONG, CRASHED, HUNG, LEAKS)

# The first phases of a start. While it waits for others to leave the device, it does not hang.
STARTING, IMPORTING, WAITING = "starting", "importing", "waiting for the device"

COLD, WARM = "cold", "warm"
# Processes that do nothing but initialize the GPU and look at graphs: a trial without a program.
FRESH_STARTS, FRESH = "fresh_starts", "fresh"


class ProofRefused(UserError):
    """Nothing can be proven as it was asked for; the text says why."""
