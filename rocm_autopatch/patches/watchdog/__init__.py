"""Warnings about long compiles: who compiles what, where it is stuck, and how to stop it.

On every torch from 2.4 to 2.15 (experiments/matrix/watchdog_versions.py) a compile begins in one
of two functions: ``torch._dynamo.convert_frame._compile`` for a frame, and
``torch._inductor.compile_fx.fx_codegen_and_compile`` for a graph. The second is also where a
backward begins in autograd's thread, and where a framework begins that calls Inductor itself. The
tuning of a Triton kernel in its first call begins in a third place: ``CachingAutotuner``. Each of
them only notes when it began.

One thread looks at long compiles. The first compile starts it. It sleeps until a compile may be
overdue, and ends when no compile is running. So a short compile costs two entries in a dict.
description.py reads from the stack of a compile's thread what the compile is doing (phases.py).
"""

import functools
import sys

from rocm_autopatch import _RECORD, failure, startup
from rocm_autopatch.patches import row
from rocm_autopatch.patches.watchdog import on_demand, sleeper, underway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import ConvertFrame
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import WatchdogRow


TITLE = "Watchdog"
TARGETS = ("torch._dynamo.convert_frame",)
SETTINGS = {
    "watchdog.warn_after": "seconds or off",
    "watchdog.dump_stacks": "switch",
    "watchdog.abort_after": "seconds or null",
}
NOUN = ""
CHANGES_CODE = False
FIELDS = ("name", "wanted", "layer", "why")
# DEFAULTS has the fields that a policy with a watchdog does not give. OFF has the values of fields
# that ROCM_AUTOPATCH_KEEP takes out of the policy.
DEFAULTS: "dict[str, Optional[float]]" = {
    "warn_after": 120,
    "dump_stacks": False,
    "abort_after": None,
}
OFF: "dict[str, Optional[float]]" = {"warn_after": False, "dump_stacks": False, "abort_after": None}


def apply(
    module: "ConvertFrame",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[WatchdogRow]":
    """Watch the compiles that go through ``torch._dynamo.convert_frame``, as the fields say.

    There is an entry for each field, named ``watchdog.FIELD``. In the row of ``warn_after``,
    ``uses`` counts the warnings in this process; in the row of ``abort_after``, the compiles that
    were ended.
    """
    chosen = dict(DEFAULTS)
    rows = []
    for entry in entries:
        done: WatchdogRow = row(FIELDS, entry, keep, observe, uses=0)
        field = done["name"].partition(".")[2]
        if field not in DEFAULTS:
            raise ValueError("the watchdog has no setting %r" % (field,))
        chosen[field] = OFF[field] if done["status"] == "kept" else done["wanted"]
        if done["status"] == "applied":
            done["after"] = done["wanted"]
        underway.rows[field] = done
        rows.append(done)
    if chosen["warn_after"] is False and chosen["abort_after"] is None:
        for done in rows:
            if done["status"] != "kept":
                done["status"], done["reason"] = "skipped", "the policy turns it off"
                done["after"] = None
        return rows
    underway.settings.update(chosen)
    _watch_frames(module)
    return rows


# Where compiles begin

_GRAPHS = "torch._inductor.compile_fx"
_KERNELS = "torch._inductor.runtime.triton_heuristics"
_TUNERS = ("autotune_to_one_config", "coordinate_descent_tuning")


def _watch_frames(module: "ConvertFrame") -> None:
    original = getattr(module, "_compile", None)
    if original is None:
        # getattr, because the AttributeError of a module that is being imported blames a circular
        # import.
        raise AttributeError("this torch has no _compile in %s" % module.__name__)

    waits = [True]

    @functools.wraps(original)
    def _compile(*args: "Any", **kwargs: "Any") -> object:
        # Dynamo's logs leave out this many frames of its own. This function is one more.
        kwargs["skip"] = kwargs.get("skip", 0) + 1
        if waits:
            # Only now, at the first compile: a program that only imports torch needs no finder.
            waits.clear()
            from rocm_autopatch.startup import hooks

            for name, hook in ((_GRAPHS, _watch_graphs), (_KERNELS, _watch_kernels)):
                hooks.add(startup.finder, name, hook)
            on_demand.offer_stacks()
        watch = None
        try:
            watch, depth = _enter("frame", args, kwargs)
            return original(*args, **kwargs)
        finally:
            if watch is not None:
                _leave(watch, depth)

    module._compile = _compile


def _watch_graphs(module: object) -> None:
    _wrap(module, "fx_codegen_and_compile", "graph")


def _watch_kernels(module: "ModuleType") -> None:
    for name in _TUNERS:
        _wrap(getattr(module, "CachingAutotuner", None), name, "kernel")


def _wrap(owner: object, name: str, kind: str) -> None:
    """Have a function of a module or class note when it is called. Never raises."""
    original = getattr(owner, name, None)
    if original is None:
        version = getattr(sys.modules.get("torch"), "__version__", "")
        _RECORD["notes"].append("the watchdog can't watch %s: torch %s lacks it" % (name, version))
        return

    @functools.wraps(original)
    def watched(*args: object, **kwargs: object) -> object:
        watch = None
        try:
            watch, depth = _enter(kind, args, kwargs)
            return original(*args, **kwargs)
        finally:
            if watch is not None:
                _leave(watch, depth)

    setattr(owner, name, watched)


def _enter(
    kind: str, args: "tuple[object, ...]", kwargs: "dict[str, object]"
) -> "tuple[underway.Watch, int]":
    """Note that a call begins. Returns the arguments for _leave."""
    caller = sys._getframe(1)
    watch: Optional[underway.Watch] = getattr(underway.here, "watch", None)
    if watch is not None:
        frame: Optional[FrameType] = caller
        while frame is not None and frame is not watch.frame:
            frame = frame.f_back
        if frame is None:
            watch = None  # It is left over: an interrupt came before the try of a call.
    if watch is None:
        watch = underway.here.watch = underway.Watch(caller)
    depth = len(watch.levels)
    if kind == "frame":
        compile_id = kwargs.get("compile_id")
        if compile_id is not None:
            underway.frames[compile_id] = underway.function(args, kwargs)
            if len(underway.frames) > underway.MOST_FRAMES:
                underway.frames.pop(next(iter(underway.frames)), None)
    else:
        compile_id = _compile_id()
    watch.levels.append((kind, args, kwargs, compile_id))
    if depth == 0:
        with underway.lock:
            underway.running[watch.ident] = watch
            sleeper.wake_up()
    return watch, depth


def _leave(watch: "underway.Watch", depth: int) -> None:
    del watch.levels[depth:]
    if depth:
        return
    with underway.lock:
        watch.done = True
        if underway.running.get(watch.ident) is watch:
            del underway.running[watch.ident]
    watch.frame = None
    underway.here.watch = None
    if watch.raised > watch.delivered:
        from rocm_autopatch.patches.watchdog import aborts

        aborts.take_back(watch)


def _compile_id() -> object:
    guards: Any = sys.modules.get("torch._guards")
    try:
        return guards.CompileContext.current_compile_id()
    except Exception as error:
        if failure.programs_own(error):
            raise
        return None
