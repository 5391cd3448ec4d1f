"""The watchdog on the real torch: compiles that really hang, and what it writes about them.

A process meets many hangs, one after the other, because the import of torch takes longer than all
of them. ``hang()`` (programs/watchdog/hangs.py) is where each hangs: it goes on when the watchdog
has warned twice, so a slow machine makes a test slow and not red.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import aborts as ending
from rocm_autopatch.patches.watchdog import libraries, sleeper, underway
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import line_of, program_file

PHASES = program_file("watchdog/phases.py")


def policy(path: Path, fields: str) -> Path:
    path.write_text(f"version: 1\nextends: []\npatches:\n  watchdog: {{{fields}}}\n")
    return path


def environment(path: Path, fields: str, **more: str) -> dict[str, str]:
    return {
        "ROCM_AUTOPATCH_POLICY": str(policy(path / "policy.yaml", fields)),
        "TORCHINDUCTOR_CACHE_DIR": str(path / "cache"),
        "HOME": str(path),
        **more,
    }


def lines(stderr: str) -> dict[str, list[str]]:
    """What the watchdog wrote, by the mark that was written before."""
    said: dict[str, list[str]] = {}
    mark = ""
    for line in stderr.splitlines():
        if line.startswith("== "):
            mark = line[3:]
            said[mark] = []
        elif line.startswith("rocm_autopatch: a compile has lasted"):
            said.setdefault(mark, []).append(line)
    return said


@pytest.fixture(scope="module")
def phases(
    torch_python: Interpreter, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, dict[str, list[str]]]:
    """What a process with many hangs prints, and what the watchdog wrote about each."""
    path = tmp_path_factory.mktemp("phases")
    busy = path / "busy"
    compiler = path / "slow-g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *" -o "*) ;; *) exec g++ "$@"; esac\n'
        f"touch {busy}.reached\nwhile [ -e {busy} ]; do sleep 0.05; done\nexit 1\n"
    )
    compiler.chmod(0o755)
    jit = path / "aiter" / "jit"
    jit.mkdir(parents=True)
    (jit / "core.py").write_text("def build_module(md_name, build):\n    build()\n")
    more = {"BUSY": str(busy), "CXX": str(compiler), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    more["PYTHONPATH"] = str(path)
    done = torch_python.run(PHASES, env=environment(path, "warn_after: 0.25", **more))
    (path / "stderr").write_text(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), lines(done.stderr)


FRAME = {
    "dynamo": ("model", "; tracing (Dynamo); at ", "set TORCHDYNAMO_DISABLE=1"),
    "aot": (
        "model",
        "; tracing forward and backward (AOTAutograd); at ",
        "set TORCHDYNAMO_DISABLE=1",
    ),
    "lowering": ("model", ", graph of 5 nodes; lowering to Inductor's IR; at ", "run uncompiled"),
    "pass": (
        "model",
        ", graph of 5 nodes; graph passes of Inductor; at ",
        "remove the *_custom_*_pass that the program sets in torch._inductor.config",
    ),
    "backend": ("model", "; in the backend, backend; at ", "run uncompiled"),
    "nested": ("model", "; in the backend, outer; at ", "run uncompiled"),
}


def one(said: list[str], pattern: str) -> str:
    """The last line of a phase. On a busy machine, other lines may come before and after it."""
    found = [line for line in said if re.search(pattern, line)]
    assert found, said
    return found[-1]


class TestPhases:
    @pytest.mark.parametrize("name", FRAME)
    def test_frame_phase_place_and_setting(self, phases: Any, name: str) -> None:
        _, said = phases
        frame, phase, setting = FRAME[name]
        line = said[name][-1]
        number = line_of(PHASES, f"def {frame}(")
        assert f"/phases.py:{number}), compile 0/0{phase}" in line
        assert line.split(" s: ")[1].startswith(f"{frame} (/")
        # On a busy machine, it may be between two naps.
        assert re.search(r"/hangs\.py:\d+ in (hang|uses); to stop it: ", line)
        assert setting in line

    def test_a_backward_of_its_own(self, phases: Any) -> None:
        # Autograd's thread compiles it, outside of the compile of any frame.
        _, said = phases
        line = said["backward"][-1].split(" s: ")[1]
        number = line_of(PHASES, "def trained(")
        assert line.startswith("backward graph of 8 nodes of trained (/")
        assert f"/phases.py:{number}), compile 0/0; graph passes of Inductor; at " in line

    def test_a_compiler_that_does_not_come_back(self, phases: Any) -> None:
        _, said = phases
        # On a busy machine a line may come before the compiler is started, or after it has ended. A
        # child that was just forked has its parent's name.
        child = r"; child processes: .*(sleep|slow-g\+\+|phases\.py).* \(pid \d+, started "
        line = one(said["cpp"], r"; compiling C\+\+; at .*" + child)
        assert "to stop it: set CXX to another compiler" in line

    def test_workers(self, phases: Any) -> None:
        _, said = phases
        waits = "; waiting for compile workers, for cpp_fused_sum_tanh_0, 1 of 1 left, "
        line = one(said["worker"], re.escape(waits + "another thread is compiling C++; at "))
        assert "; child processes: " in line
        # To compile without workers would not help: the compiler would be the same.
        assert "to stop it: set CXX to another compiler" in line

    def test_autotuning(self, phases: Any) -> None:
        _, said = phases
        what = (
            r"; autotuning, packed_linear\(32x64, \d+x1, 64x64\), 2 of 2 left, compiling C\+\+; at "
        )
        line = one(said["autotune"], what)
        assert (
            "to stop it: use another mode= or options= of torch.compile (this one asks for "
            "max_autotune), or write this into a policy: "
            "config: {torch._inductor.config: {max_autotune: {pin: false}}}"
        ) in line

    def test_a_library_that_may_be_searching(self, phases: Any) -> None:
        _, said = phases
        searches = "TunableOp may be tuning this GEMM (PYTORCH_TUNABLEOP_ENABLED is 1): set "
        line = one(
            said["library"], re.escape(searches + "PYTORCH_TUNABLEOP_TUNING=0; to stop it: ")
        )
        assert re.search(
            r"; autotuning, packed_linear\(32x64, \d+x1, 64x64\), \d of 2 left; at ", line
        )
        # The variable is still set, but aiter calls no library of GEMMs.
        assert not any("TunableOp" in line for line in said["aiter"])

    def test_builds_of_other_packages(self, phases: Any) -> None:
        _, said = phases
        line = one(said["aiter"], "; aiter is building a kernel module, module_test; at ")
        assert "to stop it: build aiter's kernels before the program starts" in line
        line = one(said["baton"], "; waiting for a lock file of another build of C")
        assert re.search(r"C\+\+ code, /\S+/busy; at torch/utils/file_baton.py:\d+ in wait; ", line)
        assert "to stop it: delete this file if no process is building there; " in line

    def test_intervals_grow(self, phases: Any) -> None:
        _, said = phases
        ends = [line.rpartition("; next message at ")[2] for line in said["backend"]]
        # On a busy machine there is one more line, from before the backend hangs.
        assert ends == ["0.5 s", "1.0 s", "2.0 s"][: max(2, len(ends))]

    def test_the_record(self, phases: Any) -> None:
        (nothing, seen, rows), said = phases
        assert nothing is True
        assert len(seen) == 7
        assert all("Enough" in error for error in seen)
        assert rows["warn_after"]["uses"] == sum(map(len, said.values()))
        assert (rows["warn_after"]["after"], rows["warn_after"]["status"]) == (0.25, "applied")


FAST, FIND = "set it to FAST", "MIOpen may be searching (MIOPEN_FIND_MODE is "


class TestLibraries:
    """What is named of variables, while Inductor benchmarks an operation of a library."""

    @pytest.mark.parametrize(
        ("operation", "said", "variables"),
        [
            ("convolution", f"{FIND}not set): {FAST}", {}),
            ("convolution", f"{FIND}5): {FAST}", {"MIOPEN_FIND_MODE": "5"}),
            ("convolution_bwd_input", f"{FIND}normal): {FAST}", {"MIOPEN_FIND_MODE": "normal"}),
            ("convolution", "", {"MIOPEN_FIND_MODE": "fast", "PYTORCH_TUNABLEOP_ENABLED": "1"}),
            ("convolution", "", {"MIOPEN_FIND_MODE": "2", "MIOPEN_FIND_ENFORCE": "none"}),
            (
                "convolution",
                "MIOpen may be searching (MIOPEN_FIND_ENFORCE is 3): unset it",
                {"MIOPEN_FIND_MODE": "FAST", "MIOPEN_FIND_ENFORCE": "3"},
            ),
            ("addmm", "", {"MIOPEN_FIND_ENFORCE": "3"}),
            ("addmm", "", {"PYTORCH_TUNABLEOP_ENABLED": "0"}),
            ("", "", {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0"}),
            (
                "",
                "TunableOp may be tuning this GEMM (PYTORCH_TUNABLEOP_ENABLED is 1): set "
                "PYTORCH_TUNABLEOP_TUNING=0",
                {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "1"},
            ),
        ],
    )
    def test_variables(
        self,
        monkeypatch: pytest.MonkeyPatch,
        operation: str,
        said: str,
        variables: dict[str, str],
    ) -> None:
        self.torch(monkeypatch)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert libraries.searches(operation) == ([said] if said else [])

    def test_torch_s_own_flag_outranks_the_mode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch(monkeypatch).backends.cudnn.benchmark = True
        monkeypatch.setenv("MIOPEN_FIND_MODE", "FAST")
        (said,) = libraries.searches("convolution")
        assert said.endswith("(torch.backends.cudnn.benchmark is True): set it to False")

    def test_not_a_rocm_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch(monkeypatch).version.hip = None
        monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
        assert libraries.searches("convolution") == libraries.searches("addmm") == []

    def torch(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        flags = SimpleNamespace(cudnn=SimpleNamespace(benchmark=False))
        torch = SimpleNamespace(version=SimpleNamespace(hip="7.0"), backends=flags)
        monkeypatch.setitem(sys.modules, "torch", torch)
        for name in [name for name in os.environ if name.startswith(("MIOPEN", "PYTORCH"))]:
            monkeypatch.delenv(name)
        return torch


@pytest.fixture(scope="module")
def aborts(torch_python: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    path = tmp_path_factory.mktemp("aborts")
    done = torch_python.run(
        program_file("watchdog/aborts.py"),
        env=environment(path, "warn_after: off, abort_after: 60"),
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


class TestAbort:
    def test_the_program_gets_an_exception(self, aborts: Any) -> None:
        (said, kind, *_), stderr = aborts
        assert "CompileTimeout: a compile has lasted " in said[0]
        assert kind[:2] == ["CompileTimeout", "rocm_autopatch.patches.watchdog.aborts"]
        assert re.match(
            r"a compile has lasted \d+\.\d s \(abort_after: 0\.\d s\): "
            r"model \(.*/aborts\.py:\d+\), "
            r"compile \d+/0; in the backend, loops; at .* in loops; to stop it: .* "
            r"\(rocm_autopatch, watchdog\)$",
            kind[2],
        )
        lines = [line for line in stderr.splitlines() if line.startswith("rocm_autopatch: a ")]
        assert ", so its thread gets the exception CompileTimeout: model (" in lines[0]
        # With the stacks of all threads.
        after = stderr[stderr.index(lines[0]) :]
        assert " in loops" in after.partition("most recent call first")[2]

    def test_suppressed_errors_fall_back_to_eager(self, aborts: Any) -> None:
        (_, _, eager, *_), _ = aborts
        assert len(eager) == 4

    def test_one_that_is_swallowed_is_sent_again(self, aborts: Any) -> None:
        (said, *_), _ = aborts
        (result, uses) = said[1]
        assert result.startswith("tensor(")
        assert uses == 1

    def test_at_the_very_end(self, aborts: Any) -> None:
        (*_, late, _, _, _, _), _ = aborts
        assert len(late) == 16
        # On a busy machine none may come to its end in time. A third thing may never be.
        assert set(late) <= {"ended", "compiled"}

    def test_another_thread(self, aborts: Any) -> None:
        (*_, mine, results, nothing, _), _ = aborts
        assert "CompileTimeout" in mine
        assert results == ["model"]
        assert nothing is True


def test_an_exception_that_has_not_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken back when the compile is over: it would come to what the program does next."""
    taken: list[Any] = []
    monkeypatch.setattr(ending, "take_back", taken.append)
    for raised, delivered in ((0, 0), (1, 1), (2, 1)):
        counts = {"raised": raised, "delivered": delivered}
        watch: Any = SimpleNamespace(levels=[None], done=False, ident=0, frame=None, **counts)
        watchdog._leave(watch, 0)
        assert watch.done
    assert [one.raised for one in taken] == [2]


