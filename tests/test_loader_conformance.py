"""What loaders and finders promise, compared with the import system without us.

Each program runs twice, without hooks and with hooks armed before its first line. It must print the
same to stdout and stderr, and end with the same status. The hooks report to a file of their own.
The hook of each name in ``hooks`` is called once; with a question mark, it may be called.
programs/loader_conformance has the programs, and in imported/ what they import.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Interpreter
from tests.programs import program_file

# The modules that have hooks in every program, whether it imports them or not.
NAMES = (
    "target target.inner target.extra alone broken syntax missing stops interrupted looks warns "
    "spread spread.part made made2 made3 archived archived2 archived3 compiled _lsprof __hello__ "
    "xxsubtype absent replaced removed cycle.one cycle.two"
)

NO_VALUE = ("_", "spread ", "xxsubtype ")

ARM = """
import os, sys
from rocm_autopatch import startup
def hook(module, hooks=%r):
    with open(hooks, "a") as stream:
        print(module.__name__, hasattr(module, "VALUE"), file=stream)
startup.arm(dict.fromkeys(%r.split(), hook))
"""

PROGRAMS = program_file("loader_conformance/imported/memory.py").parent.parent
# What else is imported, beside programs/loader_conformance/imported: no linter reads it.
BROKEN = {"syntax.py": "VALUE = = 6\n"}


@dataclass(frozen=True)
class Program:
    code: str
    hooks: str = ""
    names: str = NAMES
    # Why we may write a line to stderr: something keeps us from our work.
    says: str = ""


def read_program(name: str) -> Program:
    """A program in programs/loader_conformance. Its docstring has the other fields, each in a line
    such as ``hooks: target alone?``."""
    code = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    described = ast.get_docstring(ast.parse(code)) or ""
    fields = dict(re.findall(r"(?m)^(hooks|armed|says): (.*)$", described))
    return Program(
        code, fields.get("hooks", ""), fields.get("armed", NAMES), fields.get("says", "")
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(PROGRAMS / "imported", tmp_path, dirs_exist_ok=True)
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "site").mkdir()
    return tmp_path


def same(
    python: Interpreter, directory: Path, given: Program, *arguments: str
) -> tuple[str, list[str]]:
    """The stdout of *given*, which hooks must not change, and the hooks that were called."""
    (directory / "program.py").write_text(given.code)
    hooks = directory / "hooks.txt"
    outputs = []
    for arm in ("", ARM % (str(hooks), given.names)):
        hooks.write_text("")
        (directory / "mended").unlink(missing_ok=True)
        (directory / "site" / "sitecustomize.py").write_text(arm)
        done = python.run(
            *(arguments or ("program.py",)),
            env={"ROCM_AUTOPATCH": "off", "PYTHONPATH": "site", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=directory,
            check=False,
            timeout=60,
        )
        errors = done.stderr
        if given.says and arm:
            errors = re.sub(r"(?m)^rocm_autopatch: .*\n", "", errors)
        out, errors = (re.sub(r"0x[0-9a-f]+", "0x", text) for text in (done.stdout, errors))
        outputs.append((out, errors, done.returncode))
    assert outputs[1] == outputs[0]
    called = hooks.read_text().splitlines()
    # Nothing is executed in a namespace package, so its hook may be called or not.
    wanted = {name.rstrip("?") for name in f"{given.hooks} spread".split()}
    least = {name for name in given.hooks.split() if not name.endswith("?")}
    ran = [line.split()[0] for line in called]
    assert len(ran) == len(set(ran))
    assert least <= set(ran) <= wanted
    # A module that is not source has no VALUE. Every other module has one when its hook is called.
    assert not [line for line in called if line.endswith("False") and not line.startswith(NO_VALUE)]
    return outputs[0][0], ran


NAMES_OF_PROGRAMS = [
    f"{path.parent.name}/{path.stem}"
    for kind in ("specs", "modules", "failures", "loaders", "finders")
    for path in sorted((PROGRAMS / kind).glob("*.py"))
]


@pytest.mark.parametrize("name", NAMES_OF_PROGRAMS)
def test_program(python: Interpreter, directory: Path, name: str) -> None:
    if name == "modules/no_source":
        python.run(
            *("-c", "import py_compile; py_compile.compile('alone.py', 'compiled.pyc')"),
            cwd=directory,
        )
    same(python, directory, read_program(name))


@pytest.mark.parametrize(
    ("code", "hooks"),
    [
        ("import broken", ""),
        ("import nested", ""),
        ("def f():\n    from broken import VALUE\nf()\n", ""),
        ("import syntax", ""),
        ("import missing", ""),
        ("import stops", ""),
        ("import interrupted", ""),
        ("import absent", ""),
        ("import target.absent", "target"),
        ("from alone import absent", "alone"),
        ("import alone.absent", "alone"),
        ("exec('import broken')", ""),
        ("try:\n    import broken\nexcept RuntimeError as e:\n    raise OSError from e\n", ""),
        ("def f():\n    import warns\nf()\n", "warns"),
        ("def f():\n    import looks\nf()\n", "looks"),
    ],
)
def test_what_python_says_of_an_import(
    python: Interpreter, directory: Path, code: str, hooks: str
) -> None:
    same(python, directory, Program(code, hooks))


@pytest.mark.parametrize(
    "name",
    ["target", "target.inner", "alone", "broken", "spread.part", "spread", "absent", "looks"],
)
def test_python_m(python: Interpreter, directory: Path, name: str) -> None:
    hooks = "target" if name.startswith("target") else ""
    same(python, directory, Program("", hooks), "-m", name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("target",),
        ("archive.zip",),
        ("alone.py",),
        ("-c", "import broken"),
        ("-W", "error", "-c", "import warns"),
        ("-X", "dev", "-W", "error", "-bb", "-c", "import target.inner, alone; print(alone.VALUE)"),
        ("-OO", "-c", "import alone; print(alone.__doc__)"),
    ],
    ids=" ".join,
)
def test_command_line(python: Interpreter, directory: Path, arguments: tuple[str, ...]) -> None:
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", "import archived\nprint(__spec__, archived.VALUE)\n")
        archive.writestr("archived.py", "VALUE = 1\n")
    same(
        python,
        directory,
        Program("", "target? target.inner? alone? warns? archived?"),
        *arguments,
    )


@pytest.mark.parametrize(
    "name", ["failing", "one_loader_for_all", "reloaded", "resources_and_source"]
)
def test_archive(python: Interpreter, directory: Path, name: str) -> None:
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        for module in ("archived", "archived2", "other", "package/archived", "package/__init__"):
            archive.writestr(f"{module}.py", "VALUE = __name__\nprint(type(__loader__).__name__)\n")
        archive.writestr("archived3.py", (directory / "broken.py").read_text())
        archive.writestr("package/data.txt", "data")
    asked = "import zipimport as z; print(hasattr(z.zipimporter, 'exec_module'))"
    asks_loader = python.value(asked) == "True"
    read = read_program(f"archives/{name}")
    # Before 3.10, zipimporter has no exec_module: its modules are imported as without us.
    hooks = read.hooks if asks_loader else "archived? archived2? archived3?"
    same(python, directory, dataclasses.replace(read, hooks=hooks))


class TestLeaving:
    """The finder leaves with the last target, whatever other threads do."""

    PAST = read_program("leaving/another_thread_is_past_it")

    def test_another_thread_is_past_it(self, python: Interpreter, directory: Path) -> None:
        out, _ = same(python, directory, self.PAST)
        assert "['unrelated'] False" in out

    def test_hooks_are_armed_meanwhile(self, python: Interpreter, directory: Path) -> None:
        (directory / "program.py").write_text(self.PAST.code)
        done = python.run("program.py", "arm", env={"ROCM_AUTOPATCH": "off"}, cwd=directory)
        assert "['unrelated'] False" in done.stdout

    def test_three_threads(self, python311: Interpreter, directory: Path) -> None:
        for _ in range(3):
            out, _ = same(python311, directory, read_program("leaving/three_threads"))
            assert out.endswith("[]\n")
