"""rocm-autopatch status: what a program started here meets, from outside and from inside."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.startup import cpus
from tests.conftest import HIP, MAX, Interpreter, label_torch, make_venv, pip
from tests.messages import Golden
from tests.names import MI35X_IMAGE
from tests.programs import program_file

KEYS = {
    *(
        "active",
        "observe",
        "reason",
        "facts",
        "policy",
        "baked",
        "baseline",
        "sites",
        "evidence",
        "policies",
        "digest",
        "digest_parts",
        "node",
        "keep",
        "given",
        "caches",
        "env",
        "config",
    ),
    *(
        "compile_modes",
        "capture",
        "watchdog",
        "recompiles",
        "ranks",
        "graph_check",
        "patches",
        "graphs",
        "known_issues",
        "contradictions",
        "notes",
        "errors",
    ),
}


def status(python: Interpreter, *flags: str, **env: str) -> dict[str, Any]:
    done = python.run("-m", "rocm_autopatch", "status", "--json", *flags, env=env, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == bool(report["errors"])
    return report


@pytest.mark.parametrize(
    ("rocm", "sources"),
    [
        ("6.4.2", set()),
        ("7.0.2", {"pytorch/pytorch#197377, pytorch/pytorch#197017"}),
        ("7.1.1", set()),
        ("7.2.0", {"sgl-project/sglang#34452", "pytorch/pytorch#177873"}),
        ("7.2.1", {"sgl-project/sglang#34452"}),
        ("7.2.4", {"sgl-project/sglang#34452", "ROCm/rocm-systems#6888"}),
    ],
)
def test_defects_of_the_runtime_alone(python311: Interpreter, rocm: str, sources: set[str]) -> None:
    """Whatever the image, framework and GPU are, the version of ROCm says what is known."""
    report = status(python311, "--no-torch", ROCM_AUTOPATCH_ASSUME=f"rocm={rocm}")
    known = {issue["source"] for issue in report["known_issues"] if "ROCm" in issue["record"]}
    assert known == sources


def test_what_waits_and_will_not_be_changed(python311: Interpreter) -> None:
    key = "torch._inductor.config.max_autotune_gemm_backends"
    env = {"ROCM_AUTOPATCH_KEEP": "max_autotune_gemm_backends"}
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "3"
    rows = {one["name"]: one for one in status(python311, "--no-torch", **env)["config"]}
    assert (rows[key]["status"], rows[key]["reason"]) == ("waiting", "ROCM_AUTOPATCH_KEEP")
    threads = rows["torch._inductor.config.compile_threads"]
    assert threads["reason"] == "TORCHINDUCTOR_COMPILE_THREADS is set in the environment"
    whole = ("-m", "rocm_autopatch", "status", "--no-torch", "--all")
    said = " ".join(python311.run(*whole, env=env).stdout.split())
    assert f"{key}: will stay as it is" in said
    rows = {one["name"]: one for one in status(python311, "--no-torch")["config"]}
    assert rows["torch._inductor.config.compile_threads"]["wanted"] == cpus.cpu_share()


@pytest.mark.parametrize(
    ("rocm", "torch", "there"),
    [("7.2.0", "2.9.1", True), ("7.2.1", "2.9.1", False), ("7.2.0", "2.12.0", False)],
)
def test_the_watchdog_of_a_process_group(
    python311: Interpreter, tmp_path: Path, rocm: str, torch: str, there: bool
) -> None:
    stand_in = label_torch(tmp_path, f"{torch}+rocm", HIP)
    assumed = {"ROCM_AUTOPATCH_ASSUME": f"rocm={rocm}", "PYTHONPATH": str(stand_in)}
    known = status(python311, "--no-torch", **assumed)["known_issues"]
    assert any("sgl-project/sglang#24151" in issue["source"] for issue in known) is there


def test_a_gpu_that_claims_to_be_another(python311: Interpreter) -> None:
    def notes(value: str, gfx: str) -> list[str]:
        assumed = {"ROCM_AUTOPATCH_ASSUME": f"gfx={gfx}"} if gfx else {}
        said = status(python311, "--no-torch", HSA_OVERRIDE_GFX_VERSION=value, **assumed)["notes"]
        return [note for note in said if "HSA_OVERRIDE" in note]

    said = "HSA_OVERRIDE_GFX_VERSION=11.0.0: the GPU is gfx1103, and claims to be gfx1100"
    assert notes("11.0.0", "gfx1103") == [said]
    assert notes("11.0.3", "gfx1103") == []
    assert notes("11.0.0", "") == []
    (said,) = notes("gfx1100", "gfx1103")
    assert "ROCm finds no GPU" in said


def test_with_torch(torch_python: Interpreter) -> None:
    report = status(torch_python, ROCM_AUTOPATCH_IMAGE=MI35X_IMAGE, **{MAX: "1"})
    assert set(report) == KEYS
    assert report["active"] is True
    assert report["policies"] == ["safe"]
    issues = {issue["text"]: issue for issue in report["known_issues"]}
    assert issues["FP8 flash attention broken"]["record"] == MI35X_IMAGE
    assert issues["hipBLASLt solver bug"]["mitigation"] == "no-hipblaslt"
    assert "sglang" in {issue["record"] for issue in report["known_issues"]}
    assert report["facts"]["accelerator"]["value"] == "rocm"
    assert report["facts"]["gfx"] == {
        "value": "gfx950",
        "source": "image, by ROCM_AUTOPATCH_IMAGE",
        "kind": "tag",
    }
    assert report["facts"]["framework_version"]["value"] == "0.5.8"
    assert report["facts"]["torch"]["value"] == "2.13.0+rocm7.0"
    rows = {row["name"]: row for row in report["env"] + report["config"] + report["compile_modes"]}
    # Before is before: this command's own interpreter had lost the variable already.
    assert (rows[MAX]["before"], rows[MAX]["after"]) == ("1", None)
    trees = rows["torch._inductor.config.triton.cudagraph_trees"]
    assert (trees["before"], trees["after"], trees["strength"]) == (True, False, "pin")
    limit = rows["torch._dynamo.config.recompile_limit"]
    assert (limit["before"], limit["after"], limit["strength"]) == (8, 128, "default")
    assert rows["reduce-overhead"]["after"] == "default"
    assert {row["status"] for row in report["patches"]} == {"applied"}
    assert report["errors"] == []


def test_text(torch_python: Interpreter, golden: Golden) -> None:
    env = {"ROCM_AUTOPATCH_IMAGE": MI35X_IMAGE, MAX: "1"}
    done = torch_python.run("-m", "rocm_autopatch", "status", "--all", env=env)
    lines = done.stdout.splitlines()
    words = (
        *("safe applies: ", f"{MAX}:", "torch._dynamo.config.recompile_limit:"),
        *("reduce-overhead:", "FP8 flash attention broken"),
    )
    chosen = [line for line in lines if line.strip().startswith(words)]
    assert len(chosen) == len(words)
    golden("\n".join(chosen))
    at = str(torch_python.path.parents[1])  # a checkout's own path is of any length
    assert max(len(line.replace(at, "")) for line in lines) <= 100


def test_no_torch_leaves_it_out(torch_python: Interpreter) -> None:
    report = status(torch_python, "--no-torch")
    assert {row["status"] for row in report["patches"]} == {"waiting"}
    assert {row["status"] for row in report["config"]} == {"waiting"}


def test_assume(python311: Interpreter) -> None:
    report = status(python311, "--no-torch", "--image", "a:b", "--assume", "gfx=gfx942")
    assert report["facts"]["image"] == {
        "value": "a:b",
        "source": "ROCM_AUTOPATCH_ASSUME",
        "kind": "assumption",
    }
    assert report["facts"]["gfx"]["value"] == "gfx942"


def test_off(python311: Interpreter) -> None:
    report = status(python311, ROCM_AUTOPATCH="off")
    assert (report["active"], report["reason"]) == (False, "ROCM_AUTOPATCH=off")
    assert set(report) == KEYS


def test_keep(python311: Interpreter, golden: Golden) -> None:
    report = status(python311, "--no-torch", ROCM_AUTOPATCH_KEEP=f"{MAX},absent", **{MAX: "1"})
    assert report["keep"] == [MAX, "absent"]
    (note,) = report["notes"]
    golden(note)


def test_a_bad_policy_is_an_error_with_its_place(
    python311: Interpreter, tmp_path: Path, golden: Golden
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("version: 1\nenv: {A: 1}\n")
    report = status(python311, ROCM_AUTOPATCH_POLICY=str(policy))
    assert report["active"] is False
    (error,) = report["errors"]
    golden(error, "error")
    golden(report["reason"], "reason")


def test_torch_that_can_not_be_imported(python311: Interpreter, tmp_path: Path) -> None:
    label_torch(tmp_path, "2.13.0+rocm7.0", HIP)
    (tmp_path / "torch" / "__init__.py").write_text(
        "print('noise')\nraise OSError('no libtorch')\n"
    )
    report = status(python311, PYTHONPATH=str(tmp_path))
    assert report["errors"][0] == "import torch: OSError: no libtorch"


def test_where_the_hook_does_not_run(wheel: Path, tmp_path: Path, golden: Golden) -> None:
    # pip --target is not a site directory: its .pth files are not read.
    made = make_venv(tmp_path / "venv")
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    target = tmp_path / "target"
    pip(made, "install", "--target", target, wheel)
    report = status(made, PYTHONPATH=str(target))
    assert report["active"] is False
    (error,) = report["errors"]
    golden(error)


def test_usage(python311: Interpreter) -> None:
    for arguments in ((), ("stauts",), ("status", "--jsn")):
        done = python311.run("-m", "rocm_autopatch", *arguments, check=False)
        assert done.returncode == 2
        assert "usage: rocm-autopatch" in done.stderr


def test_as_installed(python311: Interpreter) -> None:
    script = python311.path.parent / "rocm-autopatch"
    done = subprocess.run([script, "status", "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout)["active"] is True


@pytest.mark.parametrize("target", ["/dev/full"])
def test_a_full_stdout(python311: Interpreter, target: str) -> None:
    with open(target, "w") as stream:
        done = python311.run("-m", "rocm_autopatch", "status", stdout=stream, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_plan_that_is_damaged(python311: Interpreter) -> None:
    """No start looks at all parts before torch is imported, and a report never raises."""
    found = json.loads(python311.run(program_file("status/damaged_plan.py")).stdout)
    assert [one for one in found if one["raised"]] == []
    said = {one["part"]: one["errors"] for one in found if one["damage"] == "None"}
    for part in ("patches", "layers"):
        (error,) = said[part]
        assert error.startswith("the plan is damaged: TypeError: ")
        assert error.endswith("; install rocm_autopatch again")


def test_ranks_without_a_policy_for_them(python311: Interpreter, tmp_path: Path) -> None:
    note = (
        "ROCM_AUTOPATCH_RANKS has no effect: no policy here has ranks (rocm-autopatch help patches)"
    )
    env = {"ROCM_AUTOPATCH_RANKS": "abort"}
    assert note not in status(python311, "--no-torch", **env)["notes"]
    policy = tmp_path / "job.yaml"
    policy.write_text("version: 1\nname: job\nextends: []\n")
    env["ROCM_AUTOPATCH_POLICY"] = str(policy)
    assert note in status(python311, "--no-torch", **env)["notes"]
