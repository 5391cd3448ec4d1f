"""The stubs of torch, by which mypy reads rocm_autopatch/graphs, say what is true of torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import ROOT, Interpreter
from tests.programs import program_file

TYPINGS = ROOT / "tools" / "typings"
ASK = program_file("typings/ask_torch.py")


def test_this_torch_has_what_the_stubs_say(torch_python: Interpreter) -> None:
    *wrong, last = torch_python.run(ASK, TYPINGS).stdout.splitlines()
    assert wrong == []
    assert int(last.partition(" ")[0]) > 200


def test_what_is_not_true_is_found(torch_python: Interpreter, tmp_path: Path) -> None:
    copy = tmp_path / "typings"
    shutil.copytree(TYPINGS, copy)
    with open(copy / "torch" / "__init__.pyi", "a", encoding="utf-8") as file:
        file.write("def no_such_function() -> None: ...\n")
        file.write("# Until 2.4.\ndef zeros() -> None: ...\n")
        file.write("# From 2.5 on.\ndef no_such_function_either() -> None: ...\n")
        file.write("class Tensor:\n    no_such_attribute: int\n")
        file.write("def typename(object: object) -> str: ...\n")
    *wrong, _ = torch_python.run(ASK, copy).stdout.splitlines()
    assert wrong == [
        "torch.no_such_function: it is not there",
        "torch.zeros: it is there",
        "torch.no_such_function_either: it is not there",
        "torch.Tensor.no_such_attribute: it is not there",
        "torch.typename: it has no parameter object: obj",
    ]
