"""Post-import hooks: the program sees the same import as without us.

Each program runs twice, without hooks and with hooks for ``target`` and ``target.inner``. It must
print the same to stdout and stderr. The hooks report to a file of their own.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.conftest import Interpreter
from tests.programs import program_file

TARGET = """
import sys
print("executing", type(__spec__.loader).__name__, type(__loader__).__name__)
print(sorted(vars(__spec__.loader)))
import importlib.resources
print((importlib.resources.files("target") / "data.txt").read_text())
"""

ARM = """
import sys
from rocm_autopatch import startup
def hook(module):
    package, _, attribute = module.__name__.rpartition(".")
    bound = not package or getattr(sys.modules[package], attribute, None) is module
    with open("hooks.txt", "a") as stream:
        print(module.__name__, getattr(module, "VALUE", None), bound, file=stream)
startup.arm({"target": hook, "target.inner": hook, "broken": hook})
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    (target / "__init__.py").write_text(TARGET + "VALUE = 1\n")
    (target / "inner.py").write_text("VALUE = 2\n")
    (target / "__main__.py").write_text("print('main', __spec__.name, type(__loader__).__name__)\n")
    (target / "data.txt").write_text("data")
    (tmp_path / "broken.py").write_text(
        "import os\ndef fail():\n    raise RuntimeError('half way')\n"
        "if not os.path.exists('mended'):\n    fail()\nVALUE = 3\n"
    )
    return tmp_path


def same(python: Interpreter, directory: Path, code: str) -> tuple[str, list[str]]:
    """The stdout of *code*, which hooks must not change, and what the hooks saw."""
    outputs = []
    for arm in ("", ARM):
        (directory / "hooks.txt").write_text("")
        (directory / "mended").unlink(missing_ok=True)
        # Two files with the same name, because tracebacks show the path.
        program = directory / "program.py"
        program.write_text(code)
        (directory / "arm.py").write_text(arm)
        done = python.run(
            *("-c", "import arm, runpy; runpy.run_path('program.py', run_name='__main__')"),
            env={"ROCM_AUTOPATCH": "off", "PYTHONPATH": "."},
            cwd=directory,
            check=False,
        )
        outputs.append((done.stdout, done.stderr, done.returncode))
    assert outputs[0] == outputs[1]
    return outputs[0][0], (directory / "hooks.txt").read_text().splitlines()


def test_import(python: Interpreter, directory: Path) -> None:
    code = """
import sys
before = len(sys.meta_path)
import target.inner
print(type(target.__spec__.loader).__name__, vars(target.__loader__), target.inner.VALUE)
"""
    out, hooks = same(python, directory, code)
    assert out.startswith("executing SourceFileLoader SourceFileLoader\n['name', 'path']\ndata\n")
    assert hooks == ["target 1 True", "target.inner 2 True"]


def test_the_finder_leaves_after_the_last_target(python: Interpreter, directory: Path) -> None:
    code = """
import sys
from rocm_autopatch import startup
before = list(sys.meta_path)
startup.arm({"broken": id, "target.inner": id})
print(len(sys.meta_path) - len(before), tuple(startup.waiting))
import target.inner
print(len(sys.meta_path) - len(before), tuple(startup.waiting))
open("mended", "w").close()
import broken
print(sys.meta_path == before, tuple(startup.waiting))
"""
    out = python.run("-c", code, env={"ROCM_AUTOPATCH": "off"}, cwd=directory).stdout
    assert out.startswith("1 ('broken', 'target.inner')\n")
    assert out.endswith("1 ('broken',)\nTrue ()\n")


SHORT = [
    "import runpy; runpy.run_module('target', run_name='__main__')",
    "import target.absent",
    "from target import absent",
    "import broken",
    "import importlib.resources as r; print((r.files('target') / 'data.txt').read_text())",
    "import pkgutil, target; print(pkgutil.get_data('target', 'data.txt'))",
]
FILES = sorted(program_file("hooks/reload.py").parent.glob("*.py"))


@pytest.mark.parametrize("code", SHORT)
def test_one_line_as_without_us(python: Interpreter, directory: Path, code: str) -> None:
    same(python, directory, code)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_as_without_us(python: Interpreter, directory: Path, file: Path) -> None:
    same(python, directory, file.read_text())


def test_a_module_that_raises_waits_on(python: Interpreter, directory: Path) -> None:
    code = """
import traceback
for attempt in range(2):
    try:
        import broken
    except RuntimeError:
        traceback.print_exc()
        open("mended", "w").close()
print(broken.VALUE)
"""
    out, hooks = same(python, directory, code)
    assert out == "3\n"
    assert hooks == ["broken 3 True"]


