"""experiments/matrix/upstream.py, which runs PyTorch's own tests without us and with us.

Here PyTorch is a repository of a few files, and torch a package of a few names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surroundings import hip_torch
from tests.conftest import CLEAN, ROOT, WORK
from tests.programs import program_file

MATRIX = ROOT / "experiments" / "matrix"
sys.path.append(str(MATRIX))

import upstream  # noqa: E402
import upstream_checkout  # noqa: E402
from upstream import Outcome, Run  # noqa: E402
from upstream_checkout import CheckoutError  # noqa: E402


def git(directory: Path, *words: str | Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    env = {**CLEAN, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(
        ["git", *identity, *words], cwd=directory, env=env, check=True, stdout=sys.stderr
    )


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A bare repository with PyTorch's tags v2.6.0 and v2.13.0, and one without tests."""
    source = write(tmp_path / "source", {"version.txt": "2.5.0a0\n", "aten/large.cpp": "int x;\n"})
    git(tmp_path, "init", "-q", source)
    tests = {"v2.4.0": "", "v2.6.0": "2.6.0a0", "v2.13.0": "2.13.0a0"}
    for tag, version in tests.items():
        if version:
            write(source, {"version.txt": f"{version}\n", "test/dynamo/test_a.py": f"# {tag}\n"})
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", tag)
        git(source, "tag", tag)
    git(tmp_path, "clone", "-q", "--bare", source, "pytorch.git")
    git(tmp_path / "pytorch.git", "config", "uploadpack.allowFilter", "true")
    return (tmp_path / "pytorch.git").as_uri()


class TestCheckout:
    def test_the_tests_of_the_torch_alone_are_fetched(self, tmp_path: Path, address: str) -> None:
        found = upstream_checkout.fetch("2.6.0+rocm6.2", address, tmp_path / "work")
        assert (found / "test/dynamo/test_a.py").read_text() == "# v2.6.0\n"
        assert upstream_checkout.version(found) == "2.6.0a0"
        assert not (found / "aten").exists()
        log = ["git", "-C", str(found), "rev-list", "--count", "HEAD"]
        assert subprocess.check_output(log, text=True).strip() == "1"

    def test_they_are_fetched_once(self, tmp_path: Path, address: str) -> None:
        first = upstream_checkout.fetch("2.13.0", address, tmp_path / "work")
        (tmp_path / "pytorch.git").rename(tmp_path / "gone.git")
        assert upstream_checkout.fetch("2.13.0", address, tmp_path / "work") == first
        with pytest.raises(CheckoutError):
            upstream_checkout.fetch("2.13.0", address + "/other", tmp_path / "work")
        # What was there stays.
        assert upstream_checkout.fetch("2.13.0", address, tmp_path / "work") == first

    @pytest.mark.parametrize(
        ("version", "message"),
        [
            ("2.7.0", "the tests of v2.7.0 can't be fetched from ADDRESS: fatal: Remote branch"),
            ("2.4.0", "v2.4.0 of ADDRESS has no directory test"),
            ("2.14.0.dev20261101+rocm7.0", "torch 2.14.0.dev20261101+rocm7.0 is no release"),
            ("2.14.0a0+gitabc", "is no release"),
        ],
    )
    def test_says_why_not(self, tmp_path: Path, address: str, version: str, message: str) -> None:
        with pytest.raises(CheckoutError) as problem:
            upstream_checkout.fetch(version, address, tmp_path / "work")
        assert message.replace("ADDRESS", address) in str(problem.value)
        assert "\n" not in str(problem.value)
        assert not list((tmp_path / "work").glob("*"))

    def test_without_git(
        self, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CheckoutError, match="there is no git on PATH"):
            upstream_checkout.fetch("2.6.0", address, tmp_path / "work")

    def test_a_directory_without_tests(self, tmp_path: Path) -> None:
        with pytest.raises(CheckoutError, match="no checkout of PyTorch"):
            upstream_checkout.given(tmp_path)

    def test_of_the_command(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, MATRIX / "upstream.py", tmp_path],
            env=CLEAN,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert done.stderr == (
            f"upstream: {tmp_path} is no checkout of PyTorch: it has no directory test\n"
        )

    def test_without_the_interpreter(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, MATRIX / "upstream.py", "--python", tmp_path / "python"],
            env=CLEAN,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert f"--python: there is no program {tmp_path}/python" in done.stderr

    @pytest.mark.parametrize(
        ("version", "release"),
        [("2.6.0a0", "2.6.0"), ("2.6.0+debian", "2.6.0"), ("2.13.0\n", "2.13.0"), ("", "")],
    )
    def test_release(self, version: str, release: str) -> None:
        assert upstream_checkout.release(version) == release


