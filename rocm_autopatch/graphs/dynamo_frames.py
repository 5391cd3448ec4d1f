"""Dispatch modes and Dynamo's guards, on torch that does not keep them apart (2.8 and older).

There, a guard fails wherever a dispatch mode is on: compiled code would be compiled anew in each
call with the mode. So a mode is off while Dynamo looks at frames, which is when this thread has a
callback for them, and on again in the compiled graphs, which have none. What a frame runs between
its graphs is not seen then.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils import _python_dispatch

if TYPE_CHECKING:
    from rocm_autopatch.graphs.captured_ops import CapturedOps

_NAME = "set_eval_frame"
_FRAMES = "torch._dynamo.convert_frame"
_PLACES = ("torch._C._dynamo", "torch._dynamo")
# With it, torch 2.11 tells its guards that they need not see a mode; 2.8 has none.
GUARDS_IGNORE_MODES = hasattr(
    torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals"
)
_OURS = "_rocm_autopatch"
# Dynamo's names of what goes on behind a break begin like this.
_RESUMED = "__resume_at"


@dataclass
class _EnteredMode:
    """A mode that is entered, and whether it is off for Dynamo."""

    mode: CapturedOps
    hidden: bool = False


class _EnteredModes(threading.local):
    def __init__(self) -> None:
        self.modes: list[_EnteredMode] = []


_local = _EnteredModes()
_installing = threading.Lock()


def enter_mode(mode: CapturedOps) -> None:
    """A mode is about to be entered."""
    if not GUARDS_IGNORE_MODES:
        _install_callback_hook()
        _local.modes.append(_EnteredMode(mode))


def leave_mode() -> None:
    """The mode that was entered last is about to be left."""
    if not GUARDS_IGNORE_MODES:
        _show_mode(_local.modes[-1], True)
        _local.modes.pop()


def breaks_graphs() -> bool:
    """Whether any code that Dynamo has compiled, and not thrown away, has several graphs."""
    codes = importlib.import_module(_FRAMES).output_codes.seen
    names = (name for one in [*codes] if (code := one()) is not None for name in code.co_names)
    return any(name.startswith(_RESUMED) for name in names)


def _show_mode(one: _EnteredMode, shown: bool) -> bool:
    """Have an entered mode on or off. Returns whether it is off from now on."""
    current = _python_dispatch._get_current_dispatch_mode
    if shown and one.hidden:
        _python_dispatch._push_mode(one.mode)
        one.hidden = False
    elif not shown and not one.hidden and current() is one.mode:
        _python_dispatch._pop_mode()
        one.hidden = True
        return True
    return False


def _install_callback_hook() -> None:
    """Take note of the callback for frames wherever Dynamo sets it."""
    with _installing:
        places = [importlib.import_module(place).eval_frame for place in _PLACES]
        original = getattr(places[0], _NAME)
        if hasattr(original, _OURS):
            return

        def set_eval_frame(callback: object) -> object:
            # Without a callback first: with one, Dynamo would compile what is called here.
            before = original(None)
            try:
                if _local.modes:
                    one = _local.modes[-1]
                    if _show_mode(one, callback is None) and breaks_graphs():
                        one.mode.meet_unseen()
            except BaseException:
                original(before)
                raise
            original(callback)
            return before

        importlib.import_module(_FRAMES).skip_code(set_eval_frame.__code__)
        setattr(set_eval_frame, _OURS, True)
        for place in places:
            if hasattr(place, _NAME):
                setattr(place, _NAME, set_eval_frame)