def test_a_thread_that_starts_others(torch_python: Interpreter) -> None:
    """Until Python 3.11, one that is being started has the ident of the thread that starts it.

    An exception for that ident ended the new thread, for which the other one waited without end.
    """
    done = torch_python.run(program_file("watchdog/thread_starts.py"))
    assert json.loads(done.stdout) == [60, 0]


def test_one_that_is_stuck_in_c(torch_python: Interpreter, tmp_path: Path, golden: Golden) -> None:
    """The process is ended once no other compile is under way. The stacks are on stderr."""
    began = time.monotonic()
    env = environment(tmp_path, "abort_after: 60")
    stuck = program_file("watchdog/stuck_in_c.py")
    done = torch_python.run(stuck, env=env, check=False, cwd=tmp_path)
    assert time.monotonic() - began < 40
    assert done.stdout.splitlines() == ["[true, 0]"]
    assert done.returncode == -signal.SIGABRT
    before, mark, after = done.stderr.partition("== legitimate\n")
    assert mark
    assert "its thread gets the exception CompileTimeout" in before
    assert "the process is ended by SIGABRT" not in before
    line, _, stacks = after.partition("\n")
    golden(re.sub(r"\d+\.\d s|/.*; at |compile \d+/\d+", "...", line), PROGRAM=stuck)
    assert "in graph_pass" in stacks


