"""Why a call does not run as a graph, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple


class _ErrorMeaning(NamedTuple):
    """What an error means whose text has one of *signs*."""

    signs: tuple[str, ...]
    text: str
    #: Whether the next capture may be possible: it may have been another thread's doing.
    passes: bool = False
    #: Whether an op has done what is illegal in a capture.
    illegal: bool = False


# Parts of the errors of torch and the runtimes if something illegal happens in a capture, and what
# they mean. The names of errors are CUDA's. HIP's names differ only in their beginning.
_MEANINGS = (
    _ErrorMeaning(
        ("during CUDA graph capture unless the CPU tensor is pinned", "non-pinned"),
        "a CPU tensor is copied to the GPU inside: keep it there, or pass it as an argument",
        illegal=True,
    ),
    _ErrorMeaning(
        ("JIT compile during CUDA graph capture", "compile", "Dynamo"),
        "something was compiled inside: compile it before, by calls with arguments like these",
        passes=True,
    ),
    _ErrorMeaning(
        ("philox", "Generator", "generator", "rng"),
        "inside, a generator that graphs do not support draws random numbers",
    ),
    _ErrorMeaning(
        ("out of memory", "OutOfMemory"),
        "there is not enough memory for the graph's own pool",
    ),
    _ErrorMeaning(
        ("StreamCaptureUnsupported", "not permitted when stream is capturing"),
        "something inside waits for the GPU (as .item(), .cpu(), printing a tensor, nonzero() and "
        "torch.cuda.synchronize() do), or allocates memory without torch",
        illegal=True,
    ),
    _ErrorMeaning(
        ("StreamCaptureUnjoined", "StreamCaptureIsolation", "StreamCaptureUnmatched"),
        "another stream is used inside, and it is not joined before the end",
    ),
    _ErrorMeaning(
        ("StreamCaptureInvalidated", "previous error during capture", "StreamCaptureImplicit"),
        "an operation that is illegal in a capture broke it, inside or in another thread",
        passes=True,
    ),
    _ErrorMeaning(
        ("captures_underway",),
        "another thread uses the memory of graphs, so torch gives none back",
        passes=True,
    ),
)


GRADIENTS = (
    "gradients are needed: call it under torch.no_grad() or inference_mode(), or let a policy say "
    "training-graphs"
)


class Refused(RuntimeError):
    """A call can't run as a graph; the text says why."""


class CaptureBusy(Refused):
    """Now it can't be captured. The next call may be."""


class CaptureDisturbed(Refused):
    """It can't be captured, maybe because of another thread. Some more calls are tried."""


def _cause_of(error: BaseException) -> BaseException:
    # The end of a capture that is broken raises again, and that error says less.
    while error.__context__ is not None and not error.__suppress_context__:
        error = error.__context__
    return error


def _error_text(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {cause}".partition("\n")[0]


def _meaning_of(cause: BaseException) -> _ErrorMeaning | None:
    said = _error_text(cause)
    found = (one for one in _MEANINGS if any(sign in said for sign in one.signs))
    return None if isinstance(cause, Refused) else next(found, None)


def may_pass(error: BaseException) -> bool:
    """Whether a capture may have failed because of what another thread did at the same time."""
    cause = _cause_of(error)
    meaning = _meaning_of(cause)
    return isinstance(cause, CaptureDisturbed) or (meaning is not None and meaning.passes)


def is_illegal(error: BaseException) -> bool:
    """Whether a capture failed because an op did in it what none may do."""
    meaning = _meaning_of(_cause_of(error))
    return meaning is not None and meaning.illegal


def explain_failure(error: BaseException) -> str:
    """Why a capture failed, from the error that it ended in."""
    cause = _cause_of(error)
    if isinstance(cause, Refused):
        return str(cause)
    meaning = _meaning_of(cause)
    said = _error_text(cause)
    return f"{meaning.text} ({said})" if meaning else f"the capture failed: {said}"
