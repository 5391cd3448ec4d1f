"""Compiling while the current stream is captured into a CUDA or HIP graph.

- ``guard``: it raises before anything of the compile has run. What a compile does in a capture
  (autotuning, copies, loading kernels) may break it, and on HIP may go into the graph silently and
  replay wrong results (pytorch#185074, pytorch#155684). From 2.14 on torch raises by itself
  (pytorch#185410).
- ``skip-rng``: it compiles without reading the state of the GPU's random generator, which up to 2.9
  is an error in a capture: "Cannot call CUDAGeneratorImpl::current_seed" (pytorch#131782, fixed by
  pytorch#162505 in 2.10). All that may go wrong after that read still may.
- ``off``: nothing is changed.

Both are made in ``torch._dynamo.convert_frame._compile``, which Dynamo looks up by its global name
for each frame on every torch from 2.4 to 2.15 (tests/matrix/capture_versions.py). Not
``preserve_global_state``: from 2.9 on it is applied when convert_frame is imported, and it is one
of three readers. The others are aot_autograd and compile_fx, by ``preserve_rng_state``.
"""

import contextlib
import functools
import inspect
import sys
import threading

from rocm_autopatch import failure, startup
from rocm_autopatch.patches import kept, row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, ModuleType
    from typing import Any


TITLE = "Graph capture"
TARGETS = ("torch._dynamo.convert_frame",)
SETTINGS = {"capture": ("off", "guard", "skip-rng")}
NOUN = ""
CHANGES_CODE = True
FIELDS = ("name", "wanted", "layer", "why")
READABLE_SINCE = (2, 10)


def apply(
    module: "ModuleType",
    entries: "list[tuple[Any, ...]]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[dict[str, Any]]":
    """Put the setting of the one entry into ``torch._dynamo.convert_frame``.

    The row's ``uses`` counts the compiles in a capture that it met in this process.
    """
    rows = []
    for entry in entries:
        done = row(FIELDS, entry, before="off", after="off", uses=0)
        if kept(done["name"], keep):
            done.update(status="kept", reason="ROCM_AUTOPATCH_KEEP")
        else:
            does, done["reason"] = _choose(module, done["wanted"])
            done["status"] = ("observed" if observe else "applied") if does else "skipped"
        if done["status"] == "applied":
            done["after"] = done["wanted"]
        if done["status"] in ("applied", "observed"):
            _install(module, done)
        rows.append(done)
    return rows


def _choose(module: "Any", setting: str) -> "tuple[bool, str]":
    """Whether the setting does anything on this torch, and why."""
    if setting == "off":
        return False, "the policy leaves it to torch"
    if setting not in SETTINGS["capture"]:
        raise ValueError("%r is not one of %s" % (setting, ", ".join(SETTINGS["capture"])))
    if _refuses_itself(module):
        return False, (
            "torch does so itself since 2.14 (pytorch#185410)"
            if setting == "guard"
            else "torch does not compile in a capture since 2.14 (pytorch#185410)"
        )
    version = sys.modules["torch"].__version__
    if setting == "guard":
        return True, "torch %s has no such check, as it has since 2.14 (pytorch#185410)" % version
    if startup.release(version) >= READABLE_SINCE:
        return False, "the generator can be read in a capture since torch 2.10 (pytorch#162505)"
    return True, "torch %s can't read the generator in a capture (pytorch#162505)" % version


def _refuses_itself(module: "Any") -> bool:
    # Asked of the code, not of the version: nightly builds and forks may be on either side.
    trace_frame = getattr(module, "trace_frame", None)  # since 2.9
    names = trace_frame and inspect.unwrap(trace_frame).__code__.co_names
    return "is_current_stream_capturing" in (names or ())


def _install(module: "Any", done: "dict[str, Any]") -> None:
    original = getattr(module, "_compile", None)
    if original is None:
        # getattr: while a module is being imported, its own error blames a circular import.
        raise AttributeError("this torch has no _compile in %s" % module.__name__)
    cuda = sys.modules["torch.cuda"]

    @functools.wraps(original)
    def _compile(*args: "Any", **kwargs: "Any") -> "Any":
        # How many frames of Dynamo's own its logs leave out of a stack: this is one more.
        kwargs["skip"] = kwargs.get("skip", 0) + 1
        if not _capturing(cuda):
            return original(*args, **kwargs)
        done["uses"] += 1
        if done["after"] == "guard":
            raise RuntimeError(_message(args[0] if args else kwargs["code"]))
        with _spared(cuda) if done["after"] == "skip-rng" else contextlib.nullcontext():
            return original(*args, **kwargs)

    module._compile = _compile


def _capturing(cuda: "Any") -> bool:
    """Whether this thread's stream is being captured. Never raises, and never starts CUDA up."""
    try:
        if not (cuda.is_initialized() and cuda.is_current_stream_capturing()):
            return False
    except Exception as error:
        if failure.programs_own(error):
            raise
        return False  # The program's stream is in a state of its own: not for us to report.
    # What a higher-order op such as torch.cond compiles for itself can't be warmed up; torch 2.14
    # lets that pass too. Before 2.11 it has no word for it.
    ops = sys.modules.get("torch._higher_order_ops.utils")
    in_op = getattr(ops, "_in_hop_compile", None)
    return in_op is None or not in_op()


def _message(code: "CodeType") -> str:
    return (
        "torch.compile was about to compile %s (%s:%d) during CUDA graph capture: run it outside "
        "the capture first, as a warm-up with inputs like these, and capture once nothing is left "
        "to compile (rocm_autopatch, capture: guard)"
        % (code.co_name, code.co_filename, code.co_firstlineno)
    )


_thread = threading.local()


@contextlib.contextmanager
def _spared(cuda: "Any") -> "Iterator[None]":
    """Let this thread read and write the state of the GPU's generators without reaching them.

    The stand-in is put beneath ``get_rng_state`` and ``set_rng_state``, not in their place: Dynamo
    knows these two by identity in the code that it traces, and aot_autograd puts functions of its
    own in their place for a while. Two threads are never here at once, as Dynamo compiles under
    one lock.
    """
    if hasattr(_thread, "state"):
        yield  # A compile within a compile.
        return
    torch = sys.modules["torch"]
    # Past the modes and transforms of the program, which must not see this tensor. It has the size
    # of the real one, because aot_autograd may trace what becomes of it.
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
    """``torch.cuda.default_generators`` during such a compile; for other threads, what it was."""

    __slots__ = ()

    def __getitem__(self, index: "Any") -> "Any":
        found = super().__getitem__(index)
        state = getattr(_thread, "state", None)
        return found if state is None or isinstance(index, slice) else _Generator(found, state)


class _Generator:
    """A generator whose state is out of reach; all else is the real one's."""

    __slots__ = ("_real", "_state")

    def __init__(self, real: "Any", state: "Any") -> None:
        self._real = real
        self._state = state

    def get_state(self) -> "Any":
        return self._state

    def set_state(self, state: "Any") -> None:
        pass

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._real, name)
