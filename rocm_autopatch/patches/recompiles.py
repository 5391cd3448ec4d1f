"""One line where torch itself would have stopped compiling a function, as its limit was raised.

Torch compiles a function anew when a guard of all its earlier compiles fails. After
``torch._dynamo.config.recompile_limit`` compiles (8 on every torch from 2.4 to 2.15; the name is
``cache_size_limit`` up to 2.6), torch warns, and runs the function without a compile; if it was
compiled with ``fullgraph=True``, torch raises an error. A policy that raises the limit takes the
warning away. So this patch writes a line where torch would have stopped, with the function and the
guard.

Dynamo asks ``exceeds_recompile_limit`` before each compile of a frame (``exceeds_cache_size_limit``
up to 2.6). ``convert_frame._compile`` looks this up by its global name, and has the frame's code,
its variables, whether it may have graph breaks (``one_graph``), and the failed guard as local
variables (experiments/matrix/recompile_versions.py).
"""

import functools
import os
import sys

from rocm_autopatch import _RECORD, failure, startup
from rocm_autopatch.patches import callers, row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import CacheSize, ConvertFrame
    from rocm_autopatch.plan import PatchEntry
    from rocm_autopatch.record.shapes import CountedRow


TITLE = "Recompiles"
TARGETS = ("torch._dynamo.convert_frame",)
SETTINGS = {"recompiles": ("off", "warn")}
NOUN = ""
CHANGES_CODE = False
FIELDS = ("name", "wanted", "layer", "why")
# Since torch 2.7, and before.
LIMITS = ("recompile_limit", "cache_size_limit")
QUESTIONS = ("exceeds_recompile_limit", "exceeds_cache_size_limit")
# Settings that make reaching the limit an error: since torch 2.7, and in 2.6.
RAISES = ("fail_on_recompile_limit_hit", "fail_on_cache_limit_hit")
LONGEST_GUARD = 200


def apply(
    module: "ConvertFrame",
    entries: "list[PatchEntry]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[CountedRow]":
    """Say where torch would have stopped, if the config patch has raised the limit.

    The row's ``uses`` counts the functions that the line was written for in this process.
    """
    rows = []
    for entry in entries:
        done: CountedRow = row(FIELDS, entry, keep, observe, before="off", after="off", uses=0)
        raised = _raised_limit()
        question = next((name for name in QUESTIONS if hasattr(module, name)), "")
        why = _no_use(done["wanted"], raised, question)
        if why and done["status"] != "kept":
            done["status"], done["reason"] = "skipped", why
        if done["status"] == "applied" and raised:
            _install(module, question, done, raised)
            done["after"] = done["wanted"]
        rows.append(done)
    return rows


def _no_use(wanted: str, raised: "Optional[_RaisedLimit]", question: str) -> "Optional[str]":
    """Why the line is not needed, or can't be written; None otherwise."""
    if wanted == "off":
        return "the policy turns it off"
    if raised is None:
        return "no policy raised the limit, so torch warns itself"
    return None if question else "this torch has no " + QUESTIONS[0]


class _RaisedLimit:
    """The limit's key, torch's own value, ours above it, and the policy that wants it."""

    def __init__(self, name: str, before: int, after: int, layer: str) -> None:
        self.name, self.before, self.after, self.layer = name, before, after, layer


def _raised_limit() -> "Optional[_RaisedLimit]":
    """The limit, if the record says that our value for it is above torch's own."""
    config = _RECORD["patches"].get(("config", "torch._dynamo.config"))
    for done in config["entries"] if config else ():
        before, after = done["before"], done["after"]
        if (
            done["name"] in LIMITS
            and done["status"] == "applied"
            and isinstance(before, int)
            and isinstance(after, int)
            and after > before
        ):
            return _RaisedLimit(done["name"], before, after, done["layer"])
    return None


def _install(
    module: "ConvertFrame", question: str, done: "CountedRow", raised: "_RaisedLimit"
) -> None:
    original = getattr(module, question)
    config = sys.modules["torch._dynamo.config"]
    told: set[tuple[str, str, int]] = set()

    @functools.wraps(original)
    def exceeds(cache_size: "CacheSize", *args: object, **kwargs: object) -> object:
        answer = original(cache_size, *args, **kwargs)
        try:
            # The program, or a torch.compile(recompile_limit=), may have set a limit of its own.
            ours = getattr(config, raised.name) == raised.after
            if (
                ours
                and not answer[0]
                and cache_size.will_compilation_exceed_specific_limit(raised.before)
            ):
                _tell(sys._getframe(1), cache_size, told, done, raised)
        except Exception as error:
            if failure.programs_own(error):
                raise
            # Nothing of ours may end a compile.
        return answer

    setattr(module, question, exceeds)


def _tell(
    frame: "FrameType",
    cache_size: "CacheSize",
    told: "set[tuple[str, str, int]]",
    done: "CountedRow",
    raised: "_RaisedLimit",
) -> None:
    """Write the line for a function, once. *frame* is that of ``convert_frame._compile``."""
    code = frame.f_locals["code"]
    name = callers.function(code, frame.f_locals["locals"])
    function = (name, code.co_filename, code.co_firstlineno)
    if function in told:
        return
    told.add(function)
    called = callers.caller(frame, code)
    done["uses"] += 1
    environ = {name: os.environ.get(os.fsdecode(name)) for name in startup.RANKS}
    if os.environ.get("ROCM_AUTOPATCH_LOG") == "quiet" or set(environ.values()) - {None, "", "0"}:
        # The ranks of a job compile the same functions. One of them speaks.
        return
    end = "run it without a compile"
    config = sys.modules["torch._dynamo.config"]
    if frame.f_locals.get("one_graph"):
        end = "raise an error, because of fullgraph=True"
    elif any(getattr(config, name, False) for name in RAISES):
        end = "raise an error, as its configuration says"
    startup.write(
        "%s (%s:%d%s) is compiled for the %dth time, as policy %s sets %s to %d; torch itself "
        "would stop at %d and %s. The guard that failed last: %s. "
        "TORCH_LOGS=recompiles shows every guard"
        % (
            *function,
            ", called at " + called if called else "",
            cache_size.num_cache_entries_with_same_id_matched_objs + 1,
            raised.layer,
            raised.name,
            raised.after,
            raised.before,
            end,
            _failed_guard(frame),
        ),
        # It has up to two paths and a guard.
        2 * startup.LONGEST_LINE,
    )


def _failed_guard(frame: "FrameType") -> str:
    """The guard whose failure asked for this compile, in torch's words."""
    # Since torch 2.7, and before.
    reason: Any = frame.f_locals.get("recompile_reason")
    reason = reason or (frame.f_locals.get("recompile_reasons") or ("unknown",))[-1]
    return " ".join(str(reason).split())[:LONGEST_GUARD]
