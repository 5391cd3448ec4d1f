"""Why a call does not run as a graph, and what to do about it."""

from __future__ import annotations

# Parts of the errors of torch and the runtimes if something illegal happens in a capture, and what
# they mean. The names of errors are CUDA's. HIP's names differ only in their beginning.
_MEANINGS = (
    (
        ("during CUDA graph capture unless the CPU tensor is pinned", "non-pinned"),
        "a CPU tensor is copied to the GPU inside: keep it there, or pass it as an argument",
    ),
    (
        ("JIT compile during CUDA graph capture", "compile", "Dynamo"),
        "something was compiled inside: compile it before, by calls with arguments like these",
    ),
    (
        ("philox", "Generator", "generator", "rng"),
        "inside, a generator that graphs do not support draws random numbers",
    ),
    (
        ("out of memory", "OutOfMemory"),
        "there is not enough memory for the graph's own pool",
    ),
    (
        ("StreamCaptureUnsupported", "not permitted when stream is capturing"),
        "something inside waits for the GPU (as .item(), .cpu(), printing a tensor, nonzero() and "
        "torch.cuda.synchronize() do), or allocates memory without torch",
    ),
    (
        ("StreamCaptureUnjoined", "StreamCaptureIsolation", "StreamCaptureUnmatched"),
        "another stream is used inside, and it is not joined before the end",
    ),
    (
        ("StreamCaptureInvalidated", "previous error during capture", "StreamCaptureImplicit"),
        "an operation that is illegal in a capture broke it, inside or in another thread",
    ),
)


# What another thread can cause: it has waited for the device, torch's allocator gives nothing back
# while one uses the memory of graphs, or the random numbers differ.
_OTHERS = (
    "StreamCaptureInvalidated",
    "previous error during capture",
    "captures_underway",
    "a replay does not draw as many numbers",
)


class Refused(RuntimeError):
    """A call can't run as a graph; the text says why."""


class Busy(Refused):
    """Now it can't be captured. The next call may be."""


def _cause(error: BaseException) -> BaseException:
    # The end of a capture that is broken raises again, and that error says less.
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
    return error


def may_be_others(error: BaseException) -> bool:
    """Whether a capture may have failed because of what another thread did at the same time."""
    said = str(_cause(error))
    return any(sign in said for sign in _OTHERS)


def explain(error: BaseException) -> str:
    """Why a capture failed, from the error that it ended in."""
    error = _cause(error)
    if isinstance(error, Refused):
        return str(error)
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    for signs, meaning in _MEANINGS:
        if any(sign in said for sign in signs):
            return f"{meaning} ({said})"
    return f"the capture failed: {said}"
