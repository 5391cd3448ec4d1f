"""How a function is named that a framework wraps around each of its models, on the real torch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from rocm_autopatch.compile_report.model import SourcePlace
from rocm_autopatch.compile_report.summary import short_place
from rocm_autopatch.patches import callers
from tests.conftest import Interpreter
from tests.programs import line_of, program_file

FRAMEWORK = program_file("callers/framework.py").read_text()
PROGRAM = program_file("callers/models.py").read_text()
POLICY = "version: 1\npatches: {watchdog: {warn_after: 0.5}}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "framework.py").write_text(FRAMEWORK)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def test_the_class_of_the_model_and_the_program_s_line(
    torch_python: Interpreter, place: Path
) -> None:
    program, report = place / "program.py", place / "report"
    words = ("-m", "rocm_autopatch", "run", "--report", report, "--", torch_python.path, program)
    done = torch_python.run(
        *words,
        env={
            "PYTHONPATH": str(place / "site-packages"),
            "ROCM_AUTOPATCH_POLICY": str(place / "policy.yaml"),
        },
    )
    library = place / "site-packages" / "framework.py"
    wrapper = f"{library}:{line_of(library, '    @functools.wraps(')}"
    number = line_of(program, "        framework.generate(")
    line = f"{program}:{number}"
    said = done.stderr
    first = f"First.wrapper ({wrapper}), compile 0/0; called at {line};"
    assert f"a compile has lasted 0.5 s: {first}" in said
    # Both models have the same code, so they share its limit. The ninth compile is the first's.
    assert f"First.wrapper ({wrapper}, called at {line}) is compiled for the 9th time" in said
    shown = torch_python.run("-m", "rocm_autopatch", "report", report, "--json").stdout
    graphs = json.loads(shown)["graphs"]
    assert {(g["model"], g["function"], g["caller"]) for g in graphs} == {
        (name, f"{name}.wrapper", line) for name in ("First", "Second")
    }
    text = torch_python.run("-m", "rocm_autopatch", "report", report, cwd=place).stdout
    assert f" First.wrapper, called at program.py:{number}\n" in text


def code(file: str) -> CodeType:
    return compile("pass", file, "exec")


def frame(file: str, line: int, back: Any, name: str = "app") -> Any:
    return SimpleNamespace(
        f_code=code(file), f_lineno=line, f_back=back, f_globals={"__name__": name}
    )


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch that has no more than a file and the class of modules."""
    made = SimpleNamespace(
        __file__="/v/site-packages/torch/__init__.py",
        nn=SimpleNamespace(Module=type("Module", (), {})),
    )
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_the_caller_is_the_programs_before_a_frameworks(torch: Any) -> None:
    program = frame("/app/main.py", 7, None)
    library = frame("/v/site-packages/fw/generate.py", 30, program)
    inside = frame("/v/site-packages/torch/nn/module.py", 9, library)
    stack = frame(os.path.dirname(os.__file__) + "/queue.py", 3, inside, "queue")
    wrapper = code("/v/site-packages/fw/generic.py")
    assert callers.caller(stack, wrapper) == "/app/main.py:7"
    library.f_back = None
    assert callers.caller(inside, wrapper) == "/v/site-packages/fw/generate.py:30"
    assert callers.caller(stack, code("/app/model.py")) == ""
    assert callers.caller(None, wrapper) == ""


def test_the_compiled_function_is_not_its_own_caller(torch: Any) -> None:
    stack = frame("/v/site-packages/fw/generic.py", 5, frame("/app/main.py", 7, None))
    assert callers.caller(stack, stack.f_code) == "/app/main.py:7"


def test_an_installed_file_is_shown_from_its_package_on() -> None:
    assert (
        short_place(SourcePlace("/v/lib/python3.11/site-packages/fw/generic.py", 3))
        == "fw/generic.py:3"
    )


def test_names(torch: Any) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: int) -> int:
            return x

    class Odd:
        __class__ = Model

        def forward(self) -> None: ...

    method = Model.forward.__code__
    assert callers.function(method, {"self": Model(), "x": 1}) == "Model.forward"
    assert callers.function(Odd.forward.__code__, {"self": Odd()}) == "forward"
    assert callers.function(method, {}) == "forward"
    assert callers.function((lambda: 0).__code__, {}) == "<lambda>"
