"""What is built and installed: the wheel's files, the sdist, editable installs; nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

from tests.conftest import (
    HIP,
    MAX,
    ROOT,
    SEEN,
    Interpreter,
    building,
    copy_interpreter,
    label_torch,
    make_venv,
    pip,
)
from tools import dist, lean_source, readme

VERSION = dist.version(ROOT)


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_root_of_the_wheel_has_the_start_up_files(wheel: Path) -> None:
    roots = {name.partition("/")[0] for name in members(wheel)}
    assert roots == {"rocm_autopatch", "rocm_autopatch.pth", "rocm_autopatch.start"}
    policies = {f"rocm_autopatch/policies/{path.name}" for path in ROOT.glob("policies/*.yaml")}
    assert len(policies) == 9
    assert policies <= members(wheel)
    assert {"rocm_autopatch/plans/safe.plan", "rocm_autopatch/py.typed"} <= members(wheel)


def test_its_size(wheel: Path) -> None:
    """Each image and each Pod has it. If it grows: what does no start and no command read?

    32,000 bytes are the stand-in for a GPU, whose C++ is built where it is used.
    """
    assert wheel.stat().st_size < 710_000


def test_code_without_comments(wheel: Path, tmp_path: Path) -> None:
    """Lines are those of the repository; what users call and commands print keeps its text."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        texts = {name: archive.read(name).decode() for name in names}
    for name, text in texts.items():
        source = (ROOT / name).read_text()
        assert text.count("\n") == source.count("\n"), name
        public = name.removeprefix("rocm_autopatch/") in lean_source.PUBLIC
        assert text == lean_source.lean_source(source, public)
    assert sum(map(len, texts.values())) < 0.85 * sum(
        len((ROOT / one).read_text()) for one in names
    )


LEAN = [
    ("x = 1  # why\n", "x = 1\n"),
    ("# why\nx = '# no comment'\n", "\nx = '# no comment'\n"),
    ("x = []  # type: list[int]\n", "x = []  # type: list[int]\n"),
    ('"""First.\n\nMore.\n"""\nx = 1\n', '"""First."""\n\n\n\nx = 1\n'),
    ('def f():\n    """Says\n    why."""\n    return 1\n', "def f():\n\n\n    return 1\n"),
    ('class A(Error):\n    """All of it."""\n', 'class A(Error):\n    """All of it."""\n'),
    ('class A:\n    a: int\n    """Of a."""\n', "class A:\n    a: int\n\n"),
    (
        "def f(a: int = 1, *b: 'é', c: x[int]) -> str:\n    pass\n",
        "def f(a = 1, *b, c):\n    pass\n",
    ),
    (
        "def f(\n    a: x[\n        int\n    ],\n) -> 1: ...\n",
        "def f(\n    a: x[\n        int\n    ],\n): ...\n",
    ),
    ("if TYPE_CHECKING:\n    import a\n\n    B = a\nc = 1\n", "\n\n\n\nc = 1\n"),
    (
        "def f():\n    a: int = 1\n    a.b: 'é' = (2,\n        3)\n    c: int\n",
        "def f():\n    a = 1\n    a.b = (2,\n        3)\n    c: int\n",
    ),
    (
        "a: int = 1\ndef f():\n class B:\n  c: int = 1\n  def g(d):\n   d.e: int = 1\n",
        "a: int = 1\ndef f():\n class B:\n  c: int = 1\n  def g(d):\n   d.e = 1\n",
    ),
    ("TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import a\nb = 1\n", "\n\n\nb = 1\n"),
    ("if TYPE_CHECKING:\n    a = 1\nelse:\n    a = 2\n", None),
]


def test_cpp_without_comments(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".cpp", ".h"))]
        texts = {name: archive.read(name).decode() for name in names}
    assert len(texts) >= 5
    for name, text in texts.items():
        assert text == lean_source.lean_cpp((ROOT / name).read_text())
        assert not re.search(r"^\s*//", text, re.MULTILINE), name
    assert lean_source.lean_cpp("// Why.\nx(); // y\n") == "\nx(); // y\n"


def test_yaml_without_comments(wheel: Path) -> None:
    """That of the commands; policies are for users, who read theirs."""
    kept = []
    with zipfile.ZipFile(wheel) as archive:
        for name in [name for name in archive.namelist() if name.endswith(".yaml")]:
            text = archive.read(name).decode()
            kept.append(bool(re.search(r"^\s*#", text, re.MULTILINE)))
            assert kept[-1] == name.startswith("rocm_autopatch/policies/"), name
            source = (ROOT / name.removeprefix("rocm_autopatch/" if kept[-1] else "")).read_text()
            assert text.count("\n") == source.count("\n")
            assert yaml.safe_load(text) == yaml.safe_load(source)
    assert kept.count(False) == 1


@pytest.mark.parametrize(("source", "lean"), LEAN)
def test_what_is_left_out(source: str, lean: str | None) -> None:
    assert lean_source.lean_source(source) == (source if lean is None else lean)
    assert lean_source.lean_source(source, public=True).count('"""') == source.count('"""')


def test_code_that_would_be_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_source, "_comments", lambda source: iter([(1, 5)]))
    with pytest.raises(lean_source.LeanSourceError):
        lean_source.lean_source("x = 1 + 2\n")


