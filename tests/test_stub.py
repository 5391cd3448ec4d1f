"""sitecustomize_stub: injection by PYTHONPATH, and no other sitecustomize lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HIP, MAX, ROOT, SEEN, Interpreter, find_python, label_torch, make_venv
from tests.messages import Golden


@pytest.fixture
def injected(python311: Interpreter, tmp_path: Path) -> Path:
    """A directory to mount: the package as the wheel installs it, and the stub."""
    directory = tmp_path / "injected"
    shutil.copytree(python311.site_packages / "rocm_autopatch", directory / "rocm_autopatch")
    shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", directory)
    return directory


@pytest.fixture(params=["3.9", "3.11", "3.13"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Interpreter:
    """An interpreter without us, with a stand-in for torch."""
    made = make_venv(tmp_path / "plain", find_python(request.param))
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    return made


def customize(directory: Path, mark: str, then: str = "") -> str:
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(f"MARK = {mark!r}\n{then}\n")
    return str(directory)


MARKS = "import sitecustomize, sys; print(sitecustomize.MARK, sitecustomize.__file__)"


def count(mark: str) -> str:
    """Code of a sitecustomize that counts how often it runs, in the environment."""
    return f"import os\nos.environ[{mark!r}] = os.environ.get({mark!r}, '') + 'x'"


def test_injects(plain: Interpreter, injected: Path) -> None:
    done = plain.run("-c", SEEN, env={MAX: "1", "PYTHONPATH": str(injected)})
    assert done.stdout == "None\n"
    assert len(done.stderr.splitlines()) == 1


def test_off(plain: Interpreter, injected: Path) -> None:
    env = {MAX: "1", "PYTHONPATH": str(injected), "ROCM_AUTOPATCH": "off"}
    assert plain.value(SEEN, env=env) == "1"


def test_children_too(plain: Interpreter, injected: Path) -> None:
    code = (
        "import os, subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', {SEEN!r}], env=dict(os.environ, {MAX}='1'))"
    )
    done = plain.run("-c", code, env={"PYTHONPATH": str(injected)})
    assert done.stdout == "None\n"
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("where", ["site-packages", "further down PYTHONPATH", "standard library"])
def test_the_shadowed_one_runs_once(
    plain: Interpreter, injected: Path, tmp_path: Path, where: str
) -> None:
    path = str(injected)
    if where == "site-packages":
        customize(plain.site_packages, "other", count("RUNS"))
    elif where == "further down PYTHONPATH":
        path += ":" + customize(tmp_path / "other", "other", count("RUNS"))
    else:
        # Debian's lies in the standard library's directory, before site-packages.
        base = tmp_path / "base"
        version = plain.value("import sys; print('python%d.%d' % sys.version_info[:2])")
        library = base / "lib" / version
        library.mkdir(parents=True)
        stdlib = Path(plain.value("import os; print(os.path.dirname(os.__file__))"))
        for entry in stdlib.iterdir():
            (library / entry.name).symlink_to(entry)
        (base / "bin").mkdir()
        shutil.copy(plain.path.resolve(), base / "bin" / "python")
        customize(library, "other", count("RUNS"))
        plain = make_venv(tmp_path / "venv", str(base / "bin" / "python"))
        label_torch(plain.site_packages, "2.13.0+rocm7.0", HIP)
    code = f"{MARKS}; import os; print(os.environ['RUNS'], os.environ.get({MAX!r}))"
    env = {MAX: "1", "PYTHONPATH": path}
    mark, counts = plain.value(code, env=env).splitlines()
    assert mark.startswith("other ")
    assert not mark.endswith(f"{injected}/sitecustomize.py")
    assert counts == "x None"


def test_children_find_it_first_again(plain: Interpreter, injected: Path, tmp_path: Path) -> None:
    """The other one puts itself in front for children, as OpenTelemetry's does, or drops all."""
    other = tmp_path / "other"
    front = f"import os\nos.environ['PYTHONPATH'] = {str(other)!r} + ':' + os.environ['PYTHONPATH']"
    env = {MAX: "1", "PYTHONPATH": f"{injected}:{customize(other, 'other', front)}:/last"}
    code = "import os, sys; print(os.environ['PYTHONPATH'], 'rocm_autopatch' in sys.modules)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    assert plain.run("-c", child, env=env).stdout.endswith(":/last True\n")
    assert plain.run("-c", code, env=env).stdout == f"{injected}:{other}:{other}:/last True\n"
    customize(other, "other", "import os\ndel os.environ['PYTHONPATH']")
    assert plain.value("import os; print('PYTHONPATH' in os.environ)", env=env) == "False"