class Clock:
    """A sleeper that looks at a compile that never ends, for 1000 s of its own time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now = 0.0
        self.said: list[str] = []
        frame = sys._getframe()

        class Over(Exception):
            pass

        def abort() -> None:
            raise Over

        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(underway, "settings", {"dump_stacks": False, **settings})
        monkeypatch.setattr(underway, "write", self.said.append)
        monkeypatch.setattr(underway, "stacks", lambda: None)
        monkeypatch.setattr(ending, "_send_exception", lambda *_: None)
        monkeypatch.setattr(os, "abort", abort)
        watch = underway.Watch(frame)
        with contextlib.suppress(Over):
            while self.now < 1000:
                # A thread wakes up a little later than it asked for, and each time by another bit.
                wake = min(sleeper._attend_to(watch), self.now + sleeper._sleep_interval())
                self.now = wake + 0.004 / (1 + len(self.said))


@pytest.mark.parametrize(
    ("warn_after", "abort_after", "told"),
    [
        # The warning and SIGABRT are both due at 4 s.
        (1, 3, ["warning", "warning", "exception", "abort"]),
        # The warning and the exception are both due at 3 s.
        (3, 3, ["exception", "abort"]),
        (2, 10, ["warning"] * 3 + ["exception", "abort"]),
        (False, 3, ["exception", "abort"]),
        (100, None, ["warning"] * 4),
    ],
)
def test_no_warning_right_before_an_abort(
    monkeypatch: pytest.MonkeyPatch, warn_after: Any, abort_after: Any, told: list[str]
) -> None:
    clock = Clock(monkeypatch, warn_after=warn_after, abort_after=abort_after)
    kinds = {"next message": "warning", "CompileTimeout": "exception", "SIGABRT": "abort"}
    assert [next(kinds[word] for word in kinds if word in line) for line in clock.said] == told


def test_a_warning_while_an_abort_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the abort waits for another thread's compile, it writes nothing, and warnings go on."""
    monkeypatch.setattr(
        underway, "running", {0: SimpleNamespace(raised=0, lasts=lambda: True)}, raising=True
    )
    clock = Clock(monkeypatch, warn_after=1, abort_after=3)
    (at,) = [number for number, line in enumerate(clock.said) if "CompileTimeout" in line]
    assert at == 2
    assert [line.rpartition(" at ")[2] for line in clock.said[at + 1 :]][:3] == [
        *("8.0 s", "16 s", "32 s")
    ]


