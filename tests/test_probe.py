"""rocm-autopatch probe: what a place does to a process, and the cause, on torch 2.13.0."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from rocm_autopatch.cli import main, style, terminal
from rocm_autopatch.cli import probe as command
from rocm_autopatch.patches.config import TARGETS
from rocm_autopatch.policy import PolicyError, lint, load
from rocm_autopatch.probe import culprits, images, investigation, table, variables
from surroundings import hip_torch, image_env
from tests.conftest import (
    HIP,
    ROOT,
    TORCH,
    Interpreter,
    find_python,
    label_torch,
    make_hooked,
    run_with_site,
)
from tests.messages import Golden
from tests.names import INDUCTOR, NEW_IMAGE
from tests.programs import program_file
from tests.running import last_said

MAX, POINTWISE = "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE"
GFX = "HSA_OVERRIDE_GFX_VERSION"

Json = dict[str, Any]
# The status, the report, and the place of the files that it has to name.
Hostile = tuple[int, Json, dict[str, Path]]


def cli(python: Interpreter, *flags: str, **env: str) -> tuple[int, Json]:
    env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
    done = python.run("-m", "rocm_autopatch", "probe", "--json", *flags, env=env, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def rows(found: Json) -> dict[str, Json]:
    return {row["name"]: row for row in (*found["variables"], *found["config"])}


@pytest.fixture(scope="module")
def image(torch_python: Interpreter) -> table.PlaceProbe:
    """The place that SGLang's ROCm image makes."""
    env = {
        "PATH": os.environ["PATH"],
        **image_env.load().env,
        "HIP_CACHE_ENABLED": "1",
        "INDUCTOR_COORD_DESCENT": "1",
        "ROCM_AUTOPATCH_ASSUME": f"image={NEW_IMAGE}",
        "ROCM_AUTOPATCH_LOG": "quiet",
    }
    with mock.patch.object(sys, "executable", str(torch_python.path)):
        return table.probe_place(env, [])


@pytest.fixture(scope="module")
def copy(torch_python: Interpreter) -> Iterator[Interpreter]:
    """A copy of the environment. Tests change it by replacing files."""
    # It is on the same file system, so that its files can be links.
    directory = torch_python.path.parents[2] / "probe"
    hip_torch.copy(torch_python.path.parents[1], directory)
    yield Interpreter(directory / "bin" / "python")
    shutil.rmtree(directory)