def test_nothing_shadowed(plain: Interpreter, injected: Path) -> None:
    code = "import sitecustomize; print(sitecustomize.__file__)"
    where = plain.value(code, env={"PYTHONPATH": str(injected)})
    assert where == str(injected / "sitecustomize.py")


def test_two_stubs_and_the_directory_twice(
    plain: Interpreter, injected: Path, tmp_path: Path
) -> None:
    second = shutil.copytree(injected, tmp_path / "second")
    other = customize(tmp_path / "other", "other", count("RUNS"))
    path = f"{injected}:{second}:{injected}/:{other}"
    code = f"{MARKS}; import os; print(os.environ['RUNS'])"
    assert plain.value(code, env={"PYTHONPATH": path}).splitlines()[1] == "x"


def test_behind_one_that_does_not_run_the_next(
    plain: Interpreter, injected: Path, tmp_path: Path, golden: Golden
) -> None:
    """As OpenTelemetry's; ``opentelemetry-instrument`` has the hook and starts a program so."""
    other = customize(tmp_path / "other", "other")
    env = {MAX: "1", "PYTHONPATH": f"{other}:{injected}"}
    status = ("-m", "rocm_autopatch", "status", "--no-torch", "--json")

    def errors(*arguments: str, **env: str) -> str:
        done = plain.run(*arguments, env=env, check=False)
        assert done.returncode == 1
        return "".join(json.loads(done.stdout)["errors"])

    golden(errors(*status, **env), "in front")
    before = (
        "import os, sys; "
        f"os.environ['PYTHONPATH'] = {other!r} + ':' + os.environ['PYTHONPATH']; "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    said = errors("-c", before, *status, PYTHONPATH=str(injected), **{MAX: "1"})
    golden(said, "half")
    # The other way round, both run.
    env["PYTHONPATH"] = f"{injected}:{other}"
    assert json.loads(plain.run(*status, env=env).stdout)["errors"] == []


@pytest.mark.parametrize(
    "then", ["raise ValueError('mine')", "import absent", "raise SystemExit(3)"]
)
def test_errors_of_the_shadowed_one_are_its_own(
    plain: Interpreter, injected: Path, tmp_path: Path, then: str
) -> None:
    other = customize(tmp_path / "other", "other", then)
    quiet = {"ROCM_AUTOPATCH_LOG": "quiet"}
    without = plain.run("-c", "print(1)", env={**quiet, "PYTHONPATH": other}, check=False)
    path = f"{injected}:{other}"
    with_us = plain.run("-c", "print(1)", env={**quiet, "PYTHONPATH": path}, check=False)
    assert (with_us.stdout, with_us.returncode) == (without.stdout, without.returncode)
    assert with_us.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]


def test_stub_and_pth_act_once(python: Interpreter, tmp_path: Path) -> None:
    stub = shutil.copytree(ROOT / "sitecustomize_stub", tmp_path / "stub")
    code = "import rocm_autopatch as r; print(len(r.status()['env']), r.__file__)"
    done = python.run("-c", code, env={MAX: "1", "PYTHONPATH": str(stub)})
    assert done.stdout == f"5 {python.site_packages}/rocm_autopatch/__init__.py\n"
    assert len(done.stderr.splitlines()) == 1


def test_stub_without_package(plain: Interpreter, tmp_path: Path, golden: Golden) -> None:
    stub = shutil.copytree(ROOT / "sitecustomize_stub", tmp_path / "stub")
    other = customize(tmp_path / "other", "other")
    done = plain.run("-c", MARKS, env={"PYTHONPATH": f"{stub}:{other}"})
    assert done.stdout.startswith("other ")
    golden(done.stderr)


def test_from_a_checkout(python311: Interpreter, bare: Interpreter, golden: Golden) -> None:
    # Nothing is lowered in a checkout: the start reads policies/*.yaml, and needs PyYAML for it.
    env = {MAX: "1", "PYTHONPATH": f"{ROOT}/sitecustomize_stub:{ROOT}"}
    done = bare.run("-c", SEEN, env=env)
    assert done.stdout == "1\n"
    golden(done.stderr)
    assert python311.value(SEEN, env=env) == "None"


