"""rocm-autopatch check, policies and explain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rocm_autopatch.cli import main
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden
from tests.names import MI35X_IMAGE


def call_main(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    return (status, *capsys.readouterr())


def test_without_pyyaml(
    bare: Interpreter, python311: Interpreter, tmp_path: Path, golden: Golden
) -> None:
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
        ("bake", "--image", "a:b", "--json"),
    ):
        done = bare.run(*command, *arguments, env=env, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr, arguments[0])


class TestCheck:
    def test_right(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nextends: safe\n")
        for name, files in (("one file", [str(policy)]), ("our own", [])):
            status, out, err = call_main(capsys, "check", *files)
            assert (status, out) == (0, "")
            golden(err, name)

    def test_wrong(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        one, two, none = (tmp_path / f"{name}.yaml" for name in ("one", "two", "none"))
        one.write_text("version: 1\nenv: {A: {set: 1}}\nfoo: 1\n")
        two.write_text("version: 1\nextends: one.yaml\n")
        for name, file in (("wrong", one), ("no such file", none)):
            status, out, err = call_main(capsys, "check", str(file))
            assert status == 1
            golden(out, name)
            golden(err, f"{name}, stderr")
        # What it extends is read too.
        assert call_main(capsys, "check", str(two)) == call_main(capsys, "check", str(one))
        status, out, _ = call_main(capsys, "check", "--json", str(one))
        assert status == 1
        assert json.loads(out)[1] == {
            "severity": "error",
            "file": str(one),
            "line": 3,
            "column": 1,
            "path": "foo",
            "message": "unknown key",
        }

    def test_against_torch(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "p.yaml"
        policy.write_text(
            "version: 1\nconfig:\n  torch._inductor.config:\n"
            "    max_autotun: {pin: true}\n    freezing: {default: false}\n"
        )
        assert call_main(capsys, "check", str(policy))[0] == 0
        status, out, err = call_main(capsys, "check", "--torch", "2.6..2.13", str(policy))
        assert status == 1
        golden(out, "stdout")
        golden(err, "stderr")

    def test_the_built_in_policies_against_every_torch(
        self, capsys: pytest.CaptureFixture[str], golden: Golden
    ) -> None:
        status, out, err = call_main(capsys, "check", "--torch", "2.4..2.15")
        remarks = out.splitlines()
        assert status == 0
        assert remarks
        assert all(": remark: " in line for line in remarks)
        golden(err, REMARKS=len(remarks))

    def test_versions_that_are_not_known(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["check", "--torch", "3.7"])
        assert "2.15" in capsys.readouterr().err

    def test_images(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        images = Path(shutil.copy(ROOT / "policies" / "images.yaml", tmp_path))
        images.chmod(0o644)  # the checkout's umask may be 002
        images.write_text(images.read_text().replace("policy: safe", "policy: saef", 1))
        line = images.read_text().splitlines().index("    policy: saef") + 1
        status, out, _ = call_main(capsys, "check", str(images))
        assert status == 1
        golden(out, PLACE=f"{images}:{line}:13")


class TestPolicies:
    def test_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = call_main(capsys, "policies")
        assert status == 0
        lines = out.splitlines()
        assert "  safe < performance" in lines
        assert f"  {MI35X_IMAGE}" in lines
        assert "    where accelerator rocm, framework sglang" in lines
        assert "    sets TORCHINDUCTOR_MAX_AUTOTUNE=1" in lines
        issue = "hipBLASLt solver bug (docs/claims.md#hipblaslt-solver); mitigation: policy"
        assert any(line.startswith(f"    known issue: {issue}") for line in lines)
        assert max(map(len, lines)) <= 100
        found = json.loads(call_main(capsys, "policies", "--json")[1])
        assert found["policies"]["debug"]["layers"] == ["safe", "debug"]
        (row,) = (row for row in found["images"] if row["image"] == MI35X_IMAGE)
        assert row["policy"] == "safe"

    def test_show(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = call_main(capsys, "policies", "show", "performance")
        assert status == 0
        lines = out.splitlines()
        assert lines[0] == "safe < performance"
        assert lines[1] == "  for accelerator=rocm"
        assert "  TORCHINDUCTOR_MAX_AUTOTUNE: delete  [safe]" in lines
        assert "  torch._dynamo.config.recompile_limit: default 256  [performance]" in lines
        assert "  reduce-overhead: use default  [performance]" in lines
        assert max(map(len, lines)) <= 100

    def test_show_for_an_assumed_image(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "new.yaml"
        policy.write_text(
            "version: 1\nwhen: {framework: sglang, framework_version: '>=0.5.9'}\n"
            "env: {A: {set: a}}\npatches: {capture: guard}\n"
        )
        show = ("policies", "show", str(policy), "--image")
        _, out, _ = call_main(capsys, *show, MI35X_IMAGE)
        head, _, rest = out.partition("\n  TORCHINDUCTOR_")
        assert rest
        golden(head)
        found = json.loads(call_main(capsys, *show, MI35X_IMAGE.replace("5.8", "5.9"), "--json")[1])
        assert found["layers"] == ["safe", "new"]
        assert found["facts"]["framework_version"] == "0.5.9"
        assert found["env"][-1][:3] == ["A", "set", "a"]
        _, out, _ = call_main(capsys, *show, MI35X_IMAGE.replace("5.8", "5.9"))
        assert "  capture: use guard  [new]" in out.splitlines()

    def test_show_nothing(self, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
        status, out, err = call_main(capsys, "policies", "show", "saef")
        assert (status, out) == (1, "")
        golden(err)

    @pytest.mark.parametrize("text", ["image", "image=a:b", "gpus=4"])
    def test_show_for_what_is_no_fact(
        self, capsys: pytest.CaptureFixture[str], text: str, golden: Golden
    ) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["policies", "show", "--assume", text])
        golden(capsys.readouterr().err.splitlines()[-1])


class TestExplain:
    def explain(self, python: Interpreter, *arguments: str, **env: str) -> tuple[int, str, str]:
        command = ("-m", "rocm_autopatch", "explain", "--no-torch", *arguments)
        env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
        done = python.run(*command, env=env, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_the_stack(self, python311: Interpreter, golden: Golden) -> None:
        env = {"ROCM_AUTOPATCH_POLICY": "performance"}
        status, out, _ = self.explain(python311, "coordinate_descent_tuning", "--json", **env)
        (row,) = json.loads(out)
        assert status == 0
        assert row["name"] == "torch._inductor.config.coordinate_descent_tuning"
        assert [(said["layer"], said["value"]) for said in row["layers"]] == [
            ("safe", False),
            ("performance", False),
            ("performance", True),
        ]
        assert [bool(said["lacks"]) for said in row["layers"]] == [False, False, True]
        lines = self.explain(python311, "coordinate_descent_tuning", **env)[1].splitlines()
        assert "policies/safe.yaml:" in next(s for s in lines if s.startswith("  safe: "))
        # Without the whys, and without the places, which change with the policies.
        golden("\n".join(s.partition(", /")[0] for s in lines if not s.startswith(" " * 4)))

    @pytest.mark.parametrize(
        "name", ["TORCHINDUCTOR_MAX_AUTOTUNE", "reduce-overhead", "compile_modes"]
    )
    def test_a_variable_a_mode_and_a_patch(
        self, python311: Interpreter, name: str, golden: Golden
    ) -> None:
        status, out, _ = self.explain(python311, name, TORCHINDUCTOR_MAX_AUTOTUNE="1")
        assert status == 0
        golden(out.splitlines()[0])

    def test_what_is_not_for_this_place_loses(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        (tmp_path / "base.yaml").write_text("version: 1\nenv: {A: {set: a}}\n")
        (tmp_path / "old.yaml").write_text(
            "version: 1\nextends: base.yaml\nwhen: {torch: '<2.5'}\nenv: {A: {set: b}}\n"
        )
        top = tmp_path / "top.yaml"
        top.write_text("version: 1\nextends: old.yaml\nenv: {A: {set: c, until: '2.6'}}\n")
        env = {"ROCM_AUTOPATCH_POLICY": str(top)}
        golden(self.explain(python311, "A", **env)[1])

    def test_what_the_image_sets(self, python311: Interpreter, golden: Golden) -> None:
        name = "TORCHINDUCTOR_MAX_AUTOTUNE"
        _, out, _ = self.explain(python311, name, "--image", MI35X_IMAGE)
        golden(next(line for line in out.splitlines() if "images.yaml" in line))
        # The others are of the keys whose default it gives.
        row, *others = json.loads(
            self.explain(python311, name, "--image", MI35X_IMAGE, "--json")[1]
        )
        assert (row["name"], {one["variable"] for one in others}) == (name, {name})
        assert row["images"][0]["why"].startswith("Since sgl-project/sglang#1939, merged 2024-11")

    def test_assumed_image(self, python311: Interpreter) -> None:
        status, out, _ = self.explain(
            python311,
            "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
            "--image",
            MI35X_IMAGE,
            "--json",
        )
        assert status == 0
        assert json.loads(out)[0]["layers"][0]["layer"] == "safe"

    def test_unknown_name(self, python311: Interpreter, golden: Golden) -> None:
        status, out, err = self.explain(python311, "cudagraphz")
        assert (status, out) == (1, "")
        golden(err)

    def test_nothing_active(self, python311: Interpreter, golden: Golden) -> None:
        status, out, err = self.explain(python311, "freezing", ROCM_AUTOPATCH="off")
        assert (status, out) == (1, "")
        golden(err)


class TestWhatIsMissing:
    """An overlay installs the wheel alone, and a package may be there and broken."""

    BREAKS = ("raise ModuleNotFoundError('gone')", "raise RuntimeError('broken')", "1 / 0", "x = (")

    @pytest.mark.parametrize("broken", BREAKS)
    @pytest.mark.parametrize("name", ["yaml", "packaging"])
    def test_report_and_status(
        self, python311: Interpreter, tmp_path: Path, name: str, broken: str, golden: Golden
    ) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(broken + "\n")
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        # An image, so that what is known of it is asked for.
        env["ROCM_AUTOPATCH_ASSUME"] = "framework=sglang,framework_version=0.5.8"
        code = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
        report = json.loads(python311.run("-c", code, env=env).stdout)
        assert report["active"]
        golden("\n".join(report["notes"]))
        done = python311.run(
            *("-m", "rocm_autopatch", "status", "--no-torch", "--json"), env=env, check=False
        )
        assert json.loads(done.stdout)["notes"] == report["notes"]
        assert done.stderr == ""
        # As text, too, and without YAML also without what a table says of torch.
        done = python311.run("-m", "rocm_autopatch", "status", "--no-torch", env=env, check=False)
        assert done.stdout.startswith("safe applies: no image is named\n")
        change = "8 -> 128" if name == "packaging" else "will become 128"
        assert f"recompile_limit: {change}" in done.stdout
        assert done.stderr == ""
        # Others say what is missing.
        for command in (("--help",), ("explain", "freezing"), ("probe",), ("policies",)):
            done = python311.run("-m", "rocm_autopatch", *command, env=env, check=False)
            assert "Traceback" not in done.stderr
            assert done.returncode in (0, 1)

    def test_without_packaging(
        self, bare: Interpreter, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        for package in ("rocm_autopatch", "yaml"):
            shutil.copytree(python311.site_packages / package, tmp_path / package)
        shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", tmp_path)
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        done = bare.run("-m", "rocm_autopatch", "status", "--no-torch", "--json", env=env)
        golden("\n".join(json.loads(done.stdout)["notes"]), "notes")
        done = bare.run("-m", "rocm_autopatch", "explain", "freezing", env=env, check=False)
        golden(done.stderr, "explain")

    @pytest.mark.parametrize("broken", BREAKS)
    def test_pictures_and_pages(
        self, python311: Interpreter, tmp_path: Path, broken: str, golden: Golden
    ) -> None:
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
        golden(done.stderr)
        done = python311.run("-m", "rocm_autopatch", *command, "--", "true", env=env)

    @pytest.mark.parametrize("broken", ["#!/no/such\n", "", "#!/bin/sh\nexit 3\n"])
    def test_tlparse(
        self, python311: Interpreter, tmp_path: Path, broken: str, golden: Golden
    ) -> None:
        program = tmp_path / "bin" / "tlparse"
        program.parent.mkdir()
        program.write_text(broken)
        program.chmod(0o755)
        (tmp_path / "dedicated_log_torch_trace_1.log").write_text("")
        env = {"PATH": f"{program.parent}:/usr/bin:/bin", "ROCM_AUTOPATCH_LOG": "quiet"}
        done = python311.run(
            "-m", "rocm_autopatch", "report", tmp_path, "--tlparse", env=env, check=False
        )
        assert done.returncode == 1
        golden(done.stderr)


def test_the_help_names_what_is_read(python311: Interpreter) -> None:
    text = " ".join(python311.run("-m", "rocm_autopatch", "--help").stdout.split())
    for file in ("/etc/rocm-autopatch", "image", "baseline", "*.yaml", "baked.plan"):
        assert file in text
    assert "torch/version.py" in text
    assert "ROCM_AUTOPATCH_POLICY" in text


def test_a_command_does_not_wait_for_the_others(python311: Interpreter) -> None:
    code = (
        "import sys\nfrom rocm_autopatch.cli import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('rocm_autopatch.cli.tune')])\n"
    )
    assert python311.run("-c", code).stdout.endswith("\n[]\n")
    assert "tune" in python311.run("-m", "rocm_autopatch", "--help").stdout
