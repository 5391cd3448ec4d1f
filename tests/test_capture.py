"""The capture patch on the real torch: what a compile in a graph capture does under each setting.

Torch here is a build for the CPU, which captures nothing. The programs in programs/capture pretend:
inside ``with capture():`` this thread's ``torch.cuda.is_initialized`` and
``is_current_stream_capturing`` say yes, and where the random generator is the subject, its readers
find a GPU whose generator raises in a capture, as it does up to torch 2.9. Dynamo, its backends and
all functions between them and that generator are the real ones. On a real GPU:
experiments/gpu/capture.py.

ROCM_AUTOPATCH_TEST_TORCH names an interpreter with another torch, which must find rocm_autopatch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import Interpreter
from tests.programs import import_of, line_of, program_file

CAPTURING = program_file("capture/capturing.py")

# This fixture asks for the torch by name, which conftest.py can't see.
pytestmark = pytest.mark.slow


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Interpreter:
    other = os.environ.get("ROCM_AUTOPATCH_TEST_TORCH")
    python: Interpreter = (
        Interpreter(Path(other)) if other else request.getfixturevalue("torch_python")
    )
    return python


@pytest.fixture
def shown_by(python: Interpreter, tmp_path: Path) -> Any:
    """What a program in programs/capture prints with ``show``."""

    def shown_by(name: str, *arguments: str) -> Any:
        file = program_file(f"capture/{name}.py")
        later = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        off = {"ROCM_AUTOPATCH": "off"}
        done = forked.run(python, import_of(CAPTURING), file, *arguments, env=off, later=later)
        return json.loads(done.stdout.splitlines()[-1])

    return shown_by


class TestGuard:
    def test_it_raises_before_anything_runs(self, shown_by: Any) -> None:
        said, before, after, right, graphs, uses, status = shown_by("guard")
        line = line_of(CAPTURING, "def forward(")
        assert said[0] == said[1]
        assert said[0] == (
            f"RuntimeError: torch.compile was about to compile forward ({CAPTURING}:{line}) during "
            "CUDA graph capture. First run it outside the capture, as a warm-up with inputs like "
            "these, until nothing is left to compile. Then capture. (rocm_autopatch, capture: "
            "guard)"
        )
        assert before == [0, 0, 2]
        assert (after, right, graphs, uses, status) == ([1, 2], True, 1, 2, "applied")

    def test_it_comes_before_the_native_error(self, shown_by: Any) -> None:
        native, reached, said, quiet, reads, right = shown_by("before_the_native_error")
        assert "Cannot call CUDAGeneratorImpl::current_seed" in native
        assert reached[0] == "get"
        assert said.startswith("RuntimeError: torch.compile was about to compile forward")
        assert quiet == []
        assert reads >= 3  # convert_frame, aot_autograd, compile_fx
        assert right is True

    def test_recompiles_and_resumed_functions(self, shown_by: Any) -> None:
        shapes, resumed = shown_by("recompiles_and_resumed_functions")
        assert "was about to compile forward" in shapes
        assert "was about to compile torch_dynamo_resume_in_broken_at_" in resumed

    def test_suppressed_errors_fall_back_to_eager(self, shown_by: Any) -> None:
        assert shown_by("suppressed_errors") == [True, 1, 0]

    def test_what_a_higher_order_op_compiles_for_itself(self, shown_by: Any) -> None:
        marked, found, right, uses = shown_by("higher_order_op")
        if marked:  # since 2.11
            assert (found, uses) == (right, 0)
        else:
            assert uses == 1


def test_nothing_differs_where_nothing_is_captured(shown_by: Any) -> None:
    without = shown_by("nothing_captured", "")
    assert len(without[1]) > 5
    assert without[3] is False
    assert "capturing.py" in without[1][0]
    for installed in ("guard", "skip-rng", "observe"):
        assert shown_by("nothing_captured", installed) == without


class TestTheCheck:
    def test_cuda_is_not_asked_before_it_runs(self, shown_by: Any) -> None:
        assert shown_by("cuda_not_asked") == [True, [], 0]

    def test_a_question_that_fails(self, shown_by: Any) -> None:
        assert shown_by("question_fails") == [True, [1], 0]


class TestSettings:
    def test_what_is_chosen(self, shown_by: Any) -> None:
        rows, others, wrong, itself, without = shown_by("what_is_chosen")
        assert rows == [["applied"] * 2] * 3 + [["applied", "skipped"]] * 2
        assert others == [
            ["skipped", "off", "off", 0, False, "the policy sets capture: off"],
            [
                *("applied", "off", "guard", 0, True),
                "torch 2.8.0 has no such check of its own; torch has one since 2.14 "
                "(pytorch#185410)",
            ],
            [
                *("applied", "off", "skip-rng", 0, True),
                "torch 2.8.0 can't read the generator in a capture (pytorch#162505)",
            ],
            ["kept", "off", "off", 0, False, "ROCM_AUTOPATCH_KEEP"],
            [
                *("observed", "off", "off", 0, True),
                "torch 2.8.0 can't read the generator in a capture (pytorch#162505)",
            ],
        ]
        assert wrong == "ValueError: 'skip' is not one of off, guard, skip-rng"
        nothing = ["skipped", "off", "off", 0, False]
        assert itself == [
            [*nothing, "torch itself raises since 2.14 (pytorch#185410)"],
            [
                *nothing,
                "since 2.14 torch raises instead of compiling in a capture (pytorch#185410)",
            ],
            ["skipped"],
            [*nothing, "the generator can be read in a capture since torch 2.10 (pytorch#162505)"],
        ]
        assert without == (
            "AttributeError: this torch has no _compile in torch._dynamo.convert_frame"
        )

    def test_observing_counts(self, shown_by: Any) -> None:
        assert shown_by("observing") == [True, 1, "off"]


class TestSkipRng:
    @pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
    def test_it_compiles(self, shown_by: Any, name: str) -> None:
        native, reads, right, *others = shown_by("skip_rng", name)
        assert "Cannot call CUDAGeneratorImpl::current_seed" in native
        assert reads >= {"eager": 1, "aot_eager": 2, "inductor": 3}[name]
        assert right is True
        assert others == [[], True, True, True, 1, True, False]

    def test_a_backward_pass_compiles_when_it_is_run(self, shown_by: Any) -> None:
        quiet, said = shown_by("backward")
        assert quiet == []
        # This does not go through _compile. The patch can't change it, so it is the native error.
        assert "Cannot call CUDAGeneratorImpl::current_seed" in said

    def test_errors_undo_it(self, shown_by: Any) -> None:
        said, *others = shown_by("errors")
        native = "RuntimeError: Cannot call CUDAGeneratorImpl::current_seed during CUDA graph "
        native += "capture"
        assert said[1:3] == said[4:6] == [True, native]
        assert others == [True, 2, ["get", "set"], False]

    def test_other_threads_reach_the_generator(self, shown_by: Any) -> None:
        seen, reached, state = shown_by("other_threads")
        assert seen == [[list(range(16)), True], [[0] * 16, True], ["tuple", True]]
        assert (reached, state) == (["get", "set"], list(range(1, 17)))

    def test_nested_compiles(self, shown_by: Any) -> None:
        assert shown_by("nested") == [[True, True, True], 2, True, []]

    def test_modes_do_not_see_it(self, shown_by: Any) -> None:
        assert shown_by("modes") == [
            [],
            ["cpu", "torch.uint8", [16], "Tensor"],
            True,
            [0.0] * 4,
            [],
        ]

    def test_traced_reads_are_what_they_were(self, shown_by: Any) -> None:
        # Dynamo recognizes these functions by identity. It would trace a replacement.
        (said, graphs), uses, reached = shown_by("traced_reads")
        # First comes the break, and then the call's own error, which is the program's.
        assert "Cannot call CUDAGeneratorImpl::current_seed" in said
        assert graphs == 1
        assert uses >= 1
        assert reached == ["get"]