def test_warnings_name_the_importer(python: Interpreter, directory: Path) -> None:
    (directory / "broken.py").write_text("import warnings\nwarnings.warn('old', stacklevel=2)\n")
    _, hooks = same(python, directory, "import broken\n")
    assert hooks == ["broken None True"]
    shown = python.run(
        *("-c", ARM + "import broken"), env={"ROCM_AUTOPATCH": "off"}, cwd=directory
    ).stderr
    assert shown.splitlines()[0].startswith("<string>:")


def test_threads_importing_at_once(python: Interpreter, directory: Path) -> None:
    (directory / "broken.py").write_text("import time\ntime.sleep(0.3)\nVALUE = 4\n")
    code = """
import sys, threading
seen = []
def work():
    import broken
    seen.append((broken.VALUE, getattr(broken, "patched", None)))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(20)
print(len(seen), set(seen), [t.is_alive() for t in threads].count(True))
"""
    out, hooks = same(python, directory, code)
    assert out == "8 {(4, None)} 0\n"
    assert hooks == ["broken 4 True"]


def test_no_thread_gets_a_module_before_its_hook_has_run(
    python: Interpreter, directory: Path
) -> None:
    (directory / "broken.py").write_text("VALUE = 5\n")
    code = program_file("hooks/armed/each_thread.py").read_text()
    out = python.run("-c", code, env={"ROCM_AUTOPATCH": "off"}, cwd=directory).stdout
    assert out == "['patched', 'patched', 'patched', 'patched']\n"


def test_a_thread_started_while_a_target_is_imported(python: Interpreter, directory: Path) -> None:
    (directory / "target" / "__init__.py").write_text(
        "import threading\n"
        "def work():\n    import json.tool, target.inner\n"
        "thread = threading.Thread(target=work)\nthread.start()\nVALUE = 1\n"
    )
    out, hooks = same(
        python, directory, "import target; target.thread.join(20); print(target.thread.is_alive())"
    )
    assert out == "False\n"
    assert sorted(hooks) == ["target 1 True", "target.inner 2 True"]


def test_imported_before_we_came(python: Interpreter, directory: Path) -> None:
    code = f"import target, target.inner\n{ARM}\nprint(tuple(startup.waiting))"
    out = python.run("-c", code, env={"ROCM_AUTOPATCH": "off"}, cwd=directory).stdout
    assert out.endswith("('broken',)\n")
    assert (directory / "hooks.txt").read_text() == "target 1 True\ntarget.inner 2 True\n"


def test_archives(python: Interpreter, directory: Path) -> None:
    # zipimporter is one object for all modules of an archive.
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        for name in ("broken", "other"):
            archive.writestr(f"{name}.py", "VALUE = __name__\nprint(type(__loader__).__name__)\n")
    code = "import sys; sys.path.insert(0, 'archive.zip'); import other, broken"
    out, hooks = same(python, directory, code)
    assert out == "zipimporter\nzipimporter\n"
    # Before 3.10, zipimporter has no exec_module: its modules are imported as without us.
    has_exec = python.value("import zipimport as z; print(hasattr(z.zipimporter, 'exec_module'))")
    assert hooks == (["broken broken True"] if has_exec == "True" else [])


@pytest.mark.parametrize("name", ["target", "target.inner", "broken"])
def test_python_m(python: Interpreter, directory: Path, name: str) -> None:
    code = f"""
import runpy
try:
    runpy._run_module_as_main({name!r})
except SystemExit as error:
    print(error)
"""
    same(python, directory, code)


def test_no_code_of_ours_where_an_exception_is_dropped(
    python: Interpreter, directory: Path
) -> None:
    """C code asks a spec whether its module is initializing, and drops what a signal raises there.

    It does so for a missing attribute of a module, and for a module that is imported already.
    """
    (directory / "target" / "inner.py").write_text(
        "import sys\n"
        "calls = []\n"
        "sys.setprofile(lambda frame, what, _: calls.append(frame.f_code.co_filename))\n"
        "getattr(sys.modules[__name__], 'missing', None)\n"
        "import target.inner\n"
        "sys.setprofile(None)\n"
        "print([name for name in calls if 'rocm_autopatch' in name])\n"
    )
    out, _ = same(python, directory, "import target.inner")
    assert out.endswith("[]\n")