def test_a_start_at_any_moment_of_an_installation(wheel: Path, tmp_path: Path) -> None:
    """Installers write in the order of the archive: what the hook needs is there before it."""
    made = make_venv(tmp_path / "venv")
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    said = []
    with zipfile.ZipFile(wheel) as archive:
        for number, name in enumerate(archive.namelist()):
            archive.extract(name, made.site_packages)
            if number % 20 == 0 or "/" not in name or ".dist-info/" in name:
                done = made.run("-c", SEEN, env={MAX: "1"})
                assert done.stderr == "" or " policy safe applies " in done.stderr, name
                said.append(done.stdout)
    assert (said[0], said[-1]) == ("1\n", "None\n")
    # A start that had begun before the package was removed.
    shutil.rmtree(made.site_packages / "rocm_autopatch" / "startup")
    done = made.run("-c", SEEN, env={MAX: "1"})
    assert done.stdout == "1\n"
    (line,) = done.stderr.splitlines()
    assert "the package is not whole: it is being installed, or install it again: " in line


def test_one_plain_line(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        pth = archive.read("rocm_autopatch.pth").decode("ascii")
        start = archive.read("rocm_autopatch.start").decode("ascii")
    # Scanners look for exec and encoded text in .pth files (MITRE T1546.018). The line calls
    # __init_subclass__, which is start, because every module has one (docs/design.md).
    assert pth == "import rocm_autopatch; rocm_autopatch.__init_subclass__()\n"
    # PEP 829: one pkg.mod:callable a line
    assert start == "rocm_autopatch:start\n"


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        scripts = ConfigParser()
        scripts.read_string(archive.read(name).decode())
    assert metadata["Requires-Python"] == ">=3.9"
    required = metadata.get_all("Requires-Dist", [])
    assert [line for line in required if "extra" not in line] == ["PyYAML>=5.1", "packaging>=20.0"]
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "plot",
        "release",
        "report",
        "site",
        "test",
        "torch",
        "tune",
    }
    assert metadata.get_payload() == readme.for_index(ROOT)
    # PEP 639: an expression, and the file beside it.
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert dict(scripts["console_scripts"]) == {"rocm-autopatch": "rocm_autopatch.cli:main"}


def test_plans(wheel: Path) -> None:
    from rocm_autopatch.policy import builtin

    built = dict(builtin.files())
    with zipfile.ZipFile(wheel) as archive:
        for name, data in built.items():
            assert archive.read(f"rocm_autopatch/plans/{name}") == data
    assert {"safe.plan", "performance.plan", "debug.plan", "images.index"} <= set(built)


def test_an_installed_release_does_not_build_this_one(tmp_path: Path) -> None:
    code = (
        "import runpy, sys, types\n"
        "sys.modules['rocm_autopatch'] = types.ModuleType('rocm_autopatch')\n"
        f"sys.argv = ['setup.py', '-q', 'build', '-b', {str(tmp_path)!r}]\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    with building():
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert list(tmp_path.glob("**/rocm_autopatch/plans/safe.plan"))


def test_uninstall_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    made = make_venv(tmp_path / "venv")
    root = tmp_path / "venv"
    before = {path.relative_to(root) for path in root.rglob("*")}
    pip(made, "install", "--no-deps", wheel)
    made.run("-c", "pass")
    assert made.run("-m", "rocm_autopatch", "--version").stdout == f"{VERSION}\n"
    pip(made, "uninstall", "-y", "rocm_autopatch")
    assert {path.relative_to(root) for path in root.rglob("*")} - before == set()


@pytest.fixture
def editable(tmp_path: Path) -> Interpreter:
    made = make_venv(tmp_path / "venv")
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    with building():
        pip(made, "install", "-e", ROOT)
    return made


@pytest.mark.slow
def test_editable(editable: Interpreter) -> None:
    assert editable.value(SEEN, env={MAX: "1"}) == "None"
    where = editable.value("import rocm_autopatch; print(rocm_autopatch.__file__)")
    assert where == str(ROOT / "rocm_autopatch" / "__init__.py")
    left = {path.name for path in editable.site_packages.iterdir()}
    assert {"rocm_autopatch.pth", "rocm_autopatch.start"} <= left
    pip(editable, "uninstall", "-y", "rocm_autopatch")
    left = {path.name for path in editable.site_packages.iterdir()}
    assert not [name for name in left if re.search("rocm_?autopatch", name)]


def test_console_script(python: Interpreter) -> None:
    script = python.path.parent / "rocm-autopatch"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"
    assert python.run("-m", "rocm_autopatch", "--version").stdout == f"{VERSION}\n"


def test_pip_check(python: Interpreter) -> None:
    pip(python, "check")


@pytest.mark.parametrize("name", ["remove-without-pip", "remove-pep-668"])
def test_the_way_of_the_page_to_remove_it(wheel: Path, tmp_path: Path, name: str) -> None:
    """docs/overlay.md, for a Python without pip, and for one whose pip says that it may not."""
    page = (ROOT / "docs/overlay.md").read_text()
    (script,) = re.findall(rf"^```sh {name}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    own = sys.executable
    if name == "remove-pep-668":
        python = copy_interpreter(tmp_path / "debian")
        pip(python, "install", "pip", "--force-reinstall")
        pip(python, "install", "--no-deps", wheel)
        library = python.site_packages.parent
        (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=Use apt.\n")
        refused = python.run("-m", "pip", "uninstall", "-y", "rocm_autopatch", check=False)
        assert (refused.returncode, "externally-managed" in refused.stderr) == (1, True)
        own = str(python.path)
    else:
        python = make_venv(tmp_path / "venv")
        pip(python, "install", "--no-deps", wheel)
        assert python.run("-m", "pip", "--version", check=False).returncode == 1
    site = python.site_packages
    assert list(site.glob("rocm_autopatch*"))
    script = script.replace("/opt/venv/bin/python3", str(python.path))
    script = script.replace("/usr/bin/python3", own)
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, env={"PATH": os.defpath}
    )
    assert done.returncode == 0, done.stderr
    # pip removes a directory that gets empty.
    assert list(site.glob("rocm_autopatch*")) == []
