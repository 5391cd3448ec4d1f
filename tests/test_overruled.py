"""A variable that a user or an image had set, and that a pin of a config key overrules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Interpreter
from tests.messages import Golden

MAX, GEMM = "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM"
BACKENDS, GRAPHS = f"{GEMM}_BACKENDS", "TORCHINDUCTOR_CUDAGRAPHS"


def line(python: Interpreter, **env: str) -> str:
    """What a start says of the policy; "" if it says nothing."""
    said = python.run("-c", "pass", env=env).stderr.splitlines()
    return "".join(one for one in said if " applies " in one)


def test_it_is_named(python: Interpreter, golden: Golden) -> None:
    """The three variables of pytorch#154947: one is unset, one is kept, one is overruled."""
    done = python.run("-c", "pass", env={MAX: "1", GEMM: "1", BACKENDS: "TRITON"})
    golden(done.stderr)


@pytest.mark.parametrize(
    ("name", "value", "overruled"),
    [
        (BACKENDS, "TRITON", True),
        (BACKENDS, "ATEN", False),
        (GRAPHS, "1", True),
        (GRAPHS, "0", False),
        # Torch reads it as off.
        (GRAPHS, "true", False),
        # A default yields to it.
        ("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING", "1", False),
    ],
)
def test_only_where_its_value_is_another_one(
    python311: Interpreter, name: str, value: str, overruled: bool
) -> None:
    assert (f"overruled {name}," in line(python311, **{name: value})) is overruled


def test_what_a_user_keeps_is_not_overruled(python311: Interpreter) -> None:
    env = {BACKENDS: "TRITON", "ROCM_AUTOPATCH_KEEP": "max_autotune_gemm_backends"}
    assert line(python311, **env) == ""


def test_pins_of_a_user_s_own(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nconfig:\n  torch._inductor.config:\n"
        "    shape_padding: {pin: true}\n"
        "    compile_threads: {set: 4}\n"
        "    triton.unique_kernel_names: [{pin: true}, {default: true, since: '2.6'}]\n"
    )
    env = {
        "TORCHINDUCTOR_SHAPE_PADDING": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "8",
        "TORCHINDUCTOR_UNIQUE_KERNEL_NAMES": "0",
        "ROCM_AUTOPATCH_POLICY": str(policy),
    }
    said = line(python311, **env)
    assert "overruled TORCHINDUCTOR_SHAPE_PADDING, overruled TORCHINDUCTOR_COMPILE_THREADS" in said
    assert "UNIQUE_KERNEL_NAMES" not in said
    assert "COMPILE_THREADS" not in line(python311, **{**env, "TORCHINDUCTOR_COMPILE_THREADS": "4"})


def test_baked(python311: Interpreter) -> None:
    python311.run("-m", "rocm_autopatch", "bake", "--image", "rocm/pytorch:latest")
    try:
        assert f"overruled {BACKENDS}," in line(python311, **{BACKENDS: "TRITON"})
    finally:
        (python311.site_packages / "rocm_autopatch" / "baked.plan").unlink()


def test_explain_goes_on_to_the_key(python311: Interpreter, golden: Golden) -> None:
    explain = ("-m", "rocm_autopatch", "explain")
    for name in (BACKENDS, "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING"):
        done = python311.run(*explain, name, "--no-torch", env={name: "TRITON"})
        golden(done.stdout, name)
    done = python311.run(*explain, MAX, "--no-torch", "--json")
    first, second = json.loads(done.stdout)
    assert (first["name"], first["variable"]) == (MAX, "")
    assert second["name"] == "torch._inductor.config.max_autotune"
    assert second["variable"] == MAX
    other = "TORCHINDUCTOR_SHAPE_PADDING"
    done = python311.run(*explain, other, "--no-torch", check=False)
    assert done.returncode == 1
    golden(done.stderr, other)