def test_short_compiles_forks_and_the_end(torch_python: Interpreter, tmp_path: Path) -> None:
    done = torch_python.run(
        program_file("watchdog/quiet.py"), env=environment(tmp_path, "warn_after: 120")
    )
    before, during, same, child, after_fork, status, left, name, uses = json.loads(done.stdout)
    assert before[1] is None
    assert (during, same, child, after_fork) == (True, True, 0, True)
    assert status == [0, True]
    assert left == [1, 0, False, False]
    assert (name, uses) == ("_compile", 0)
    # Also the end of the interpreter during a compile writes nothing.
    lines = [line for line in done.stderr.splitlines() if "triton not found" not in line]
    assert lines == [
        'rocm_autopatch: policy policy applies (image: not named): watchdog; "rocm-autopatch '
        'status" lists all changes, ROCM_AUTOPATCH=off turns this off'
    ]


def test_settings_observe_and_log(torch_python: Interpreter, tmp_path: Path) -> None:
    done = torch_python.run(
        program_file("watchdog/settings.py"), env=environment(tmp_path, "warn_after: 0.2")
    )
    seen, outcomes, without, _ = json.loads(done.stdout.splitlines()[-1])
    fields = ("warn_after", "dump_stacks", "abort_after")
    settings = [[one[2].get(name) for name in fields] for one in seen]
    assert settings == [
        [5, False, None],
        [120, True, 50],
        [None] * 3,
        [5, False, None],
        [None] * 3,
        [5, False, None],
    ]
    assert [one[1] for one in seen] == [True, True, False, True, False, True]
    assert seen[0][0] == [["watchdog.warn_after", 5, "applied", ""]]
    off = [None, "skipped", "the policy turns it off"]
    assert seen[2][0] == [["watchdog.warn_after", *off], ["watchdog.abort_after", *off]]
    kept = [None, "kept", "ROCM_AUTOPATCH_KEEP"]
    assert seen[3][0][1] == ["watchdog.abort_after", *kept]
    assert seen[4][0] == [["watchdog.warn_after", *kept], ["watchdog.abort_after", *kept]]
    assert seen[5][0] == [["watchdog.warn_after", None, "observed", ""]]
    assert without == "AttributeError: this torch has no _compile in torch._dynamo.convert_frame"
    observed, ended, quiet, said = outcomes
    assert observed[0] == quiet[0] == said[0] == [2.0]
    assert observed[1] >= 1
    assert ended == 1
    assert (quiet[1], said[1]) == (1, 1)
    observing, _, rest = done.stderr.partition("== quiet\n")
    silent, _, spoken = rest.partition("== False\n")
    assert "a compile has lasted" not in observing.partition("== True\n")[2]
    assert silent == ""
    assert "a compile has lasted 0.2 s: <lambda> (" in spoken
    # dump_stacks
    assert " in hang\n" in spoken.partition("most recent call first")[2]