TORCH = {
    "torch/__init__.py": "class Tensor:\n    def sin(self): pass\n",
    "torch/_dynamo/__init__.py": "",
    "torch/_dynamo/config.py": "verbose = False\n",
    "torch/_dynamo/testing.py": "def old(): return 1\n",
    "torch/broken.py": "import not_installed_here\n",
}


def names(tmp_path: Path, test: str, **others: str) -> tuple[dict[str, Outcome], list[str]]:
    """What becomes of a test file on this torch, and which names were replaced."""
    library = write(tmp_path / "library", TORCH)
    (library / "absent_names.py").write_bytes((MATRIX / "absent_names.py").read_bytes())
    tests = write(tmp_path / "tests", {"test_a.py": test, "pytest.ini": "[pytest]\n", **others})
    found, results = tmp_path / "names.json", tmp_path / "results.xml"
    options = ["-p", "absent_names", f"--absent-names={found}", f"--junitxml={results}"]
    options += ["-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--rootdir={tests}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_a.py", *options],
        cwd=tests,
        env={**CLEAN, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
    )
    assert found.is_file(), done.stdout + done.stderr
    ended = {name.rpartition("::")[2]: one for name, one in upstream.read(results).items()}
    return ended, json.loads(found.read_text())


class TestAbsentNames:
    def test_none_is_replaced_where_none_is_missing(self, tmp_path: Path) -> None:
        ended, absent = names(
            tmp_path,
            "import torch\nimport torch._dynamo.config\n"
            "from torch._dynamo.testing import old\n"
            "def test(): assert old() == 1 and not torch._dynamo.config.verbose\n",
        )
        assert (ended, absent) == ({"test": Outcome("passed")}, [])

    def test_a_missing_name_skips_the_tests_that_use_it(self, tmp_path: Path) -> None:
        ended, absent = names(
            tmp_path,
            program_file("upstream/absent_names.py").read_text(),
        )
        passed = {"test_old", "test_own"}
        assert {name for name, one in ended.items() if one.status == "passed"} == passed
        skipped = {name: one.line for name, one in ended.items() if one.status == "skipped"}
        assert {*skipped} | passed == {*ended}
        assert len(ended) == 13
        assert skipped["test_newer"] == skipped["test_hidden"]
        assert skipped["test_newer"] == "this torch has no torch._dynamo.newer.f"
        assert skipped["test_decorated"] == "this torch has no torch.compiler.skipped"
        assert skipped["test_base"] == "this torch has no torch._dynamo.testing.new"
        assert absent == [
            "torch.Tensor.cos",
            "torch._dynamo.config.gone",
            "torch._dynamo.newer",
            "torch._dynamo.newer.f",
            "torch._dynamo.testing.gone",
            "torch._dynamo.testing.new",
            "torch.compiler.skipped",
            "torch.gone.is_here",
            "torch.gone.value",
            "torch.newest",
        ]

    def test_what_a_test_looks_for_itself_stays_missing(self, tmp_path: Path) -> None:
        ended, absent = names(
            tmp_path,
            program_file("upstream/looks_for_names.py").read_text(),
        )
        assert ended.pop("test_other").status == "skipped"
        assert {one.status for one in ended.values()} == {"passed"}
        assert (len(ended), absent) == (5, ["torch.sixth"])

    def test_what_is_missing_elsewhere_is_no_name_of_torch(self, tmp_path: Path) -> None:
        """The test fails as it would: torch has the module, and the module lacks a library."""
        ended, absent = names(
            tmp_path,
            "import torch, pytest\n"
            "def test_broken():\n"
            "    import torch.broken\n"
            "def test_operator(): torch.ops.mine.add\n",
        )
        assert {name: one.status for name, one in ended.items()} == {
            "test_broken": "failed",
            "test_operator": "failed",
        }
        assert absent == []

    def test_in_modules_that_tests_import(self, tmp_path: Path) -> None:
        ended, absent = names(
            tmp_path,
            "from helper import use\ndef test(): use()\n",
            **{"helper.py": "from torch import gone\ndef use(): return gone()\n"},
        )
        assert ended == {"test": Outcome("skipped", "this torch has no torch.gone")}
        assert absent == ["torch.gone"]


