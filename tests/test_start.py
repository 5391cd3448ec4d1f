"""The start of an interpreter: the switch, the gate, variables, the one line, bad surroundings."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.policy import plan_file
from tests.conftest import (
    HIP,
    MAX,
    REPORT,
    SEEN,
    Interpreter,
    copy_interpreter,
    label_torch,
    make_venv,
    pip,
    run_with_site,
)
from tests.messages import Golden

PATH = {"PATH": os.environ["PATH"]}


def report(python: Interpreter, *flags: str, **env: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(python.value(REPORT, *flags, env=env))
    return report


def _startup(python: Interpreter, name: str) -> Path:
    return python.site_packages / "rocm_autopatch" / "startup" / name


class TestSwitch:
    @pytest.mark.parametrize("off", ["off", "0", "false", "no", "OFF", "False", " no "])
    def test_off_leaves_everything(
        self, python311: Interpreter, bare: Interpreter, off: str
    ) -> None:
        code = (
            "import os, sys; print(sorted(os.environ.items()), [type(f) for f in sys.meta_path],"
            "sorted(n for n in sys.modules if not n.startswith('rocm_autopatch')))"
        )
        env = {"ROCM_AUTOPATCH": off, MAX: "1"}
        assert python311.value(code, env=env) == bare.value(code, env=env)

    def test_off_loads_one_module_and_says_nothing(self, python: Interpreter) -> None:
        code = "import sys; print([n for n in sys.modules if n.startswith('rocm_autopatch')])"
        done = python.run("-c", code, env={"ROCM_AUTOPATCH": "off"})
        assert done.stdout == "['rocm_autopatch']\n"
        assert done.stderr == ""

    def test_on(self, python: Interpreter) -> None:
        assert python.value(SEEN, env={MAX: "1"}) == "None"

    def test_observe_records_and_changes_nothing(self, python: Interpreter) -> None:
        done = python.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH": "observe"})
        assert (done.stdout, done.stderr) == ("1\n", "")
        seen = report(python, ROCM_AUTOPATCH="observe", **{MAX: "1"})
        row = next(row for row in seen["env"] if row["name"] == MAX)
        assert (row["before"], row["after"], row["status"]) == ("1", "1", "observed")
        assert seen["active"] is True
        assert seen["observe"] is True

    def test_observe_says_what_would_change(self, python311: Interpreter, golden: Golden) -> None:
        code = (
            "import rocm_autopatch as r; from rocm_autopatch.startup import rows\n"
            "for part in ('env', 'config', 'compile_modes'):\n"
            "    for row in r.status()[part][:3]: print(rows.sentence(row))"
        )
        done = python311.run("-c", code, env={MAX: "1", "ROCM_AUTOPATCH": "observe"})
        assert f"{MAX}: '1', would become unset" in done.stdout
        golden(done.stdout)

    def test_unknown_value_is_said_once_and_taken_as_on(
        self, python: Interpreter, golden: Golden
    ) -> None:
        done = python.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH": "maybe"})
        assert done.stdout == "None\n"
        golden(done.stderr)


class TestGate:
    @pytest.mark.parametrize(
        ("version", "hip", "cuda"),
        [
            ("2.13.0+cpu", None, None),
            ("2.13.0+cu130", None, "13.0"),
            ("1.13.1+rocm5.2", "5.2.21151", None),
        ],
    )
    def test_other_torch(
        self,
        python311: Interpreter,
        tmp_path: Path,
        version: str,
        hip: str | None,
        cuda: str | None,
        golden: Golden,
    ) -> None:
        path = str(label_torch(tmp_path, version, hip, cuda))
        done = python311.run("-c", SEEN, env={MAX: "1", "PYTHONPATH": path})
        assert done.stdout == "1\n"
        assert bool(done.stderr) == (hip is not None)
        golden(done.stderr, "stderr")
        seen = report(python311, PYTHONPATH=path)
        assert seen["active"] is False
        golden(seen["reason"], "reason")

    def test_no_torch(self, fresh: Interpreter, golden: Golden) -> None:
        shutil.rmtree(fresh.site_packages / "torch")
        done = fresh.run("-c", SEEN, env={MAX: "1"})
        assert (done.stdout, done.stderr) == ("1\n", "")
        golden(report(fresh)["reason"])

    @pytest.mark.parametrize("text", ["", "\0\xff", "__version__ =", "hip = '7.0'\n"])
    def test_broken_version_file(self, fresh: Interpreter, text: str) -> None:
        (fresh.site_packages / "torch" / "version.py").write_text(text, encoding="latin-1")
        done = fresh.run("-c", SEEN, env={MAX: "1"})
        assert done.stdout == "1\n"
        assert len(done.stderr.splitlines()) <= 1

    def test_torch_is_not_imported(self, python: Interpreter) -> None:
        assert python.value("import sys; print('torch' in sys.modules)") == "False"

    @pytest.mark.parametrize("system", [True, False])
    def test_torch_of_the_base_interpreter(self, wheel: Path, tmp_path: Path, system: bool) -> None:
        # site reads a venv's .pth files before it adds the base's directories to sys.path.
        base = copy_interpreter(tmp_path / "base")
        label_torch(base.site_packages, "2.13.0+rocm7.0", HIP)
        options = ["--system-site-packages"] if system else []
        inner = make_venv(tmp_path / "venv", str(base.path), *options)
        pip(inner, "install", "--no-deps", wheel)
        assert inner.value(SEEN, env={MAX: "1"}) == ("None" if system else "1")

    def test_installed_for_a_user(self, wheel: Path, tmp_path: Path) -> None:
        # A user's site-packages come before the system's, too.
        base = copy_interpreter(tmp_path / "base")
        label_torch(base.site_packages, "2.13.0+rocm7.0", HIP)
        user = tmp_path / "user"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", user, wheel],
            check=True,
        )
        site = Path(
            base.value(
                "import site; print(site.getusersitepackages())",
                env={"PYTHONUSERBASE": str(tmp_path)},
            )
        )
        site.parent.mkdir(parents=True)
        user.rename(site)
        assert base.value(SEEN, env={MAX: "1", "PYTHONUSERBASE": str(tmp_path)}) == "None"

    def test_another_torch_than_the_one_found(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        other = label_torch(tmp_path, "2.13.0+cpu", None)
        code = f"import sys; sys.path.insert(0, {str(other)!r}); import torch; {REPORT}"
        seen = json.loads(python311.value(code))
        (note,) = seen["notes"]
        golden(note)

    def test_assumed_facts(self, python311: Interpreter, tmp_path: Path) -> None:
        path = str(label_torch(tmp_path, "2.13.0+cpu", None))
        image = "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"
        assume = f"accelerator=rocm,image={image}"
        seen = report(python311, PYTHONPATH=path, ROCM_AUTOPATCH_ASSUME=assume)
        assert seen["active"] is True
        assert seen["facts"]["image"] == {
            "value": image,
            "source": "ROCM_AUTOPATCH_ASSUME",
            "kind": "assumption",
        }
        assert seen["facts"]["torch"]["value"] == "2.13.0+cpu"

    def test_bad_assumption_is_said_and_the_rest_used(
        self, python311: Interpreter, golden: Golden
    ) -> None:
        env = {"ROCM_AUTOPATCH_ASSUME": "accelerater=rocm,accelerator=cuda", MAX: "1"}
        done = python311.run("-c", SEEN, env=env)
        assert done.stdout == "1\n"
        golden(done.stderr)


class TestVariables:
    POLICY = """
