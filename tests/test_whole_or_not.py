"""A policy is never applied in part, and what a program's own signal handlers raise is its own."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rocm_autopatch import failure
from rocm_autopatch.patches.config import refused_writes
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import program_file

# Every locale but this one is UTF-8 to Python.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LOOK = """
import json, os, rocm_autopatch
report = rocm_autopatch.status()
print(json.dumps([os.environ.get("A"), os.environ.get("B"), os.environ.get("TORCH_COMPILE_DEBUG"),
    report["active"], report["errors"], [row["name"] for row in report["env"]],
    report["patches"]]))
"""


def test_a_value_that_this_locale_can_t_hold(
    python: Interpreter, tmp_path: Path, golden: Golden
) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text("version: 1\nenv:\n  A: {set: '1'}\n  B: {set: é}\n", encoding="utf-8")
    env = {"ROCM_AUTOPATCH_POLICY": str(policy), "A": "0", "TORCH_COMPILE_DEBUG": "1", **ASCII}
    done = python.run("-c", LOOK, env=env)
    a, b, debug, active, errors, rows, patches = json.loads(done.stdout)
    assert (a, b, debug) == ("0", None, "1")
    assert (active, rows, patches) == (False, [], [])
    (error,) = errors
    assert done.stderr == f"rocm_autopatch: {error}\n"
    golden(done.stderr)


class Mine(Exception):
    pass


@pytest.fixture
def handled() -> Iterator[None]:
    """SIGUSR1 raises an exception of the program's own."""

    def handler(number: int, frame: object) -> None:
        raise Mine

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def _interrupted() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("kind", ["function", "any arguments", "method", "Ctrl-C"])
def test_what_a_signal_handler_raises(kind: str) -> None:
    class Handler:
        def method(self, number: int, frame: object) -> None:
            raise Mine

    def function(number: int, frame: object) -> None:
        raise Mine

    def any_arguments(*arguments: object) -> None:
        raise Mine

    number = signal.SIGINT if kind == "Ctrl-C" else signal.SIGUSR1
    handlers: dict[str, Callable[[int, FrameType | None], None]]
    handlers = {"function": function, "any arguments": any_arguments, "method": Handler().method}
    before = signal.signal(number, handlers.get(kind, signal.default_int_handler))
    try:
        with pytest.raises((Mine, KeyboardInterrupt)) as raised:
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert failure.programs_own(raised.value)


def test_what_a_handler_raises_that_drops_its_frame(handled: None) -> None:
    def drops(number: int, frame: object) -> None:
        del frame
        raise Mine

    signal.signal(signal.SIGUSR1, drops)
    with pytest.raises(Mine) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert failure.programs_own(raised.value)


def test_what_another_thread_sends(python: Interpreter) -> None:
    code = program_file("whole_or_not/sent_by_a_thread.py")
    assert python.run(code, env={"ROCM_AUTOPATCH": "off"}).stdout == "True\n"


def test_what_nobody_s_handler_raised(handled: None) -> None:
    nothing: dict[str, object] = {}
    for fault in (lambda: 1 // 0, lambda: json.loads("{"), lambda: nothing["a"]):
        with pytest.raises((ArithmeticError, ValueError, LookupError)) as raised:
            fault()
        assert not failure.programs_own(raised.value)


def test_a_refused_write_lets_it_through(handled: None) -> None:
    class Interrupts:
        def __eq__(self, other: object) -> bool:
            _interrupted()
            return True

    class Fails:
        def __eq__(self, other: object) -> bool:
            raise ValueError

    row: Any = {"name": "a", "layer": "b"}
    pin = refused_writes.PinnedValue(row, 1)
    assert pin.refuses(Fails())
    with pytest.raises(Mine):
        pin.refuses(Interrupts())


INTERRUPTED = program_file("whole_or_not/interrupted.py")


@pytest.mark.parametrize("module", ["caches", "hooks"])
def test_ctrl_c_in_the_middle_of_an_import(
    python: Interpreter, tmp_path: Path, module: str
) -> None:
    env = {"ROCM_AUTOPATCH": "off", "ROCM_AUTOPATCH_CACHE": str(tmp_path / "caches")}
    done = python.run(INTERRUPTED, module, env=env, timeout=60)
    # What a start has changed is undone if it is interrupted itself.
    assert done.stdout.split() == ["interrupted", "False", str(module == "caches")]


def test_a_failed_start_with_bytecode_alone(python311: Interpreter, tmp_path: Path) -> None:
    """``compileall -b``, and no source: what failed is undone and told all the same."""
    package = tmp_path / "rocm_autopatch"
    shutil.copytree(python311.site_packages / "rocm_autopatch", package)
    python311.run("-m", "compileall", "-q", "-b", package, env={"ROCM_AUTOPATCH": "off"})
    for source in package.rglob("*.py"):
        source.unlink()
    code = """
import rocm_autopatch
def broken():
    raise ValueError("broken")
rocm_autopatch._run = broken
rocm_autopatch.start()
"""
    done = python311.run("-S", "-c", code, env={"PYTHONPATH": str(tmp_path)})
    assert done.stderr == (
        "rocm_autopatch: the start-up hook failed and was undone: ValueError: broken\n"
    )


def test_a_start_that_failed_leaves_the_variables_as_they_were(python311: Interpreter) -> None:
    code = """
import os, rocm_autopatch
from rocm_autopatch import failure
os.environ.update(ADDED="ours", CHANGED="ours", KEPT="theirs")
os.environ.pop("REMOVED", None)
rocm_autopatch._RECORD["env"][:] = [
    (("ADDED",), None, "applied"), (("CHANGED",), "theirs", "applied"),
    (("REMOVED",), "theirs", "applied"), (("KEPT",), None, "kept"),
]
failure.give_up(RuntimeError("planted"))
print(*map(os.environ.get, ("ADDED", "CHANGED", "REMOVED", "KEPT")))
"""
    assert python311.value(code) == "None theirs theirs theirs"