def seen(**changes: object) -> dict[str, Any]:
    found = {"torch": "2.6.0", "installed": True, "active": True, "changes": True}
    return {**found, "policy": "safe", "errors": [], "why": "default", **changes}


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "said", "words"),
        [
            ("bare", {"torch": "2.6.0", "installed": False}, "not installed"),
            (
                "idle",
                seen(active=False, changes=False, why="ROCM_AUTOPATCH=off"),
                "nothing applies: ROCM_AUTOPATCH=off",
            ),
            ("empty", seen(changes=False, policy="empty"), "an empty policy"),
            ("safe", seen(), "the policy safe"),
        ],
    )
    def test_as_it_is_called(self, setting: str, said: dict[str, Any], words: str) -> None:
        assert upstream.judge("2.6.0", setting, {}, said) == words

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("bare", seen()),
            ("again", seen()),
            ("bare", {"torch": "2.13.0", "installed": False}),
            ("idle", {"torch": "2.6.0", "installed": False}),
            ("idle", seen()),
            ("idle", seen(active=False)),
            ("empty", seen(policy="empty")),
            ("empty", seen(changes=False)),
            ("safe", seen(changes=False)),
            ("safe", seen(active=False, changes=False)),
            ("safe", seen(errors=["patch config failed"])),
            ("safe", seen(policy="debug")),
        ],
    )
    def test_not_as_it_is_called(self, setting: str, said: dict[str, Any]) -> None:
        with pytest.raises(upstream.NotWhatItIsCalled, match=f"^{setting} is not"):
            upstream.judge("2.6.0", setting, {}, said)

    @pytest.mark.parametrize("rocm", [True, False])
    def test_variables(self, tmp_path: Path, rocm: bool) -> None:
        torch = upstream.Torch(tmp_path, tmp_path, "2.6.0", rocm, "")
        found = {name: torch.variables(name, tmp_path) for name in upstream.SETTINGS}
        assert found["bare"] == found["again"] == {}
        assert found["idle"] == ({"ROCM_AUTOPATCH": "off"} if rocm else {})
        assert ("ROCM_AUTOPATCH_ASSUME" in found["safe"]) is not rocm
        assert (tmp_path / "empty.yaml").read_text() == upstream.EMPTY


XML = """<testsuites><testsuite>
<testcase classname="a.T" name="passes"/>
<testcase classname="a.T" name="fails"><failure message="&#10; At 0x7f /a/b.py&#10;."/></testcase>
<testcase classname="a.T" name="twice"><failure message="first"/></testcase>
<testcase classname="a.T" name="twice"><error message="second"/></testcase>
<testcase classname="a.T" name="skips"><skipped message="no GPU"/></testcase>
<testcase classname="" name="a.py"><error message="collection failure"/></testcase>
</testsuite></testsuites>"""