version: 1
env:
  GONE: {delete: true}
  NEW: {default: a}
  HERE: {default: b}
  FORCED: {set: c}
"""

    @pytest.fixture
    def env(self, tmp_path: Path) -> dict[str, str]:
        policy = tmp_path / "policy.yaml"
        policy.write_text(self.POLICY)
        return {"ROCM_AUTOPATCH_POLICY": str(policy), "GONE": "1", "HERE": "kept", "FORCED": "x"}

    CODE = "import os; print([os.environ.get(n) for n in ('GONE', 'NEW', 'HERE', 'FORCED')])"

    def test_delete_default_set(self, python: Interpreter, env: dict[str, str]) -> None:
        assert python.value(self.CODE, env=env) == "[None, 'a', 'kept', 'c']"

    def test_the_process_itself_loses_them_too(
        self, python311: Interpreter, env: dict[str, str]
    ) -> None:
        # os.environ and what C code and children see are two things: putenv and unsetenv
        code = "import subprocess; print(subprocess.check_output(['env'], text=True))"
        seen = python311.value(code, env=env).splitlines()
        assert "FORCED=c" in seen
        assert not [line for line in seen if line.startswith("GONE")]

    @pytest.mark.parametrize(
        ("torch", "value"),
        [("2.5.1", "all"), ("2.6.0", "some"), ("2.10.0+rocm7.0", "some"), ("2.10.1", "all")],
    )
    def test_entries_for_some_torches(
        self, python311: Interpreter, tmp_path: Path, torch: str, value: str
    ) -> None:
        (tmp_path / "base.yaml").write_text("version: 1\nenv: {A: {set: all}}\n")
        policy = tmp_path / "top.yaml"
        policy.write_text(
            "version: 1\nextends: base.yaml\nenv: {A: {set: some, since: '2.6', until: '2.10.1'}}\n"
        )
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), "ROCM_AUTOPATCH_ASSUME": f"torch={torch}"}
        assert python311.value("import os; print(os.environ['A'])", env=env) == value
        (row,) = report(python311, **env)["env"]
        assert row["wanted"] == value

    def test_keep(self, python311: Interpreter, env: dict[str, str]) -> None:
        env["ROCM_AUTOPATCH_KEEP"] = "GONE, FORCED,"
        assert python311.value(self.CODE, env=env) == "['1', 'a', 'kept', 'x']"
        rows = {row["name"]: row for row in report(python311, **env)["env"]}
        assert rows["GONE"]["status"] == "kept"
        assert rows["GONE"]["after"] == "1"
        assert rows["HERE"]["status"] == "unchanged"


class TestOneLine:
    def test_once_in_a_process_tree(
        self, python: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        # Each generation is handed the variable again. It keeps it, as somebody wants it there.
        program = tmp_path / "program.py"
        program.write_text(
            "import os, subprocess, sys\n"
            f"print(os.environ.get({MAX!r}))\n"
            "left = int(sys.argv[1])\n"
            f"env = dict(os.environ, {MAX}='1')\n"
            "if left:\n"
            "    command = [sys.executable, __file__, str(left - 1)]\n"
            "    print(subprocess.check_output(command, env=env, text=True), end='')\n"
        )
        image = "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"
        done = python.run(program, "2", env={MAX: "1", "ROCM_AUTOPATCH_IMAGE": image})
        assert done.stdout == "None\n1\n1\n"
        golden(done.stderr)

    def test_what_replaces_no_value_is_not_said(
        self, python311: Interpreter, tmp_path: Path
    ) -> None:
        code = "import os; print(os.environ['HIP_LAUNCH_BLOCKING'], os.environ.get('A'))"
        done = python311.run("-c", code, env={"ROCM_AUTOPATCH_POLICY": "tuning-notes"})
        assert (done.stdout, done.stderr) == ("0 None\n", "")
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nextends: tuning-notes\nenv: {A: {set: ours}}\n")
        done = python311.run("-c", code, env={"ROCM_AUTOPATCH_POLICY": str(policy)})
        assert (done.stdout, done.stderr) == ("0 ours\n", "")

    def test_quiet(self, python311: Interpreter) -> None:
        done = python311.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH_LOG": "quiet"})
        assert (done.stdout, done.stderr) == ("None\n", "")

    def test_debug_says_each_change(self, python311: Interpreter) -> None:
        done = python311.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH_LOG": "debug"})
        assert f"{MAX}: '1' -> unset  [delete applied, safe]: SGLang's ROCm" in done.stderr

    def test_nothing_changed_nothing_said(self, python311: Interpreter, tmp_path: Path) -> None:
        policy = tmp_path / "empty.yaml"
        policy.write_text("version: 1\nextends: []\n")
        done = python311.run("-c", "pass", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
        assert (done.stdout, done.stderr) == ("", "")


class TestImage:
    def test_known_image(self, python311: Interpreter, golden: Golden) -> None:
        image = "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210"
        for given in (
            image,
            f"docker.io/{image}",
            f"mirror.example:5000/{image}",
            f"{image}@sha256:{'0' * 64}",
        ):
            seen = report(python311, ROCM_AUTOPATCH_IMAGE=given)
            golden(seen["reason"].replace(given, "<IMAGE>"), "reason")
            assert seen["policies"] == ["safe"]
            assert seen["facts"]["image"] == {
                "value": given,
                "source": "ROCM_AUTOPATCH_IMAGE",
                "kind": "clue",
            }

    def test_unknown_image_gets_the_default_and_the_record_says_so(
        self, python311: Interpreter, golden: Golden
    ) -> None:
        seen = report(python311, ROCM_AUTOPATCH_IMAGE="rocm/sgl-dev:v9")
        assert seen["policies"] == ["safe"]
        golden(seen["reason"])

    def test_file_that_the_overlay_writes(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "image").write_text("rocm/sgl-dev:from-file\n")
        seen = json.loads(run_with_site(tmp_path, python311.path, "-c", REPORT).stdout)
        assert seen["facts"]["image"] == {
            "value": "rocm/sgl-dev:from-file",
            "source": "/etc/rocm-autopatch/image",
            "kind": "clue",
        }


class TestSite:
    """Policies in /etc/rocm-autopatch."""

    def layers(self, python: Interpreter, site: Path, **env: str) -> list[str]:
        done = run_with_site(site, python.path, "-c", REPORT, ROCM_AUTOPATCH_LOG="quiet", **env)
        policies: list[str] = json.loads(done.stdout)["policies"]
        return policies

    def test_they_are_layers_on_what_is_built_in(
        self, python311: Interpreter, tmp_path: Path
    ) -> None:
        (tmp_path / "b.yaml").write_text("version: 1\nname: two\nenv: {A: {set: two}}\n")
        (tmp_path / "a.yaml").write_text("version: 1\nenv: {A: {set: a}, B: {set: a}}\n")
        code = f"import os; print(os.environ['A'], os.environ['B'], os.environ.get({MAX!r}))"
        done = run_with_site(tmp_path, python311.path, "-c", code, **{MAX: "1"})
        assert done.stdout == "two a None\n"
        assert self.layers(python311, tmp_path) == ["safe", "a", "two"]

    def test_a_named_policy_is_on_top(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("version: 1\nenv: {A: {set: a}}\n")
        for named, layers in (
            ("performance", ["safe", "a", "performance"]),
            ("safe", ["a", "safe"]),
            ("no-hipblaslt", ["safe", "a", "no-hipblaslt"]),
        ):
            assert self.layers(python311, tmp_path, ROCM_AUTOPATCH_POLICY=named) == layers

    def test_image_records(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("version: 1\n")
        (tmp_path / "images.yaml").write_text(
            "version: 1\nimages:\n"
            "- {name: nine, when: {framework_version: '>=0.5.9'}, policy: performance,"
            " env: {A: {set: nine}}}\n"
            "- {image: 'rocm/sgl-dev:v0.5.8-x', env: {A: {set: x}}}\n"
        )
        for tag, layers in (
            ("v0.5.8-x", ["safe", "rocm/sgl-dev:v0.5.8-x", "a"]),
            ("v0.5.9-rocm700-mi30x", ["safe", "performance", "nine", "a"]),
            ("latest", ["safe", "a"]),
        ):
            image = f"mirror.example/rocm/sgl-dev:{tag}"
            assert self.layers(python311, tmp_path, ROCM_AUTOPATCH_IMAGE=image) == layers

    def test_a_wrong_one_applies_nothing(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        (tmp_path / "a.yaml").write_text("version: 2\n")
        done = run_with_site(tmp_path, python311.path, "-c", SEEN, **{MAX: "1"})
        assert done.stdout == "1\n"
        golden(done.stderr)

    def test_files_that_are_no_policies_cost_nothing(
        self, python311: Interpreter, tmp_path: Path
    ) -> None:
        (tmp_path / "README").write_text("not a policy\n")
        code = "import sys; print('yaml' in sys.modules)"
        assert run_with_site(tmp_path, python311.path, "-c", code).stdout == "False\n"


class TestClues:
    """Facts of a container that does not know its tag, in real interpreters; test_facts.py has
    each clue."""

    def test_records_for_what_is_installed(self, fresh: Interpreter, tmp_path: Path) -> None:
        metadata = fresh.site_packages / "sglang-0.5.10.post1.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.10.post1\n")
        env = {"GPU_ARCH": "gfx950-rocm724", "ROCM_AUTOPATCH_LOG": "quiet"}
        seen = report(fresh, **env)
        facts = {name: (fact["value"], fact["kind"]) for name, fact in seen["facts"].items()}
        assert facts["framework"] == ("sglang", "clue")
        assert facts["framework_version"] == ("0.5.10.post1", "clue")
        assert facts["gfx"] == ("gfx950", "clue")
        # The stand-in is a torch for ROCm 7.0: the image's variable says something else.
        assert facts["rocm"] == ("7.0", "clue")
        assert [(c["name"], c["other"]["value"]) for c in seen["contradictions"]] == [
            ("rocm", "7.2.4")
        ]
        assert any(
            "rocm is 7.0 " in note and "not 7.2.4 (GPU_ARCH)" in note for note in seen["notes"]
        )
        records = {issue["record"] for issue in seen["known_issues"]}
        assert "sglang" in records
        assert "vllm" not in records

    def test_a_policy_may_ask_for_them(self, python311: Interpreter, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(
            "version: 1\nwhen: {gfx: gfx950, rocm: '>=7', framework: sglang}\nenv: {A: {set: a}}\n"
        )
        code = "import os; print(os.environ.get('A'))"
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), "SGLANG_USE_AITER": "1"}
        for arch, value in (("gfx950", "a"), ("gfx942", "None")):
            assert python311.value(code, env={**env, "GPU_ARCH": arch}) == value

    def test_a_start_with_built_in_policies_reads_no_clue(self, python311: Interpreter) -> None:
        code = "import sys; print([n for n in sys.modules if n.startswith('rocm_autopatch.image')])"
        assert python311.value(code, env={"SGLANG_USE_AITER": "1"}) == "[]"


class TestPolicyChoice:
    def test_libraries_that_the_site_adds_late(
        self, wheel: Path, tmp_path: Path, golden: Golden
    ) -> None:
        # A venv's .pth files are read before the system's site-packages are on sys.path.
        system = copy_interpreter(tmp_path / "system")
        label_torch(system.site_packages, "2.13.0+rocm7.0", HIP)
        for package in ("yaml", "packaging"):
            (source,) = importlib.import_module(package).__path__
            shutil.copytree(source, system.site_packages / package)
        made = make_venv(tmp_path / "venv", str(system.path), "--system-site-packages")
        pip(made, "install", "--no-deps", wheel)
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nextends: []\nenv: {A: {set: ours}}\n")
        done = made.run(
            *("-c", "import os, sys; print(os.environ['A'], len(sys.path) == len(set(sys.path)))"),
            env={"ROCM_AUTOPATCH_POLICY": str(policy), "A": "the image's"},
        )
        assert done.stdout == "ours True\n"
        golden(done.stderr)

    @pytest.mark.parametrize("name", ["safe", "performance", "debug"])
    def test_by_name(self, python311: Interpreter, name: str) -> None:
        seen = report(python311, ROCM_AUTOPATCH_POLICY=name)
        assert seen["policies"] == (["safe"] if name == "safe" else ["safe", name])

    def test_name_wins_over_image(self, python311: Interpreter) -> None:
        image = "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210"
        seen = report(python311, ROCM_AUTOPATCH_POLICY="performance", ROCM_AUTOPATCH_IMAGE=image)
        assert seen["policies"] == ["safe", "performance"]

    def test_a_file_goes_on_what_the_place_chooses(
        self, python311: Interpreter, tmp_path: Path
    ) -> None:
        policy = tmp_path / "mine.yaml"
        for extends, layers in (
            ("", ["safe", "mine"]),
            ("extends: []\n", ["mine"]),
            ("extends: performance\n", ["safe", "performance", "mine"]),
        ):
            policy.write_text(f"version: 1\n{extends}")
            assert report(python311, ROCM_AUTOPATCH_POLICY=str(policy))["policies"] == layers

    def test_a_mitigation_goes_on_what_the_record_chooses(self, fresh: Interpreter) -> None:
        # No built-in record chooses another policy than the default today.
        index = fresh.site_packages / "rocm_autopatch" / "plans" / "images.index"
        index.write_bytes(plan_file.pack({"a:b": "performance"}))
        images = fresh.site_packages / "rocm_autopatch" / "policies" / "images.yaml"
        images.write_text(images.read_text() + "  - {image: 'a:b', policy: performance}\n")
        env = {"ROCM_AUTOPATCH_IMAGE": "a:b"}
        assert report(fresh, **env)["policies"] == ["safe", "performance"]
        env["ROCM_AUTOPATCH_POLICY"] = "no-hipblaslt"
        assert report(fresh, **env)["policies"] == ["safe", "performance", "no-hipblaslt"]

    @pytest.mark.skipif(os.getuid() != 0, reason="running for another group needs root")
    def test_a_set_uid_program_takes_no_file_from_its_caller(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "mine.yaml"
        policy.write_text("version: 1\nenv: {A: {set: a}}\n")
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), MAX: "1"}

        def caller() -> None:
            os.setresgid(65534, 0, 0)

        def run_set_uid(code: str, **env: str) -> str:
            return python311.run("-c", code, env=env, preexec_fn=caller).stdout

        seen = json.loads(run_set_uid(REPORT, **env))
        assert seen["policies"] == ["safe"]
        (note,) = seen["notes"]
        golden(note)
        assert run_set_uid(SEEN, **env, ROCM_AUTOPATCH="off") == "1\n"

    def test_unknown_name(self, python: Interpreter, golden: Golden) -> None:
        done = python.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH_POLICY": "saef"})
        assert done.stdout == "None\n"
        golden(done.stderr)

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("version: 1\nenv: {A: {delete: yess}}\n", id="wrong value"),
            pytest.param("version: 1\nenv: [", id="no YAML"),
            pytest.param(b"\xff\xfe\xff", id="no UTF-8"),
            pytest.param("version: 1\nenv: {A: &a {set: *a}}\n", id="alias"),
            pytest.param("version: 1\nextends: saef\n", id="unknown name"),
        ],
    )
    def test_bad_file(
        self, python: Interpreter, tmp_path: Path, text: str | bytes, golden: Golden
    ) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = python.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH_POLICY": str(policy)})
        assert done.stdout == "1\n"
        golden(done.stderr)

    def test_a_built_in_policy_whose_plan_is_damaged(
        self, fresh: Interpreter, golden: Golden
    ) -> None:
        plan = fresh.site_packages / "rocm_autopatch" / "plans" / "performance.plan"
        plan.write_bytes(plan.read_bytes()[:9])
        env = {MAX: "1", "ROCM_AUTOPATCH_POLICY": "performance"}
        done = fresh.run("-c", SEEN, env=env)
        assert done.stdout == "1\n"
        golden(done.stderr, "stderr")
        seen = report(fresh, **env)
        assert seen["active"] is False
        golden(seen["reason"], "reason")

    @pytest.mark.parametrize("package", ["yaml", "packaging"])
    @pytest.mark.parametrize(
        "code",
        [
            pytest.param("raise ModuleNotFoundError('gone')", id="missing"),
            pytest.param("1 / 0", id="broken"),
        ],
    )
    def test_without_what_reading_a_policy_needs(
        self, python311: Interpreter, tmp_path: Path, package: str, code: str, golden: Golden
    ) -> None:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code + "\n")
        policy = tmp_path / "policy.yaml"
        policy.write_text("version: 1\nwhen: {torch: '>=2.4'}\n")
        env = {MAX: "1", "ROCM_AUTOPATCH_POLICY": str(policy), "PYTHONPATH": str(tmp_path)}
        done = python311.run("-c", SEEN, env=env)
        assert done.stdout == "1\n"
        golden(done.stderr)

    def test_a_file_that_everybody_may_write(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("version: 1\n")
        policy.chmod(0o666)
        done = python311.run("-c", SEEN, env={MAX: "1", "ROCM_AUTOPATCH_POLICY": str(policy)})
        assert done.stdout == "1\n"
        golden(done.stderr)

    def test_files_named_by_the_environment_are_not_read_under_E(
        self, python311: Interpreter, golden: Golden
    ) -> None:
        for flag in ("-E", "-I"):
            seen = report(python311, flag, ROCM_AUTOPATCH_POLICY="performance")
            assert seen["policies"] == ["safe"]
            (note,) = seen["notes"]
            golden(note, "note")


class TestSurroundings:
    @pytest.mark.parametrize(
        "flags", ["-I", "-E", "-s", "-O", "-OO", "-B", "-I -O", "-W error -bb", "-X dev"]
    )
    def test_flags(self, python: Interpreter, flags: str) -> None:
        done = python.run(*flags.split(), "-c", f"import torch; {SEEN}", env={MAX: "1"})
        assert done.stdout == "None\n"
        # The stand-in has no compile modes to patch.
        assert len(done.stderr.splitlines()) == 2

    def test_without_site_nothing_happens(self, python: Interpreter) -> None:
        done = python.run("-S", "-c", SEEN, env={MAX: "1"})
        assert (done.stdout, done.stderr) == ("1\n", "")

    def test_off_works_under_isolation(self, python: Interpreter) -> None:
        assert python.value(SEEN, "-I", env={MAX: "1", "ROCM_AUTOPATCH": "off"}) == "1"

    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>&1 1>&- 2>&-"])
    def test_stderr_that_takes_nothing(
        self, python: Interpreter, bare: Interpreter, redirection: str
    ) -> None:
        def run_redirected(interpreter: Interpreter) -> tuple[str, int]:
            done = subprocess.run(
                ["sh", "-c", f'"{interpreter.path}" -c "print(1)" {redirection}'],
                env={MAX: "1"},
                capture_output=True,
                text=True,
            )
            return done.stdout, done.returncode

        assert run_redirected(python) == run_redirected(bare)

    @pytest.mark.parametrize("error", ["SystemExit(3)", "ZeroDivisionError"])
    def test_start_that_raises(self, fresh: Interpreter, error: str, golden: Golden) -> None:
        _startup(fresh, "__init__.py").write_text(f"raise {error}\n")
        done = fresh.run("-c", "print(1)", env={"ROCM_AUTOPATCH_LOG": "on"})
        assert done.stdout == "1\n"
        golden(done.stderr.splitlines()[-1])

    def test_choice_that_raises(self, fresh: Interpreter, golden: Golden) -> None:
        _startup(fresh, "choose.py").write_text("raise SystemExit(3)\n")
        env = {"ROCM_AUTOPATCH_IMAGE": "a:b"}
        golden(fresh.run("-c", "print(1)", env=env).stderr, "stderr")
        seen = report(fresh, **env)
        assert (seen["active"], seen["reason"]) == (False, "the start-up hook failed")
        (error,) = seen["errors"]
        golden(error, "error")

    @pytest.mark.parametrize("error", ["SystemExit(3)", "ZeroDivisionError"])
    def test_hooks_that_raise(self, fresh: Interpreter, error: str, golden: Golden) -> None:
        _startup(fresh, "hooks.py").write_text(f"raise {error}\n")
        done = fresh.run("-c", "import torch; print(torch.version.hip)")
        assert done.stdout == f"{HIP}\n"
        golden(done.stderr.splitlines()[-1])

    def test_without_bytecode_and_writable_directories(
        self, fresh: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        for cache in fresh.site_packages.glob("**/__pycache__"):
            shutil.rmtree(cache)
        command = [
            *("unshare", "-m", "sh", "-c"),
            'mount --bind . . && mount -o remount,ro,bind . && exec "$@"',
            *("sh", str(fresh.path), "-c", SEEN),
        ]
        if os.getuid() != 0:
            command = [str(fresh.path), "-c", SEEN]
            fresh.site_packages.chmod(0o555)
        done = subprocess.run(command, cwd=tmp_path, env={MAX: "1"}, capture_output=True, text=True)
        assert done.stdout == "None\n"
        assert not list(fresh.site_packages.glob("rocm_autopatch/__pycache__"))
        (note,) = report(fresh, PYTHONDONTWRITEBYTECODE="1")["notes"]
        golden(note)
        report(fresh)
        assert report(fresh)["notes"] == []

    def test_no_home_no_path(self, python311: Interpreter) -> None:
        done = subprocess.run(
            [python311.path, "-c", SEEN], env={MAX: "1"}, capture_output=True, text=True
        )
        assert done.stdout == "None\n"

    def test_second_call_returns_at_once(self, python: Interpreter) -> None:
        code = (
            # The digest is of the environment as it is now.
            "import os, rocm_autopatch as r; before = {**r.status(), 'digest': ''};"
            "os.environ['TORCH_COMPILE_DEBUG'] = '1'; r.start();"
            "print({**r.status(), 'digest': ''} == before, os.environ['TORCH_COMPILE_DEBUG'])"
        )
        assert python.value(code, env={"TORCH_COMPILE_DEBUG": "1"}) == "True 1"

    def test_a_real_venv_runs_the_line_twice_and_we_act_once(self, python: Interpreter) -> None:
        assert len(report(python, **{MAX: "1"})["env"]) == 5


class TestChildren:
    def test_emptied_environment(self, python: Interpreter) -> None:
        code = (
            "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', "
            f"{SEEN!r}], env={{{MAX!r}: '1'}}, text=True), end='')"
        )
        assert python.value(code) == "None"

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_multiprocessing(self, python: Interpreter, tmp_path: Path, method: str) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            "import multiprocessing, os, sys\n"
            "def child(queue):\n"
            "    import rocm_autopatch\n"
            f"    queue.put((os.environ.get({MAX!r}), rocm_autopatch.status()['active'],\n"
            "               sum('startup' in str(finder) for finder in sys.meta_path)))\n"
            "if __name__ == '__main__':\n"
            f"    context = multiprocessing.get_context({method!r})\n"
            "    queue = context.Queue()\n"
            "    process = context.Process(target=child, args=(queue,))\n"
            "    process.start(); print(queue.get()); process.join()\n"
        )
        done = python.run(program, env={MAX: "1"})
        assert done.stdout == "(None, True, 1)\n"
        assert len(done.stderr.splitlines()) == 1


BANNED = """
json re fnmatch yaml logging typing pathlib dataclasses importlib.util importlib.metadata subprocess
threading traceback ast warnings contextlib functools collections
"""


def test_a_start_loads_two_modules_of_ours_and_no_other(
    python: Interpreter, tmp_path: Path
) -> None:
    def loaded(*flags: str, **env: str) -> set[str]:
        return set(python.value("import sys; print(*sys.modules)", *flags, env=env).split())

    nothing = loaded("-S", "-E")
    off = loaded(ROCM_AUTOPATCH="off")
    path = str(label_torch(tmp_path, "2.13.0+cpu", None))
    assert loaded(PYTHONPATH=path) == off
    assert loaded(**{MAX: "1"}) - off == {"rocm_autopatch.startup"}
    assert not (off - nothing).intersection(BANNED.split())