def replace(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.write_text(text)
    for cached in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        cached.unlink()


@pytest.fixture(scope="module")
def hostile(copy: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    """A patched torch, two .pth files, a sitecustomize and a framework, all of which interfere."""
    here, site = tmp_path_factory.mktemp("hostile"), copy.site_packages
    config = site / "torch" / "_inductor" / "config.py"
    source = shipped = config.read_text()
    for old, new in (
        ('"TORCHINDUCTOR_BENCHMARK_FUSION") ==', '"TORCHINDUCTOR_BENCHMARK_FUSION") !='),
        ('"TORCHINDUCTOR_FREEZING"', '"VENDOR_FREEZING"'),
        # As releases do that look for a user's directory.
        ("import sys\n", "import sys\n\nos.environ.get('HOME'), os.environ.get('VENDOR_PLACE')\n"),
    ):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    replace(config, source)
    pth, env_pth = site / "a_vendor.pth", site / "a_env.pth"
    env_pth.write_text('# vendor\nimport os; os.environ["TORCHINDUCTOR_BENCHMARK_KERNEL"] = "1"\n')
    pth.write_text("import a_vendor\n")
    (site / "a_vendor.py").write_text(
        f"import {INDUCTOR} as config\n\nconfig.coordinate_descent_tuning = True\n"
    )
    custom = here / "sitecustomize.py"
    custom.write_text("import torch._dynamo.config as config\nconfig.suppress_errors = True\n")
    for name, body in (
        (
            "vllm",
            f"""\
            import os
            import {INDUCTOR} as config

            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
            config.compile_threads = 1
            config._config["triton.max_tiles"].default = 7
            config.load_config(dict(max_fusion_size=9))
            """,
        ),
        ("sglang", "raise SystemExit('must not be imported')\n"),
    ):
        (here / name).mkdir()
        (here / name / "__init__.py").write_text(textwrap.dedent(body))
    env = {"PYTHONPATH": str(here), "VENDOR_FREEZING": "1"}
    env |= {"HOME": str(here), "VENDOR_PLACE": "/x"}
    status, found = cli(copy, "--import", "vllm", **env)
    line = source[: source.index('_FUSION") !=')].count("\n") + 1
    for file in (pth, env_pth):
        file.unlink()
    replace(config, shipped)
    places = {"config": config, "pth": pth, "env_pth": env_pth, "custom": custom, "here": here}
    return status, {**found, "line": line}, {**places, "vendor": site / "a_vendor.py"}


@pytest.fixture(scope="module")
def crashing(torch_python: Interpreter) -> tuple[int, Json]:
    env = {"TORCH_COMPILE_DEBUG": "true", "TORCHINDUCTOR_MULTI_KERNEL": "", "AMD_LOG_LEVEL": "4"}
    return cli(torch_python, **env)


class TestImage:
    def test_variables(self, image: table.PlaceProbe) -> None:
        found = {row.name: row for row in image.variables}
        # Everything that the image sets is listed, and has a row in the table.
        for name, value in image_env.load().env.items():
            assert found[name].without == value
            assert found[name].verdict.row, name
        assert (found[MAX].verdict.verdict, found[MAX].with_us) == ("hangs", None)
        assert found[MAX].verdict.source == "sgl-project/sglang#23865"
        assert (found[POINTWISE].verdict.verdict, found[POINTWISE].with_us) == ("slows", None)
        assert found["HIP_CACHE_ENABLED"].verdict.verdict == "not read"
        assert found["INDUCTOR_COORD_DESCENT"].verdict.verdict == "not read"
        dangerous = {name for name, row in found.items() if row.verdict.dangerous}
        assert dangerous == {MAX, POINTWISE}

    def test_config(self, image: table.PlaceProbe) -> None:
        found = {row.name: row for row in image.config}
        blamed = {name: row for name, row in found.items() if row.culprit}
        assert set(blamed) == {f"{INDUCTOR}.max_autotune", f"{INDUCTOR}.max_autotune_pointwise"}
        row = blamed[f"{INDUCTOR}.max_autotune"]
        assert (row.shipped, row.without, row.with_us) == (False, True, False)
        assert row.culprit == culprits.ValueCulprit("variable", (f"{MAX}=1",))
        row = blamed[f"{INDUCTOR}.max_autotune_pointwise"]
        assert row.culprit == culprits.ValueCulprit("variable", (f"{POINTWISE}=1",))
        # Only our own values differ: no default is reported by mistake.
        rest = {name for name in found if name not in blamed}
        assert rest == {
            "torch._dynamo.config.recompile_limit",
            f"{INDUCTOR}.max_autotune_gemm_backends",
            f"{INDUCTOR}.triton.cudagraph_trees",
        }
        assert {found[name].verdict.verdict for name in rest} == {"policy"}
        assert image.left == []
        assert image.findings.children <= 4

    def test_text(self, image: table.PlaceProbe, golden: Golden) -> None:
        lines = list(command.probe_lines(image))
        assert any(re.fullmatch(rf"  {MAX} +1 +unset +hangs", line) for line in lines)
        at = next(i for i, line in enumerate(lines) if line.startswith("  inductor max_autotune "))
        assert re.fullmatch(r"  inductor max_autotune +True +False +hangs", lines[at])
        assert lines[at + 1].startswith(f"      {MAX}=1: Every GEMM")
        golden(lines[-1])
        with mock.patch.object(style, "colour_wanted", return_value=True):
            coloured = list(command.probe_lines(image))
        assert any(line.endswith(terminal.colour("31", "hangs")) for line in coloured)
        assert [terminal.plain(line) for line in coloured] == lines
        long = [line for line in lines if len(line) > 100 and "site-packages" not in line]
        assert not long


class TestCulprits:
    @pytest.fixture
    def config(self, hostile: Hostile) -> dict[str, Json]:
        return {
            row["name"].partition(".config.")[2]: row
            for row in hostile[1]["config"]
            if row["verdict"] != "policy"
        }

    def test_nobody_else(self, config: dict[str, Json]) -> None:
        assert set(config) == {
            *("benchmark_fusion", "freezing", "benchmark_kernel", "coordinate_descent_tuning"),
            *("suppress_errors", "compile_threads", "triton.max_tiles", "max_fusion_size"),
        }

    def test_the_torch_build(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        row, file = config["benchmark_fusion"], hostile[2]["config"]
        assert row["culprit"]["kind"] == "torch"
        assert row["who"] == f"torch's own source, {file}:{hostile[1]['line']}"
        assert (row["shipped"], row["without"], row["verdict"]) == (False, True, "slows")

    def test_a_variable_that_only_this_build_reads(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        assert config["freezing"]["who"] == "VENDOR_FREEZING=1"
        found = rows(hostile[1])
        assert "VENDOR_FREEZING" in found
        assert found["VENDOR_PLACE"]["verdict"] == "unknown"
        # Every process has it, so it says nothing of this place.
        assert "HOME" not in found

    def test_a_pth_file(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        places = hostile[2]
        row = config["coordinate_descent_tuning"]
        assert row["who"] == f"{places['vendor']}:3, by {places['pth']}:1"
        # Our default yields to a program's write, and this write happens in every process.
        assert (row["without"], row["with"], row["left"]) == (True, True, True)

    def test_a_variable_that_a_pth_file_sets(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        name = "TORCHINDUCTOR_BENCHMARK_KERNEL"
        row = config["benchmark_kernel"]
        assert row["who"] == f"{name}=1, set in {hostile[2]['env_pth']}:2"
        assert rows(hostile[1])[name]["who"] == f"{hostile[2]['env_pth']}:2"

    def test_sitecustomize(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        row = config["suppress_errors"]
        assert row["who"] == f"{hostile[2]['custom']}:2"
        assert (row["verdict"], row["left"]) == ("slows", True)

    def test_a_framework(
        self,
        config: dict[str, Json],
        hostile: Hostile,
    ) -> None:
        file = hostile[2]["here"] / "vllm" / "__init__.py"
        row = config["compile_threads"]
        assert row["who"] == f"import vllm, {file}:5"
        assert (row["without"], row["verdict"]) == (1, "slows")
        # This write goes to the entry, without the module.
        assert config["triton.max_tiles"]["who"] == f"import vllm, {file}:6"
        assert config["max_fusion_size"]["who"] == f"import vllm, {file}:7"
        assert rows(hostile[1])["TORCHINDUCTOR_COMPILE_THREADS"]["who"] == f"{file}:4"

    def test_the_rest(self, hostile: Hostile, golden: Golden) -> None:
        status, found, places = hostile
        assert status == 1
        assert f"{INDUCTOR}.coordinate_descent_tuning" in found["left"]
        (note,) = [note for note in found["notes"] if note.startswith("sglang")]
        golden(note, SGLANG=places["here"] / "sglang")
        assert not any(note.startswith("vllm") for note in found["notes"])


class TestCrash:
    def test_who(self, crashing: tuple[int, Json]) -> None:
        _, found = crashing
        assert {crash["culprit"] for crash in found["crashes"]} == {
            "TORCH_COMPILE_DEBUG=true",
            "TORCHINDUCTOR_MULTI_KERNEL=",
        }
        for crash in found["crashes"]:
            assert crash["module"] == INDUCTOR
            assert crash["error"].startswith("ValueError: invalid literal for int()")
            assert crash["file"].endswith("torch/_inductor/config.py")
        debug = rows(found)["TORCH_COMPILE_DEBUG"]
        assert (debug["verdict"], debug["with"], debug["left"]) == ("crashes", "true", True)

    def test_what_is_left(self, crashing: tuple[int, Json]) -> None:
        status, found = crashing
        kernel = rows(found)["TORCHINDUCTOR_MULTI_KERNEL"]
        # safe deletes it, because it is set to nothing.
        assert (kernel["verdict"], kernel["with"], kernel["left"]) == ("crashes", None, False)
        assert status == 1
        assert set(found["left"]) == {
            # No known image sets it, so it is the user's, and safe leaves it.
            "TORCH_COMPILE_DEBUG",
            *("AMD_LOG_LEVEL", f"import {INDUCTOR}"),
        }


SEARCHING = {
    "MIOPEN_FIND_MODE": "NORMAL",
    "MIOPEN_FIND_ENFORCE": "3",
    "PYTORCH_TUNABLEOP_ENABLED": "1",
    "AITER_REBUILD": "1",
}


class TestLibraries:
    """Variables that make the first call of a library slow, and that Inductor does not read."""

    def test_they_are_named(self, torch_python: Interpreter) -> None:
        status, found = cli(torch_python, **SEARCHING)
        assert status == 1
        assert set(found["left"]) == set(SEARCHING)
        assert rows(found)["MIOPEN_FIND_ENFORCE"]["verdict"] == "hangs"
        for name in set(SEARCHING) - {"MIOPEN_FIND_ENFORCE"}:
            row = rows(found)[name]
            assert row["verdict"] == "slows"
            assert " first call" in row["why"]

    def test_without_a_search(self, torch_python: Interpreter) -> None:
        quiet = {
            "MIOPEN_FIND_MODE": "FAST",
            "MIOPEN_FIND_ENFORCE": "1",
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "0",
            "AITER_REBUILD": "0",
        }
        status, found = cli(torch_python, **quiet)
        assert (status, found["left"]) == (0, [])
        assert {rows(found)[name]["verdict"] for name in quiet} == {"harmless"}


@pytest.fixture(scope="module")
def stub(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """An environment with a stand-in for torch. A test calls ``label`` and may then break it."""
    return make_hooked(tmp_path_factory.mktemp("stub-"), wheel)


def label(python: Interpreter, init: str | None = None) -> Path:
    """Give *python* a new stand-in for torch, whose import runs *init*."""
    shutil.rmtree(python.site_packages / "torch", ignore_errors=True)
    file = label_torch(python.site_packages, TORCH, HIP) / "torch" / "__init__.py"
    if init is not None:
        file.write_text(init)
    return file


class TestOtherTorches:
    def test_not_in_the_table(
        self,
        copy: Interpreter,
        hostile: Hostile,
        tmp_path: Path,
        golden: Golden,
    ) -> None:
        # hostile has put back what it changed.
        version = copy.site_packages / "torch" / "version.py"
        replace(version, version.read_text().replace("2.13.0+rocm7.0", "2.99.0+rocm7.0"))
        file = tmp_path / "images.yaml"
        flags = ("--image", NEW_IMAGE, "--record", str(file))
        status, found = cli(copy, *flags, **{MAX: "1"})
        golden(found["notes"][0], "note")
        golden(found["compared_with"], "compared with")
        config = rows(found)
        assert config[f"{INDUCTOR}.max_autotune"]["who"] == f"{MAX}=1"
        blamed = [row for row in found["config"] if row["culprit"]]
        assert len(blamed) == 1
        assert status == 0
        # A new images file.
        (row,) = load.images(file)
        assert row.image == NEW_IMAGE
        assert [(setting.name, setting.value) for setting in row.sets] == [(MAX, "1")]
        assert "with torch 2.99.0+rocm7.0 and Python 3" in row.description

    def test_no_torch_and_a_broken_one(self, stub: Interpreter, golden: Golden) -> None:
        label(stub)
        status, found = cli(stub, **{MAX: "1"})
        (crash,) = found["crashes"]
        assert crash["culprit"] == "torch"
        assert crash["module"] == INDUCTOR
        assert status == 1
        assert f"import {INDUCTOR}" in found["left"]
        shutil.rmtree(stub.site_packages / "torch")
        status, found = cli(stub, **{MAX: "1"})
        assert found["torch"] == {}
        golden(found["notes"][0])
        assert rows(found)[MAX]["verdict"] == "hangs"
        # It stays: without torch we are not active.
        assert (status, found["left"]) == (1, [MAX])
        status, found = cli(stub)
        assert (status, found["left"], found["variables"]) == (0, [], [])

    def test_one_that_kills_the_interpreter(self, stub: Interpreter, golden: Golden) -> None:
        label(
            stub,
            "import os\n"
            "if os.environ.get('NCCL_DEBUG') == 'KILL':\n    os.kill(os.getpid(), 9)\n"
            "raise ImportError('libhip.so')\n",
        )
        # It is not the last variable that is read, and not in torch's table. Halving finds it.
        env = {"NCCL_DEBUG": "KILL", "HIP_A": "1", "HIP_B": "1", "TRITON_C": "1", "HSA_D": "1"}
        status, found = cli(stub, **env)
        killed, broken = found["crashes"]
        assert killed["culprit"] == "NCCL_DEBUG=KILL"
        golden(killed["error"])
        assert (broken["culprit"], broken["error"]) == ("torch", "ImportError: libhip.so")
        assert broken["file"].endswith("torch/__init__.py")
        assert broken["line"] == 4
        assert status == 1
        assert found["left"] == ["NCCL_DEBUG", "import torch"]

    def test_a_start_up_file_that_breaks_the_import(self, stub: Interpreter) -> None:
        label(stub)
        custom = stub.site_packages / "sitecustomize.py"
        custom.write_text(
            "import sys\n\nclass Finder:\n    @staticmethod\n"
            "    def find_spec(name, path=None, target=None):\n"
            "        if name == 'torch':\n            raise ImportError('not today')\n\n"
            "sys.meta_path.insert(0, Finder)\n"
        )
        (crash,) = cli(stub)[1]["crashes"]
        custom.unlink()
        assert (crash["module"], crash["culprit"]) == ("torch", "site")
        assert (crash["file"], crash["line"]) == (str(custom), 7)

    def test_a_variable_that_a_start_up_file_sets_and_that_crashes(self, stub: Interpreter) -> None:
        label(stub, "import os\nint(os.environ.get('TORCH_X', '0'))\n")
        pth = stub.site_packages / "zz.pth"
        pth.write_text("import os; os.environ['TORCH_X'] = 'true'\n")
        _, found = cli(stub, HIP_A="1")
        pth.unlink()
        crash = found["crashes"][0]
        assert (crash["culprit"], crash["set_by"]) == ("TORCH_X=true", f"{pth}:1")
        row = rows(found)["TORCH_X"]
        assert (row["without"], row["verdict"], row["who"]) == ("true", "crashes", f"{pth}:1")
        assert row["left"]

    def test_values_of_any_kind(self, python311: Interpreter) -> None:
        odd = {"HIP_A": "", "HIP_B": "a\nb", "HIP_C": "\udcff", "HIP_D": "x" * 50}
        done = python311.run("-m", "rocm_autopatch", "probe", env=odd, check=False)
        lines = done.stdout.splitlines()
        for name, shown in (("HIP_A", "''"), ("HIP_B", r"'a\nb'"), ("HIP_C", r"'\udcff'")):
            (line,) = [line for line in lines if line.startswith(f"  {name} ")]
            assert line.split() == [name, shown, shown, "unknown"]
        assert "      with: " + "x" * 50 in lines

    @pytest.mark.parametrize("version", ["3.9", "3.13"])
    def test_other_pythons(self, wheel: Path, tmp_path: Path, version: str) -> None:
        python = make_hooked(tmp_path / "venv", wheel, find_python(version))
        pth = python.site_packages / "vendor.pth"
        pth.write_text("# vendor\n\nimport os; os.environ['HIP_A'] = 'b'\n")
        (tmp_path / "usual").mkdir()
        custom = tmp_path / "usual" / "sitecustomize.py"
        custom.write_text("def f():\n    import os\n    os.environ['HIP_B'] = 'c'\n\nf()\n")
        env = {"PYTHONPATH": str(custom.parent), "HIP_A": "a"}
        found = rows(cli(python, **env)[1])
        assert (found["HIP_A"]["without"], found["HIP_A"]["who"]) == ("b", f"{pth}:3")
        assert found["HIP_B"]["who"].startswith(f"{custom}:3")

    def test_the_image_s_and_a_user_s(self, python311: Interpreter, tmp_path: Path) -> None:
        site, file = tmp_path / "site", tmp_path / "images.yaml"
        site.mkdir()
        (site / "image").write_text(NEW_IMAGE + "\n")
        (site / "baseline").write_bytes(b"HIP_CACHE_ENABLED=1\0HIP_B=1\0HIP_D=1\0")
        command = (python311.path, "-m", "rocm_autopatch", "probe", "--json", "--record", file)
        env = {"HIP_CACHE_ENABLED": "1", "HIP_B": "2", "HIP_C": "3", "HIP_D": "1"}
        done = run_with_site(site, *command, **env)
        found = rows(json.loads(done.stdout))
        assert [found[name]["who"] for name in env] == [
            "the image's",
            "a user's",
            "a user's",
            "the image's",
        ]
        # It is in none of our lists, so its value is not recorded.
        assert "look secret: HIP_D\n" in done.stderr
        (row,) = load.images(file)
        assert row.image == NEW_IMAGE
        assert [setting.name for setting in row.sets] == ["HIP_CACHE_ENABLED"]

    def test_off(self, stub: Interpreter, golden: Golden) -> None:
        label(stub)
        status, found = cli(stub, ROCM_AUTOPATCH="off", **{MAX: "1"})
        assert status == 1
        golden("\n".join(found["notes"]))

    def test_usage(self, python311: Interpreter) -> None:
        for flags in (["--import", "no such"], ["--record"], ["more"], ["--assume", "x=1"]):
            done = python311.run("-m", "rocm_autopatch", "probe", *flags, check=False)
            assert done.returncode == 2, done.stderr


BUILT_IN = (ROOT / "policies" / "images.yaml").read_text(encoding="utf-8")


class TestRecord:
    def test_an_existing_row(self, image: table.PlaceProbe, tmp_path: Path, golden: Golden) -> None:
        file = tmp_path / "images.yaml"
        file.write_text(BUILT_IN)
        os.chmod(file, 0o640)
        golden(images.record_probe(file, image), "changed")
        text = file.read_text()
        start = BUILT_IN.index(f"  - image: {NEW_IMAGE}")
        assert text.startswith(BUILT_IN[:start])
        assert file.stat().st_mode & 0o777 == 0o640
        row = load.images(file)[-1]
        assert (row.image, row.base) == (NEW_IMAGE, "safe")
        assert "Not probed yet" not in row.description
        assert f"with torch {TORCH} and Python 3" in row.description
        assert f"differs from what torch ships: {INDUCTOR}.max_autotune" in row.description
        # What general rows say about the place is not repeated.
        names = {setting.name for setting in row.sets}
        assert {"GPU_ARCH", "AITER_USE_SYSTEM_TRITON"} <= names
        assert not names & {MAX, POINTWISE, "SGLANG_USE_AITER", "NCCL_MIN_NCHANNELS"}
        golden(images.record_probe(file, image), "unchanged")
        assert file.read_text() == text
        assert main(["check", str(file)]) == 0

    def test_a_new_row_and_a_new_file(self, image: table.PlaceProbe, tmp_path: Path) -> None:
        start = BUILT_IN.index(f"\n  - image: {NEW_IMAGE}")
        file = tmp_path / "images.yaml"
        file.write_text(BUILT_IN[:start] + "# the end\n")
        assert images.record_probe(file, image) == f"{file}: {NEW_IMAGE} added"
        text = file.read_text()
        assert text.startswith(BUILT_IN[: start - 1])
        assert text.endswith("# the end\n")
        assert load.images(file)[-1].image == NEW_IMAGE
        new = tmp_path / "new.yaml"
        images.record_probe(new, image)
        (row,) = load.images(new)
        assert {MAX, POINTWISE} <= {setting.name for setting in row.sets}
        first = new.read_bytes()
        images.record_probe(new, image)
        assert new.read_bytes() == first

    @pytest.mark.parametrize(
        "text",
        [
            "version: 1\nimages:\n"
            "- image: a:b # one\n  sets: {A: a} # two\n  # three\n"
            f"- # four\n  image: {NEW_IMAGE}\n  # five\n  sets:\n    # old\n    GPU_ARCH: gfx942\n"
            "  # six\n  policy: debug  # seven\n"
            "  known_issues:\n  - one # eight\n  # nine\n- image: c:d\n# ten\n",
            f"version: 1\nimages: [{{image: a:b}}, {{image: '{NEW_IMAGE}', policy: debug}}]\n",
            f"images:\n  - {{image: '{NEW_IMAGE}', policy: debug, known_issues: x}} # one\n"
            "  - image: a:b\n\nversion: 1 # two",
            f"version: 1\nimages:\n  - image: {NEW_IMAGE}\n    policy: debug\n    description: |\n"
            "      Seen by hand.\n      Not probed yet.\n\n  # one\n  - image: a:b\n",
        ],
    )
    @pytest.mark.parametrize("kind", ["plain", "crlf", "bom"])
    def test_what_is_round_it_stays(
        self, image: table.PlaceProbe, tmp_path: Path, text: str, kind: str
    ) -> None:
        file = tmp_path / "images.yaml"
        data = text.encode()
        data = data.replace(b"\n", b"\r\n") if kind == "crlf" else data
        data = b"\xef\xbb\xbf" + data if kind == "bom" else data
        file.write_bytes(data)
        before = {row.image: row for row in load.images(file)}
        images.record_probe(file, image)
        after = {row.image: row for row in load.images(file)}
        assert list(after) == list(before)
        assert {n: r for n, r in after.items() if n != NEW_IMAGE} == {
            n: r for n, r in before.items() if n != NEW_IMAGE
        }
        row = after[NEW_IMAGE]
        assert row.base == "debug"
        assert (MAX, "1") in {(setting.name, setting.value) for setting in row.sets}
        assert "Probed 2" in row.description
        assert "Not probed" not in row.description
        assert ("Seen by hand." in row.description) == ("Seen by hand." in text)
        assert [issue.text for issue in row.known_issues] == [
            issue.text for issue in before[NEW_IMAGE].known_issues
        ]
        done = file.read_bytes()
        comments = re.findall(r"# \w+", text)
        kept = re.findall(r"# \w+", done.decode())
        # A comment among the replaced variables is lost.
        assert kept == [comment for comment in comments if comment != "# old"]
        assert done.startswith(b"\xef\xbb\xbf") == (kind == "bom")
        assert (b"\r\n" in done) == (kind == "crlf")
        assert not re.search(rb"(?<!\r)\n", done) or kind != "crlf"
        assert images.record_probe(file, image).endswith("is up to date")
        assert file.read_bytes() == done

    def test_what_is_wrong(
        self, image: table.PlaceProbe, tmp_path: Path, python311: Interpreter, golden: Golden
    ) -> None:
        file = tmp_path / "images.yaml"
        file.write_text("version: 1\nimages:\n  - image: a:b\n    sats: {}\n")
        done = python311.run(*("-m", "rocm_autopatch", "probe", "--record", str(file)), check=False)
        assert (done.returncode, done.stdout) == (1, "")
        golden(last_said(done.stderr), "a wrong file")
        assert file.read_text().endswith("sats: {}\n")
        with pytest.raises(PolicyError) as caught:
            images.check_images_file(tmp_path / "no" / "images.yaml")
        golden(str(caught.value), "no directory")
        flags = ("-m", "rocm_autopatch", "probe", "--record", str(tmp_path / "new.yaml"))
        done = python311.run(*flags, check=False)
        assert done.returncode == 1
        golden(last_said(done.stderr), "no image")
        assert [path.name for path in tmp_path.iterdir()] == ["images.yaml"]


MEASURE = program_file("probe/measure.py")


class TestTable:
    def test_against_the_real_torch(self, torch_python: Interpreter) -> None:
        feeds = variables.fed_keys("2.13")
        document = variables.verdict_table()
        parsed = {
            name
            for name, rule in document["parsed"].items()
            if variables.of_variable(name, "x", TORCH).verdict == "crashes"
        }
        assert {"TORCH_COMPILE_DEBUG", "TORCHINDUCTOR_MULTI_KERNEL"} <= parsed
        dangerous, ignored = [], []
        for name, cases in document["variables"].items():
            for value in [str(text) for case in cases for text in case.get("is", ())]:
                verdict = variables.of_variable(name, value, TORCH)
                if verdict.dangerous and name in feeds:
                    dangerous.append((name, value))
            if name in feeds and "Only the value 1 turns it on." in cases[-1]["why"]:
                ignored.append(name)
        assert len(dangerous) > 10
        # All others take any text. Variables of the machine are left out.
        free = {name: "x" for name in feeds if name not in parsed}
        asked = [
            *({name: "x"} for name in sorted(parsed)),
            *({name: ""} for name in sorted(parsed)),
            *({name: value} for name, value in dangerous),
            *({name: "true"} for name in ignored if name not in parsed),
            free,
        ]
        known = json.dumps(list(TARGETS))
        answers = json.loads(
            torch_python.run(
                *(MEASURE, known, json.dumps(asked)), env={"ROCM_AUTOPATCH": "off"}
            ).stdout
        )
        for env, answer in zip(asked, answers):
            name = next(iter(env))
            value = env[name]
            if env is free:
                assert isinstance(answer, list), answer
            elif name in parsed and value in ("x", ""):
                assert answer in ("ValueError", "AssertionError"), env
            elif value == "true":
                assert not set(answer) & set(feeds[name]), env
            else:
                assert set(answer) & set(feeds[name]), env

    def test_every_variable_of_every_torch_is_listed(self) -> None:
        for version in lint.versions("2.4..2.15"):
            for name, keys in variables.fed_keys(version).items():
                verdict = variables.of_variable(name, "2", version)
                if not verdict.row and verdict.verdict == "unknown":
                    assert f" {', '.join(keys)};" in verdict.why

    @pytest.mark.parametrize(
        ("name", "reader"),
        [
            ("DEBUG_HIP_DYNAMIC_QUEUES", "HIP"),
            ("DEBUG_CLR_LIMIT_BLIT_WG", "HIP"),
            ("GPU_PINNED_XFER_SIZE", "HIP"),
            ("GPU_USE_DEVICE_QUEUE", "HIP"),
            ("ROC_AQL_QUEUE_SIZE", "HIP"),
            ("ROCPROFILER_LOG_LEVEL", "rocprofiler-sdk"),
        ],
    )
    def test_families_of_the_runtime(self, name: str, reader: str) -> None:
        assert variables.is_listed(name)
        assert reader in variables.of_variable(name, "1", TORCH).why

    def test_parsed_variables_are_torch_s(self) -> None:
        for name, rule in variables.verdict_table()["parsed"].items():
            for version in lint.versions("2.4..2.15"):
                crashes = variables.of_variable(name, "x", version).verdict == "crashes"
                if crashes and name != "TORCHINDUCTOR_WORKER_START":
                    assert name in variables.fed_keys(version), (name, version)
            assert variables.of_variable(name, "x", "2.15").verdict == "crashes" or "until" in rule

    def test_rows(self) -> None:
        document = variables.verdict_table()
        for name, cases in document["variables"].items():
            narrowed = {"is", "has", "gfx", "label", "unless", "since", "until"}
            assert not set(cases[-1]) & narrowed, name
            for case in cases:
                self.check(case, name)
        every = {key for version in lint.versions("2.4..2.15") for key in lint.keys(version)}
        for module, keys in document["config"].items():
            for key, cases in keys.items():
                assert f"{module}.{key}" in every
                for case in cases:
                    self.check(case, key)

    def check(self, case: variables.VerdictCase, name: str) -> None:
        assert set(case) <= {
            *(
                "is",
                "has",
                "gfx",
                "label",
                "unless",
                "since",
                "until",
                "verdict",
                "why",
                "source",
                "elsewhere",
            )
        }
        assert all(map(variables.is_listed, case.get("unless", ()))), name
        assert case["verdict"] in variables.verdict_table()["verdicts"]
        assert case["why"].endswith("."), name
        if case["verdict"] in variables.DANGEROUS:
            assert case["source"], name

    @pytest.mark.parametrize(
        ("name", "value", "torch", "verdict"),
        [
            (MAX, "1", TORCH, "hangs"),
            (MAX, "true", TORCH, "harmless"),
            ("TORCHINDUCTOR_MULTI_KERNEL", "", TORCH, "crashes"),
            ("TORCHINDUCTOR_MULTI_KERNEL", "2", TORCH, "slows"),
            ("TORCH_COMPILE_DEBUG", "true", TORCH, "crashes"),
            ("TORCH_COMPILE_DEBUG", "true", "2.8.0", "harmless"),
            ("TORCHINDUCTOR_WORKER_START", "thread", "2.4.1", "crashes"),
            ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", "2.9.1", "harmless"),
            ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", TORCH, "hangs"),
            # AMD's own 2.11 has them, upstream's has not, and no ROCm before 7.0.
            ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", "2.10.0+rocm7.13.0", "harmless"),
            ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", "2.11.0+rocm7.2", "harmless"),
            ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", "2.11.0+rocm10.0.0", "hangs"),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "2.11.0+git733fca1", "hangs"),
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "2.11.0+rocm10.0.0", "hangs"),
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "2.12.1+rocm7.2", "hangs"),
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "2.13.0+rocm6.4", "harmless"),
            ("HIP_ONLINE_TUNING", "1", TORCH, "slows"),
            ("HIP_ONLINE_TUNING", "true", TORCH, "slows"),
            ("HIP_ONLINE_TUNING", "True", TORCH, "harmless"),
            ("HIP_ONLINE_TUNING", "", TORCH, "harmless"),
            ("GPU_PINNED_MIN_XFER_SIZE", "4194304", TORCH, "harmless"),
            ("ROCPROFILER_QUEUE_INTERPOSITION", "0", TORCH, "unknown"),
            ("TORCH_BLAS_PREFER_HIPBLASLT", "1", "2.6.0", "crashes"),
            ("TORCHINDUCTOR_COLLECTIVE_BENCHMARK_TIMEOUT", "1.5", TORCH, "unknown"),
            ("TORCHINDUCTOR_NO_SUCH_THING", "1", TORCH, "unknown"),
            ("HIP_CACHE_ENABLED", "1", TORCH, "not read"),
            ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "ATEN,CKTILE", TORCH, "hangs"),
            ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS", "aten,ck", TORCH, "hangs"),
            ("TORCHINDUCTOR_AUTOTUNE_FALLBACK_TO_ATEN", "0", "2.7.1", "crashes"),
            ("TORCHINDUCTOR_AUTOTUNE_FALLBACK_TO_ATEN", "0", TORCH, "not read"),
            ("MIOPEN_FIND_MODE", "FAST", TORCH, "harmless"),
            ("MIOPEN_FIND_MODE", "1", TORCH, "slows"),
            ("MIOPEN_FIND_MODE", "4", TORCH, "unknown"),
            # Any enforcement makes MIOpen search all kernels.
            ("MIOPEN_FIND_ENFORCE", "2", TORCH, "slows"),
            ("MIOPEN_FIND_ENFORCE", "search", TORCH, "hangs"),
            ("MIOPEN_FIND_ENFORCE", "1", TORCH, "harmless"),
            ("AITER_REBUILD", "2", TORCH, "slows"),
            ("PYTORCH_TUNABLEOP_ENABLED", "true", TORCH, "harmless"),
            # Triton 3.3 to 3.5, of torch 2.7 to 2.9, read it.
            ("TRITON_HIP_GLOBAL_PREFETCH", "1", "2.6.0", "not read"),
            ("TRITON_HIP_GLOBAL_PREFETCH", "1", "2.9.1", "harmless"),
            ("TRITON_HIP_GLOBAL_PREFETCH", "", "2.9.1", "crashes"),
            ("TRITON_HIP_GLOBAL_PREFETCH", "", TORCH, "not read"),
            # It moved to another file of torch, and still ends each compile.
            ("PYTORCH_SINK_WAITS_LIMIT", "", "2.9.1", "crashes"),
            ("PYTORCH_SINK_WAITS_LIMIT", "", TORCH, "crashes"),
            ("TORCHDYNAMO_CPP_GUARD_MANAGER", "", "2.5.1", "unknown"),
            ("TORCHDYNAMO_CPP_GUARD_MANAGER", "", TORCH, "not read"),
            ("TORCHINDUCTOR_AUTOTUNE_FALLBACK_TO_ATEN", "1", TORCH, "not read"),
            ("SGLANG_DISABLE_CUDNN_CHECK", "1", TORCH, "not read"),
            ("VLLM_ROCM_USE_AITER_LINEAR_HIPBMM", "1", TORCH, "slows"),
            ("VLLM_DISABLE_COMPILE_CACHE", "1", TORCH, "slows"),
            ("VLLM_DISABLE_COMPILE_CACHE", "", TORCH, "crashes"),
            ("SGLANG_JIT_FORCE_RECOMPILE", "yes", TORCH, "slows"),
            ("MIOPEN_NAIVE_DISABLE_IF_ALT", "0", TORCH, "slows"),
        ],
    )
    def test_values_and_versions(self, name: str, value: str, torch: str, verdict: str) -> None:
        assert variables.of_variable(name, value, torch).verdict == verdict

    @pytest.mark.parametrize(
        ("label", "mended"),
        [
            *(("rocm7.2", False), ("rocm7.2.4", False), ("rocm7.13.0", False), ("rocm6.4", False)),
            *(("rocm7.14", True), ("rocm7.14.0a20260623", True), ("rocm10.0.0", True)),
        ],
    )
    def test_the_search_of_miopen_is_bound(self, label: str, mended: bool) -> None:
        verdict = variables.of_variable("MIOPEN_FIND_MODE", "5", f"2.11.0+{label}")
        assert verdict.verdict == "harmless"
        assert ("From ROCm 7.14 on" in verdict.why) is mended
        # Where MIOpen searches all of its kernels, it is slow everywhere.
        assert variables.of_variable("MIOPEN_FIND_MODE", "1", f"2.11.0+{label}").verdict == "slows"

    @pytest.mark.parametrize(
        ("name", "value", "gfx", "verdict"),
        [
            ("TORCH_BLAS_PREFER_HIPBLASLT", "1", ["gfx942"], "harmless"),
            ("TORCH_BLAS_PREFER_HIPBLASLT", "1", ["gfx1151"], "slows"),
            ("TORCH_BLAS_PREFER_HIPBLASLT", "0", ["gfx1151"], "harmless"),
            ("ROCBLAS_USE_HIPBLASLT", "1", ["gfx1201"], "crashes"),
            ("ROCBLAS_USE_HIPBLASLT", "1", ["gfx1100"], "slows"),
            ("ROCBLAS_USE_HIPBLASLT", "1", ["gfx1250"], "harmless"),
            # One of the GPUs is enough.
            ("ROCBLAS_USE_HIPBLASLT", "1", ["gfx90a", "gfx1100"], "slows"),
            ("ROCBLAS_USE_HIPBLASLT", "1", [], "harmless"),
            ("SGLANG_USE_AITER", "1", ["gfx950"], "harmless"),
            ("SGLANG_USE_AITER", "1", ["gfx1201"], "crashes"),
            ("PYTORCH_MIOPEN_SUGGEST_NHWC", "1", ["gfx1101"], "slows"),
            (GFX, "11.0.0", ["gfx1100"], "harmless"),
            (GFX, "11.0.0", ["gfx1103"], "unknown"),
            (GFX, "11.0.0", ["gfx1201"], "crashes"),
            (GFX, "9.0.10", ["gfx90a"], "harmless"),
            (GFX, "9.4.2", ["gfx1100", "gfx942"], "crashes"),
            (GFX, "11.0.0", [], "unknown"),
            (GFX, "gfx1100", ["gfx1100"], "crashes"),
            (GFX, "11.0", [], "crashes"),
            (f"{GFX}_1", "12.0.1", ["gfx1100"], "crashes"),
        ],
    )
    def test_verdicts_on_a_gpu(self, name: str, value: str, gfx: list[str], verdict: str) -> None:
        assert variables.of_variable(name, value, TORCH, gfx=gfx).verdict == verdict

    def test_the_gpu_here_decides(self, stub: Interpreter) -> None:
        env = {"ROCBLAS_USE_HIPBLASLT": "1", GFX: "11.0.0"}
        for gfx, hipblaslt, override in (
            ("gfx942", "harmless", "crashes"),
            ("gfx1201", "crashes", "crashes"),
            ("gfx1100", "slows", "harmless"),
        ):
            _, found = cli(stub, **env, ROCM_AUTOPATCH_ASSUME=f"gfx={gfx}")
            row = rows(found)
            assert row["ROCBLAS_USE_HIPBLASLT"]["verdict"] == hipblaslt
            assert row[GFX]["verdict"] == override

    def test_one_variable_can_spare_another(self) -> None:
        def verdict(**others: str) -> str:
            name = "PYTORCH_TUNABLEOP_ENABLED"
            return variables.of_variable(name, "1", TORCH, environment=others).verdict

        assert verdict() == "slows"
        assert verdict(PYTORCH_TUNABLEOP_TUNING="1") == "slows"
        assert verdict(PYTORCH_TUNABLEOP_TUNING="0") == "harmless"

    def test_what_torch_reads_in_a_rocm_build(
        self, torch_python: Interpreter, tmp_path: Path
    ) -> None:
        # The same on every torch from 2.4 to 2.15 is in make matrix.
        (tmp_path / "2.13.0").mkdir()
        (tmp_path / "2.13.0" / "torch").symlink_to(torch_python.site_packages / "torch")
        script = ROOT / "experiments" / "matrix" / "rocm_versions.py"
        command = [sys.executable, str(script), str(tmp_path), "2.13.0"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count(" none (2.13.0)") == 6

    def test_what_is_not_listed(self) -> None:
        assert not variables.is_listed("PATH")
        assert not variables.is_listed("ROCM_AUTOPATCH")
        assert variables.is_listed("TRITON_SOMETHING")

    def test_few_readings_tell_many_variables_apart(self) -> None:
        for number in range(1, 60):
            codes = investigation.choose_codes([str(name) for name in range(number)])
            assert len(set(codes.values())) == number
            assert len({len(code) for code in codes.values()}) == 1
        assert max(max(code) for code in codes.values()) < 8

    def test_yaml_is_package_data(self) -> None:
        text = (ROOT / "rocm_autopatch" / "probe" / "variables.yaml").read_text()
        assert yaml.safe_load(text) == variables.verdict_table()
