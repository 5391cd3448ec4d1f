"""rocm-autopatch check, policies and explain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rocm_autopatch.cli import main
from tests.conftest import ROOT, Interpreter

IMAGE = "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    return (status, *capsys.readouterr())


def test_without_pyyaml(bare: Interpreter, python311: Interpreter, tmp_path: Path) -> None:
    # As in an overlay, which installs the wheel alone.
    shutil.copytree(python311.site_packages / "rocm_autopatch", tmp_path / "rocm_autopatch")
    shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
    command = ("-m", "rocm_autopatch")
    done = bare.run(*command, "status", "--no-torch", "--json", env=env)
    assert json.loads(done.stdout)["policies"] == ["safe"]
    for arguments in (
        ("check", "team.yaml"),
        ("policies", "show", "safe"),
        ("explain", "freezing"),
    ):
        done = bare.run(*command, *arguments, env=env, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (
            1,
            "",
            f"rocm-autopatch {arguments[0]}: reading a policy needs PyYAML, which is not installed "
            "here\n",
        )


class TestCheck:
    def test_right(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nextends: safe\n")
        assert run(capsys, "check", str(policy)) == (0, "", "1 file checked: no errors\n")
        assert run(capsys, "check") == (0, "", "7 files checked: no errors\n")

    def test_wrong(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
        one.write_text("version: 1\nenv: {A: {set: 1}}\nfoo: 1\n")
        two.write_text("version: 1\nextends: one.yaml\n")
        said = [
            f"{one}:2:16: env.A.set: expected a text, found 1: put it in quotes",
            f"{one}:3:1: foo: unknown key",
        ]
        count = "1 file checked: 2 errors\n"
        assert run(capsys, "check", str(one)) == (1, "\n".join(said) + "\n", count)
        # What it extends is read too.
        assert run(capsys, "check", str(two)) == (1, "\n".join(said) + "\n", count)
        none = tmp_path / "none.yaml"
        said = [f"{none}: can't be read: No such file or directory"]
        count = "1 file checked: 1 error\n"
        assert run(capsys, "check", str(none)) == (1, "\n".join(said) + "\n", count)
        status, out, _ = run(capsys, "check", "--json", str(one))
        assert status == 1
        assert json.loads(out)[1] == {
            "severity": "error",
            "file": str(one),
            "line": 3,
            "column": 1,
            "path": "foo",
            "message": "unknown key",
        }

    def test_against_torch(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        policy = tmp_path / "p.yaml"
        policy.write_text(
            "version: 1\nconfig:\n  torch._inductor.config:\n"
            "    max_autotun: {pin: true}\n    freezing: {default: false}\n"
        )
        assert run(capsys, "check", str(policy))[0] == 0
        key = "config.torch._inductor.config"
        said = (
            f"{policy}:4:5: {key}.max_autotun: no such key in torch 2.6 to 2.13: did you mean "
            f"max_autotune?\n"
            f"{policy}:5:5: {key}.freezing: remark: torch 2.6 to 2.13 ships this "
            "value: its only effect is to override TORCHINDUCTOR_FREEZING in 2.6 to 2.13\n"
        )
        count = "1 file checked: 1 error, 1 remark\n"
        assert run(capsys, "check", "--torch", "2.6..2.13", str(policy)) == (1, said, count)

    def test_the_built_in_policies_against_every_torch(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, out, err = run(capsys, "check", "--torch", "2.4..2.15")
        assert out
        remarks = len(out.splitlines())
        assert (status, err) == (0, f"7 files checked: no errors, {remarks} remarks\n")
        assert all(": remark: " in line for line in out.splitlines())

    def test_versions_that_are_not_known(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["check", "--torch", "3.7"])
        assert "2.15" in capsys.readouterr().err

    def test_images(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        images = Path(shutil.copy(ROOT / "policies" / "images.yaml", tmp_path))
        images.write_text(images.read_text().replace("policy: safe", "policy: saef", 1))
        line = images.read_text().splitlines().index("    policy: saef") + 1
        status, out, _ = run(capsys, "check", str(images))
        assert status == 1
        assert out == (
            f"{images}:{line}:13: saef: no such policy; built-in policies: capture-guard, debug, "
            "no-hipblaslt, performance, safe, sglang-compile; or give the path of a file\n"
        )


class TestPolicies:
    def test_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = run(capsys, "policies")
        assert status == 0
        lines = out.splitlines()
        assert "  safe < performance" in lines
        assert f"  {IMAGE}" in lines
        assert "    where accelerator rocm, framework sglang" in lines
        assert "    sets TORCHINDUCTOR_MAX_AUTOTUNE=1" in lines
        issue = "hipBLASLt solver bug (docs/claims.md#hipblaslt-solver); mitigation: policy"
        assert any(line.startswith(f"    known issue: {issue}") for line in lines)
        assert max(map(len, lines)) <= 100
        found = json.loads(run(capsys, "policies", "--json")[1])
        assert found["policies"]["debug"]["layers"] == ["safe", "debug"]
        (row,) = (row for row in found["images"] if row["image"] == IMAGE)
        assert row["policy"] == "safe"

    def test_show(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = run(capsys, "policies", "show", "performance")
        assert status == 0
        lines = out.splitlines()
        assert lines[0] == "safe < performance"
        assert lines[1] == "  for accelerator=rocm"
        assert "  TORCHINDUCTOR_MAX_AUTOTUNE: delete  [safe]" in lines
        assert "  torch._dynamo.config.recompile_limit: default 256  [performance]" in lines
        assert "  reduce-overhead: use graphs  [performance]" in lines
        assert max(map(len, lines)) <= 100

    def test_show_for_an_assumed_image(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        policy = tmp_path / "new.yaml"
        policy.write_text(
            "version: 1\nwhen: {framework: sglang, framework_version: '>=0.5.9'}\n"
            "env: {A: {set: a}}\npatches: {capture: guard}\n"
        )
        show = ("policies", "show", str(policy), "--assume")
        _, out, _ = run(capsys, *show, f"image={IMAGE}")
        assert out.splitlines()[0] == "safe"
        why = "its condition does not hold: framework sglang, framework_version >=0.5.9"
        assert f"  left out: new, because {why}" in " ".join(out.split("\n    "))
        found = json.loads(run(capsys, *show, f"image={IMAGE.replace('5.8', '5.9')}", "--json")[1])
        assert found["layers"] == ["safe", "new"]
        assert found["facts"]["framework_version"] == "0.5.9"
        assert found["env"][-1][:3] == ["A", "set", "a"]
        _, out, _ = run(capsys, *show, f"image={IMAGE.replace('5.8', '5.9')}")
        assert "  capture: use guard  [new]" in out.splitlines()

    def test_show_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(capsys, "policies", "show", "saef") == (
            1,
            "",
            "rocm-autopatch policies: saef: no such policy; built-in policies: capture-guard, "
            "debug, no-hipblaslt, performance, safe, sglang-compile; or give the path of a file\n",
        )

    @pytest.mark.parametrize("text", ["image", "gpus=4"])
    def test_show_for_what_is_no_fact(self, capsys: pytest.CaptureFixture[str], text: str) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["policies", "show", "--assume", text])
        assert f"{text!r} is not NAME=VALUE, where NAME is one of accel" in capsys.readouterr().err


class TestExplain:
    def explain(self, python: Interpreter, *arguments: str, **env: str) -> tuple[int, str, str]:
        command = ("-m", "rocm_autopatch", "explain", "--no-torch", *arguments)
        env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
        done = python.run(*command, env=env, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_the_stack(self, python311: Interpreter) -> None:
        env = {"ROCM_AUTOPATCH_POLICY": "performance"}
        status, out, _ = self.explain(python311, "coordinate_descent_tuning", "--json", **env)
        (row,) = json.loads(out)
        assert status == 0
        assert row["name"] == "torch._inductor.config.coordinate_descent_tuning"
        assert [(said["layer"], said["value"]) for said in row["layers"]] == [
            ("safe", False),
            ("performance", True),
        ]
        lines = self.explain(python311, "coordinate_descent_tuning", **env)[1].splitlines()
        assert lines[1].startswith("  safe: default False  (overridden), ")
        assert "policies/safe.yaml:" in lines[1]
        assert any(one.startswith("  performance: default True  (applies), ") for one in lines)

    def test_a_variable_a_mode_and_a_patch(self, python311: Interpreter) -> None:
        env = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
        for name, line in (
            (
                "TORCHINDUCTOR_MAX_AUTOTUNE",
                "TORCHINDUCTOR_MAX_AUTOTUNE: '1' -> unset  [delete applied, safe]",
            ),
            (
                "reduce-overhead",
                "reduce-overhead: will become 'default'  [use waiting, safe] (torch has not been "
                "imported)",
            ),
            (
                "compile_modes",
                "patch compile_modes of torch: waiting (torch has not been imported)",
            ),
        ):
            status, out, _ = self.explain(python311, name, **env)
            assert status == 0
            assert out.splitlines()[0] == line

    def test_what_is_not_for_this_place_loses(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "base.yaml").write_text("version: 1\nenv: {A: {set: a}}\n")
        (tmp_path / "old.yaml").write_text(
            "version: 1\nextends: base.yaml\nwhen: {torch: '<2.5'}\nenv: {A: {set: b}}\n"
        )
        top = tmp_path / "top.yaml"
        top.write_text("version: 1\nextends: old.yaml\nenv: {A: {set: c, until: '2.6'}}\n")
        env = {"ROCM_AUTOPATCH_POLICY": str(top)}
        lines = self.explain(python311, "A", **env)[1].splitlines()
        assert lines == [
            "A: unset -> 'a'  [set applied, base]",
            f"  base: set 'a'  (applies), {tmp_path}/base.yaml:2:7",
            f"  old: set 'b'  (overridden), {tmp_path}/old.yaml:4:7",
            f"  top: set 'c'  (overridden), {tmp_path}/top.yaml:3:7",
        ]

    def test_what_the_image_sets(self, python311: Interpreter) -> None:
        name = "TORCHINDUCTOR_MAX_AUTOTUNE"
        _, out, _ = self.explain(python311, name, "--assume", f"image={IMAGE}")
        assert "  images.yaml, sglang: the image sets it to '1'" in out.splitlines()
        (row,) = json.loads(
            self.explain(python311, name, "--assume", f"image={IMAGE}", "--json")[1]
        )
        assert row["images"][0]["why"].startswith("Since sgl-project/sglang#1939, merged 2024-11")

    def test_assumed_image(self, python311: Interpreter) -> None:
        status, out, _ = self.explain(
            python311, "AMD_LOG_LEVEL", "--assume", f"image={IMAGE}", "--json"
        )
        assert status == 0
        assert json.loads(out)[0]["layers"][0]["layer"] == "safe"

    def test_unknown_name(self, python311: Interpreter) -> None:
        assert self.explain(python311, "cudagraphz") == (
            1,
            "",
            "rocm-autopatch explain: no policy here has an entry for cudagraphz; did you mean "
            "cudagraphs?\n",
        )

    def test_nothing_active(self, python311: Interpreter) -> None:
        assert self.explain(python311, "freezing", ROCM_AUTOPATCH="off") == (
            1,
            "",
            "rocm-autopatch explain: no policy is applied: ROCM_AUTOPATCH=off\n",
        )


class TestWhatIsMissing:
    """An overlay installs the wheel alone, and a package may be there and broken."""

    BREAKS = ("raise ModuleNotFoundError('gone')", "raise RuntimeError('broken')", "1 / 0", "x = (")

    @pytest.mark.parametrize("broken", BREAKS)
    @pytest.mark.parametrize("name", ["yaml", "packaging"])
    def test_report_and_status(
        self, python311: Interpreter, tmp_path: Path, name: str, broken: str
    ) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(broken + "\n")
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        # An image, so that what is known of it is asked for.
        env["ROCM_AUTOPATCH_ASSUME"] = "framework=sglang,framework_version=0.5.8"
        code = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
        report = json.loads(python311.run("-c", code, env=env).stdout)
        assert report["active"]
        assert any("known issues are not listed" in note for note in report["notes"])
        done = python311.run(
            *("-m", "rocm_autopatch", "status", "--no-torch", "--json"), env=env, check=False
        )
        assert json.loads(done.stdout)["notes"] == report["notes"]
        assert done.stderr == ""
        # Others say what is missing.
        for command in (("--help",), ("explain", "freezing"), ("probe",), ("policies",)):
            done = python311.run("-m", "rocm_autopatch", *command, env=env, check=False)
            assert "Traceback" not in done.stderr
            assert done.returncode in (0, 1)

    def test_without_packaging(
        self, bare: Interpreter, python311: Interpreter, tmp_path: Path
    ) -> None:
        for package in ("rocm_autopatch", "yaml"):
            shutil.copytree(python311.site_packages / package, tmp_path / package)
        shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", tmp_path)
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        done = bare.run("-m", "rocm_autopatch", "status", "--no-torch", "--json", env=env)
        notes = json.loads(done.stdout)["notes"]
        assert any("need packaging, which is not installed here" in note for note in notes)
        done = bare.run("-m", "rocm_autopatch", "explain", "freezing", env=env, check=False)
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("broken", BREAKS)
    def test_pictures_and_pages(self, python311: Interpreter, tmp_path: Path, broken: str) -> None:
        for name in ("matplotlib", "tqdm"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(broken + "\n")
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        command = ("ab", "--toggle", "X=1", "--repeat", "1", "--warmup", "0")
        plot = ("--plot", str(tmp_path / "x.svg"))
        done = python311.run(
            *("-m", "rocm_autopatch", *command, *plot, "--", "true"), env=env, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("rocm-autopatch ab: --plot needs matplotlib, which can't be")
        assert "Traceback" not in done.stderr
        done = python311.run("-m", "rocm_autopatch", *command, "--", "true", env=env)

    @pytest.mark.parametrize("broken", ["#!/no/such\n", "", "#!/bin/sh\nexit 3\n"])
    def test_tlparse(self, python311: Interpreter, tmp_path: Path, broken: str) -> None:
        program = tmp_path / "tlparse"
        program.write_text(broken)
        program.chmod(0o755)
        (tmp_path / "dedicated_log_torch_trace_1.log").write_text("")
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROCM_AUTOPATCH_LOG": "quiet"}
        done = python311.run(
            "-m", "rocm_autopatch", "report", tmp_path, "--tlparse", env=env, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith("rocm-autopatch report: ")
        assert "Traceback" not in done.stderr


def test_the_help_names_what_is_read(python311: Interpreter) -> None:
    text = " ".join(python311.run("-m", "rocm_autopatch", "--help").stdout.split())
    for file in ("/etc/rocm-autopatch", "image", "baseline", "*.yaml", "baked.plan"):
        assert file in text
    assert "torch/version.py" in text
    assert "ROCM_AUTOPATCH_POLICY" in text
