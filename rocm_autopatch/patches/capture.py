"""Compiling while the current stream is captured into a CUDA or HIP graph.

- ``guard``: raise before any part of the compile has run. What a compile does in a capture
  (autotuning, copies, loading kernels) may break the capture. On HIP it may also get into the graph
  silently, which then replays wrong results (pytorch#185074, pytorch#155684). From 2.14 on torch
  itself raises (pytorch#185410).
- ``skip-rng``: compile without reading the state of the GPU's random generator. Up to 2.9 that read
  is an error in a capture: "Cannot call CUDAGeneratorImpl::current_seed" (pytorch#131782, fixed by
  pytorch#162505 in 2.10). This setting prevents no other failure of a compile in a capture.
- ``off``: change nothing.

Both settings change ``torch._dynamo.convert_frame._compile``. Dynamo looks this function up by its
global name for each frame, on every torch from 2.4 to 2.15
(experiments/matrix/capture_versions.py). ``preserve_global_state`` is not the place: from 2.9 on it
is applied when convert_frame is imported, and it is only one of three readers of the state. The
others are aot_autograd and compile_fx, through ``preserve_rng_state``.
"""

import contextlib
import functools
import inspect
import sys
import threading

from rocm_autopatch import failure, startup
from rocm_autopatch.patches import row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

    from rocm_autopatch.patches.torch_types import ConvertFrame, CudaGenerator, CudaModule
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import CountedRow


TITLE = "Graph capture"
TARGETS = ("torch._dynamo.convert_frame",)
SETTINGS = {"capture": ("off", "guard", "skip-rng")}
NOUN = ""
CHANGES_CODE = True
FIELDS = ("name", "wanted", "layer", "why")
READABLE_SINCE = (2, 10)


def apply(
    module: "ConvertFrame",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[CountedRow]":
    """Put the setting of the one entry into ``torch._dynamo.convert_frame``.

    The row's ``uses`` counts the compiles in a capture in this process.
    """
    rows = []
    for entry in entries:
        done: CountedRow = row(FIELDS, entry, keep, observe, before="off", after="off", uses=0)
        if done["status"] != "kept":
            does, done["reason"] = _choose_setting(module, done["wanted"])
            if not does:
                done["status"] = "skipped"
        if done["status"] == "applied":
            done["after"] = done["wanted"]
        if done["status"] in ("applied", "observed"):
            _install(module, done)
        rows.append(done)
    return rows


def _choose_setting(module: "ConvertFrame", setting: str) -> "tuple[bool, str]":
    """Whether the setting has an effect on this torch, and why."""
    if setting == "off":
        return False, "the policy sets capture: off"
    if setting not in SETTINGS["capture"]:
        raise ValueError("%r is not one of %s" % (setting, ", ".join(SETTINGS["capture"])))
    if _refuses_itself(module):
        return False, (
            "torch itself raises since 2.14 (pytorch#185410)"
            if setting == "guard"
            else "since 2.14 torch raises instead of compiling in a capture (pytorch#185410)"
        )
    version = sys.modules["torch"].__version__
    if setting == "guard":
        return True, (
            "torch %s has no such check of its own; torch has one since 2.14 (pytorch#185410)"
            % version
        )
    if startup.release(version) >= READABLE_SINCE:
        return False, "the generator can be read in a capture since torch 2.10 (pytorch#162505)"
    return True, "torch %s can't read the generator in a capture (pytorch#162505)" % version


def _refuses_itself(module: "ConvertFrame") -> bool:
    # The code tells, not the version: nightly builds and forks may or may not have the check.
    trace_frame = getattr(module, "trace_frame", None)  # since 2.9
    names = trace_frame and inspect.unwrap(trace_frame).__code__.co_names
    return "is_current_stream_capturing" in (names or ())


def _install(module: "ConvertFrame", done: "CountedRow") -> None:
    original = getattr(module, "_compile", None)
    if original is None:
        # getattr, because the AttributeError of a module that is being imported blames a circular
        # import.
        raise AttributeError("this torch has no _compile in %s" % module.__name__)
    cuda = sys.modules["torch.cuda"]

    @functools.wraps(original)
    def _compile(*args: "Any", **kwargs: "Any") -> object:
        # Dynamo's logs leave out this many frames of its own. This function is one more.
        kwargs["skip"] = kwargs.get("skip", 0) + 1
        if not _is_capturing(cuda):
            return original(*args, **kwargs)
        done["uses"] += 1
        if done["after"] == "guard":
            raise RuntimeError(_capture_message(args[0] if args else kwargs["code"]))
        with _spared_generators(cuda) if done["after"] == "skip-rng" else contextlib.nullcontext():
            return original(*args, **kwargs)

    module._compile = _compile


def _is_capturing(cuda: "CudaModule") -> bool:
    """Whether this thread's stream is being captured. Never raises, and never starts CUDA up."""
    try:
        if not (cuda.is_initialized() and cuda.is_current_stream_capturing()):
            return False
    except Exception as error:
        if failure.programs_own(error):
            raise
        return False  # The state of the program's stream is not our error to report.
    # What a higher-order op such as torch.cond compiles for itself can't be warmed up. Torch 2.14
    # allows it, too. Before 2.11 torch has no way to ask.
    ops = sys.modules.get("torch._higher_order_ops.utils")
    in_op = getattr(ops, "_in_hop_compile", None)
    return in_op is None or not in_op()


def _capture_message(code: "CodeType") -> str:
    return (
        "torch.compile was about to compile %s (%s:%d) during CUDA graph capture. First run it "
        "outside the capture, as a warm-up with inputs like these, until nothing is left to "
        "compile. Then capture. (rocm_autopatch, capture: guard)"
        % (code.co_name, code.co_filename, code.co_firstlineno)
    )


_thread = threading.local()


@contextlib.contextmanager
def _spared_generators(cuda: "CudaModule") -> "Iterator[None]":
    """Let this thread read and write a stand-in for the state of the GPU's generators.

    The stand-in is what ``get_rng_state`` and ``set_rng_state`` use. They are not replaced
    themselves: Dynamo recognizes these two by identity in the code that it traces, and aot_autograd
    replaces them by its own functions for a while. Dynamo compiles under one lock, so two threads
    are never here at the same time.
    """
    if hasattr(_thread, "state"):
        yield  # This is a compile within a compile.
        return
    torch = sys.modules["torch"]
    # The program's modes and transforms must not see this tensor, so they are off. The tensor has
    # the size of the real state, because aot_autograd may trace what is done with it.
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        state = torch.zeros(16, dtype=torch.uint8, device="cpu")
    generators = cuda.default_generators
    _thread.state = state
    cuda.default_generators = _Generators(generators)
    try:
        yield
    finally:
        cuda.default_generators = generators
        del _thread.state


class _Generators(tuple):  # type: ignore[type-arg]
    """``torch.cuda.default_generators`` during such a compile. Other threads see the real ones."""

    __slots__ = ()

    def __getitem__(self, index: "Any") -> "Any":
        found = super().__getitem__(index)
        state = getattr(_thread, "state", None)
        return found if state is None or isinstance(index, slice) else _Generator(found, state)


class _Generator:
    """A generator with the stand-in for its state. All other attributes are the real one's."""

    __slots__ = ("_real", "_state")

    def __init__(self, real: "CudaGenerator", state: object) -> None:
        self._real = real
        self._state = state

    def get_state(self) -> object:
        return self._state

    def set_state(self, state: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)