def test_outcomes(tmp_path: Path) -> None:
    (tmp_path / "results.xml").write_text(XML)
    found = upstream.read(tmp_path / "results.xml")
    assert found == {
        "a.T::passes": Outcome("passed"),
        "a.T::fails": Outcome("failed", "At 0x... .../b.py"),
        "a.T::twice": Outcome("failed", "first"),
        "a.T::skips": Outcome("skipped", "no GPU"),
        "a.py": Outcome("error", "collection failure"),
    }
    assert Run(1.0, 1, found).count() == "1/3/1"


def test_first_lines_do_not_vary() -> None:
    """A KeyError shows the line ends of its text as it shows its quotes."""
    assert upstream.first_line(repr(KeyError("a.b\n\nTo execute this test, run"))) == (
        "KeyError('a.b"
    )


def test_flaky_tests_are_no_differences(tmp_path: Path) -> None:
    torch = upstream.Torch(tmp_path, tmp_path, "2.6.0", False, "")
    report = upstream.Report(torch, "2.6.0a0")
    good, bad = Outcome("passed"), Outcome("failed", "why")
    ended = {
        "bare": {"a": good, "b": good, "c": good},
        "idle": {"a": good, "b": bad, "c": good},
        "empty": {"a": good, "b": good},
        "safe": {"a": bad, "b": bad, "c": good},
        "again": {"a": good, "b": bad, "c": good},
    }
    report.runs["t.py"] = {name: Run(1.0, 0, tests) for name, tests in ended.items()}
    assert report.differences("idle") == []
    assert report.differences("empty") == [("t.py", "c", good, Outcome("absent"))]
    assert report.differences("safe") == [("t.py", "a", good, bad)]
    assert [found[1] for found in report.differences("again")] == ["b"]
    assert not report.foreign
    assert upstream.Report(torch, "").foreign
    assert upstream.Report(torch, "2.13.0a0").foreign


@pytest.mark.nightly
def test_all_of_it(tmp_path: Path, wheel: Path) -> None:
    """A few tests on the labelled torch of another venv, and our wheel."""
    _, hip = hip_torch.create(WORK)
    write(
        tmp_path / "pytorch",
        {
            "version.txt": "2.6.0a0\n",
            "test/test_utils_config_module.py": "import os\n"
            "import torch\n"
            "import torch._inductor.config\n"
            "from torch import gone\n"
            "def test_good(): pass\n"
            "def test_gone(): gone()\n"
            "def test_bad(): assert not torch.version.hip\n"
            "def test_safe(): assert not pinned()\n"
            "def pinned(): return torch._inductor.config.max_autotune_gemm_backends == 'ATEN'\n"
            "def test_off(): assert os.environ.get('ROCM_AUTOPATCH') != 'off'\n",
        },
    )
    out = tmp_path / "report.md"
    done = subprocess.run(
        [
            *(sys.executable, MATRIX / "upstream.py", tmp_path / "pytorch"),
            *("--python", hip_torch.python(hip), "--wheel", wheel, "--work", tmp_path / "work"),
            *("--only", "utils_config", "--out", out),
        ],
        capture_output=True,
        text=True,
    )
    text = out.read_text() if out.exists() else ""
    # test_off is there to see that a difference under "idle" is found.
    assert done.returncode == 1, done.stderr
    assert text, done.stderr
    assert done.stdout == text
    assert "tests of PyTorch 2.6.0a0" in text
    assert "Names that this torch does not have: `torch.gone`." in text
    assert "- bare: not installed\n" in text
    assert "- idle: nothing applies: ROCM_AUTOPATCH=off\n" in text
    assert "- empty: an empty policy\n" in text
    assert "- safe: the policy safe\n" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| test_utils"))
    assert re.findall(r"\d/\d/\d", row) == ["3/1/1", "2/2/1", "3/1/1", "2/2/1", "3/1/1"]
    test = "`test_utils_config_module.py` `test_utils_config_module::test"
    for section in (
        f"with the hook idle: 1\n\n- {test}_off`",
        "with an empty policy: 0\n",
        f"under `safe`: 1\n\n- {test}_safe`",
        "in two runs without us: 0\n",
    ):
        assert section in text
