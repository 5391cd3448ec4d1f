"""Why a call does not run as a graph, in words that say what to do."""

from __future__ import annotations

# What torch and the runtimes say when something illegal happens in a capture, and what it means.
# The names of errors are CUDA's; HIP's are the same with another beginning.
_MEANINGS = (
    (
        ("during CUDA graph capture unless the CPU tensor is pinned", "non-pinned"),
        "a CPU tensor is copied to the GPU inside: keep it there, or pass it as an argument",
    ),
    (
        ("JIT compile during CUDA graph capture", "compile", "Dynamo"),
        "something was compiled inside: it has to be compiled before, by calls with such arguments",
    ),
    (
        ("philox", "Generator", "generator", "rng"),
        "random numbers are drawn inside by a generator that graphs don't know",
    ),
    (
        ("out of memory", "OutOfMemory"),
        "there is not enough memory for the graph's own pool",
    ),
    (
        ("StreamCaptureUnsupported", "not permitted when stream is capturing"),
        "something inside waits for the GPU, as .item(), .cpu(), printing a tensor, nonzero() and "
        "torch.cuda.synchronize() do, or allocates memory past torch",
    ),
    (
        ("StreamCaptureUnjoined", "StreamCaptureIsolation", "StreamCaptureUnmatched"),
        "another stream is used inside, and not joined before the end",
    ),
    (
        ("StreamCaptureInvalidated", "previous error during capture", "StreamCaptureImplicit"),
        "the capture was invalidated by what is illegal in one, inside or in another thread",
    ),
)


class Refused(RuntimeError):
    """A call can't run as a graph; the text says why."""


def explain(error: BaseException) -> str:
    """Why a capture failed, from the error that it ended in."""
    # Ending a capture that is broken already raises once more, and says less.
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
    if isinstance(error, Refused):
        return str(error)
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    for signs, meaning in _MEANINGS:
        if any(sign in said for sign in signs):
            return f"{meaning} ({said})"
    return f"the capture failed: {said}"