class TestPlacesThatAreNoPlaceForIt:
    """The image's own sitecustomize is executed wherever it would be without the stub."""

    CODE = (
        "import os, sys, sitecustomize; "
        f"sys.stdout.write('%s %s' % (sitecustomize.MARK, os.environ.get({MAX!r})))"
    )
    COUNTED = "import os\nassert 'RUNS' not in os.environ\nos.environ['RUNS'] = 'x'"

    @pytest.mark.parametrize("switch", ["off", "on"])
    @pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
    def test_older_python(self, injected: Path, tmp_path: Path, version: str, switch: str) -> None:
        # An image may have one for its tools, and PYTHONPATH is for all.
        python = Interpreter(Path(find_python(version)))
        torch = label_torch(tmp_path / "torch", "2.13.0+rocm7.0", HIP)
        other = customize(tmp_path / "other", "other", self.COUNTED)
        for path in (f"{injected}:{other}:{torch}", f"{injected}:{injected}/:{other}:{torch}"):
            env = {"PYTHONPATH": path, "ROCM_AUTOPATCH": switch, MAX: "1"}
            done = python.run("-c", self.CODE, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})
            if version == "2.7" or switch == "off":
                assert (done.stdout, done.stderr) == ("other 1", "")
            # Whether a policy applies on 3.8 is torch's to say.
            assert done.stdout.startswith("other ")
            assert len(done.stderr.splitlines()) <= 1

    @pytest.mark.parametrize("switch", ["off", "on"])
    def test_python_2_and_nothing_shadowed(self, injected: Path, switch: str) -> None:
        python = Interpreter(Path(find_python("2.7")))
        env = {"PYTHONPATH": str(injected), "ROCM_AUTOPATCH": switch}
        code = "import sys, sitecustomize; sys.stdout.write(sitecustomize.__file__)"
        done = python.run("-c", code, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})
        assert (done.stdout, done.stderr) == (f"{injected}/sitecustomize.py", "")

    @pytest.mark.parametrize("version", ["2.7", "3.8", "3.9", "3.13"])
    @pytest.mark.parametrize("then", ["raise ValueError('mine')", "import absent", "1 = 2"])
    def test_errors_are_its_own(
        self, injected: Path, tmp_path: Path, version: str, then: str
    ) -> None:
        python = Interpreter(Path(find_python(version)))
        other = customize(tmp_path / "other", "other", then)
        results = []
        for path in (other, f"{injected}:{other}"):
            env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "ROCM_AUTOPATCH": "off"}
            done = python.run("-c", "import sys; sys.stdout.write('1')", env=env, check=False)
            last = done.stderr.splitlines()[-1:]
            results.append((done.stdout, done.returncode, last))
        assert results[1] == results[0]

    @pytest.mark.parametrize("switch", ["off", "on"])
    @pytest.mark.parametrize("version", ["2.7", "3.9", "3.10"])
    def test_a_working_directory_that_is_gone(
        self, injected: Path, tmp_path: Path, version: str, switch: str
    ) -> None:
        # os.path.abspath raises there, and site leaves an empty entry of PYTHONPATH as it is. From
        # 3.11 on Python itself can't start so.
        python = find_python(version)
        torch = label_torch(tmp_path / "torch", "2.13.0+rocm7.0", HIP)
        other = customize(tmp_path / "other", "other", self.COUNTED)
        applies = switch == "on" and version != "2.7"
        script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
        for path in (
            "::{0}:{1}:{2}",
            "{0}::{1}:{2}",
            "{0}:{1}:{2}:",
            "{0}:{1}:{2}",
        ):
            done = subprocess.run(
                ["sh", "-c", script, "sh", python, "-c", self.CODE],
                cwd=tmp_path,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": path.format(injected, other, torch),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "ROCM_AUTOPATCH": switch,
                    MAX: "1",
                },
                capture_output=True,
                text=True,
            )
            assert done.stdout == ("other None" if applies else "other 1"), (path, done.stderr)
            assert len(done.stderr.splitlines()) == applies, (path, done.stderr)

    @pytest.mark.parametrize("switch", ["off", "on"])
    def test_a_working_directory_that_may_not_be_read(
        self, plain: Interpreter, injected: Path, tmp_path: Path, switch: str
    ) -> None:
        other = customize(tmp_path / "other", "other", self.COUNTED)
        here = tmp_path / "here"
        here.mkdir(mode=0)
        rights = "--bounding-set=-dac_override,-dac_read_search"
        as_others = ["setpriv", rights] if os.getuid() == 0 else []
        if as_others and not shutil.which("setpriv"):
            pytest.skip("root without setpriv may read everything")
        for path in (f"{injected}::{other}", f":{injected}:{other}"):
            done = subprocess.run(
                [*as_others, plain.path, "-c", self.CODE],
                cwd=here if not as_others else None,
                preexec_fn=(lambda: os.chdir(here)) if as_others else None,
                env={"PYTHONPATH": path, "ROCM_AUTOPATCH": switch, MAX: "1"},
                capture_output=True,
                text=True,
            )
            assert done.stdout == ("other None" if switch == "on" else "other 1")
            assert len(done.stderr.splitlines()) == (switch == "on")
