"""``cache fill`` with AMD's compilers: what it leaves is what a start with this GPU looks for."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import compiling_gpu
from rocm_autopatch.caches import fill, fill_targets, places
from tests import test_amd
from tests.conftest import ROOT, WORK, Interpreter
from tests.programs import program_file
from tests.running import QUIET, last_said
from tests.test_fill import ANSWERS, SHOW, at_home, on_machine, place_in

amd_python = test_amd.amd_python

TWO_GRAPHS = program_file("filled_caches/two_graphs.py")
CONFIGS = program_file("filled_caches/configs.py")


@pytest.fixture(autouse=True)
def one_stand_in(tmp_path: Path) -> None:
    """Its g++ runs once for all tests."""
    share_stand_in(tmp_path)


def share_stand_in(home: Path) -> None:
    shared = WORK.absolute() / "stand-in"
    shared.mkdir(exist_ok=True)
    (home / ".cache").mkdir(parents=True)
    (home / ".cache/rocm-autopatch-stand-in").symlink_to(shared)


def filled(
    python: Interpreter,
    home: Path,
    program: Path,
    *options: str,
    target: str = "mi300x",
    status: int = 0,
    **env: str,
) -> tuple[str, str]:
    """What the command printed, and what was said of it in one line."""
    given = {
        **at_home(home),
        "PATH": os.environ["PATH"],
        "ROCM_AUTOPATCH_LOG": "quiet",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        **env,
    }
    words = ("cache", "fill", "--for", target, *options, "--", str(python.path), str(program))
    done = python.run("-m", "rocm_autopatch", *words, env=given, check=False)
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout, " ".join(done.stderr.split())


def row_of(place: Path) -> dict[str, Any]:
    return places.warm_runs(place)[-1]


def test_a_second_one_finds_all(amd_python: Interpreter, tmp_path: Path) -> None:
    """And a start on the real GPU uses the same place."""
    out, said = filled(amd_python, tmp_path, TWO_GRAPHS)
    assert out == "(64, 1024)\n"
    assert said.startswith("rocm-autopatch cache fill: THERE IS NO GPU. COMMAND compiles for AMD")
    assert said.count("RESULTS ARE WRONG") == 0
    place = place_in(tmp_path)
    first = row_of(place)
    assert first["graphs"] == first["fx_graph_cache"]["miss"] == 2
    parts = fill.compiled_parts(place)
    assert len(parts.graphs) == 2
    assert len(parts.kernels) >= 2
    assert f"2 graphs and {len(parts.kernels)} kernels added for AMD Instinct MI300X" in said
    assert "Values of the GPU's memory were read 1 time:" in said

    _, said = filled(amd_python, tmp_path, TWO_GRAPHS)
    second = row_of(place)
    assert second["fx_graph_cache"] == {"hit": 2, "miss": 0, "bypass": 0}
    assert "0 graphs and 0 kernels added" in said
    assert "(graphs that were there: 2)" in said
    assert fill.compiled_parts(place) == parts

    # A program as it is started there, where a miss is an error; the kernels alone are not run.
    stand_in = compiling_gpu.prepare_stand_in(
        amd_python.path, compiling_gpu.GPUS["mi300x"], WORK.absolute() / "stand-in"
    )
    there = on_machine(
        *("mi300x", tmp_path, amd_python, TWO_GRAPHS),
        env={**stand_in, "ROCM_AUTOPATCH_CACHE": "require", **QUIET},
    )
    assert (there.returncode, there.stdout) == (0, "(64, 1024)\n"), there.stderr[-3000:]
    assert fill.compiled_parts(place) == parts

    there = on_machine("mi300x", tmp_path, amd_python, "-c", SHOW, env=QUIET)
    assert json.loads(there.stdout)[0] == str(place)
    other = on_machine("mi308x", tmp_path, amd_python, "-c", SHOW, env=QUIET)
    assert json.loads(other.stdout)[0] != str(place)


def test_configs_of_a_place_that_has_moved(amd_python: Interpreter, tmp_path: Path) -> None:
    """A layer that was filled in a home where this user may not go: torch keeps paths into it."""
    built, home, layer = (tmp_path / name for name in ("built", "home", "layer"))
    share_stand_in(built)
    filled(amd_python, built, CONFIGS)
    pack = ("pack", str(tmp_path / "caches.tar.gz"), "--for", "mi300x")
    seed = ("seed", pack[1], "--into", str(layer))
    for words in (pack, seed):
        amd_python.run("-m", "rocm_autopatch", "cache", *words, env={**at_home(built), **QUIET})
    shutil.rmtree(built)
    built.touch()
    home.mkdir()
    stand_in = compiling_gpu.prepare_stand_in(
        amd_python.path, compiling_gpu.GPUS["mi300x"], WORK.absolute() / "stand-in"
    )
    done = on_machine(
        *("mi300x", home, amd_python, CONFIGS, "keep"),
        env={**stand_in, "ROCM_AUTOPATCH_CACHE": "require", **QUIET},
        layer=layer,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kept = [*(place_in(home) / "inductor").rglob("*.best_config")]
    assert len(kept) == int(done.stdout) > 0


def test_the_module_by_which_triton_launches(amd_python: Interpreter, tmp_path: Path) -> None:
    """A start would compile it, for about a second. Triton 3.7 has one for all kernels."""
    library = tmp_path / "libamdhip64.so"
    library.touch()
    found = []
    for _ in range(2):
        filled(amd_python, tmp_path, TWO_GRAPHS, TRITON_LIBHIP_PATH=str(library))
        (module,) = place_in(tmp_path).rglob("triton/**/*.so")
        found.append((module, module.stat().st_mtime_ns))
    assert module.name.startswith("hip_utils.")
    assert found[1] == found[0]


def test_another_gpu_by_a_file(amd_python: Interpreter, tmp_path: Path) -> None:
    """All code is for its architecture and its compute units."""
    half = replace(compiling_gpu.GPUS["mi355x"], processors=128)
    target = fill_targets.make_target(half, 128, 30112)
    file = tmp_path / "half.json"
    file.write_text(target.as_json())
    filled(amd_python, tmp_path, TWO_GRAPHS, target=str(file))
    place = place_in(tmp_path)
    assert "_gfx950-128_" in place.name
    assert places.filled_for(place)["device_id"] == 30112
    codes = [path.read_text() for path in place.rglob("*.amdgcn")]
    assert codes
    assert all('.amdgcn_target "amdgcn-amd-amdhsa--gfx950' in code for code in codes)
    texts = [path.read_text() for path in (place / "inductor").rglob("*.py")]
    assert any("multi_processor_count=128" in text for text in texts)


def compiled_for(python: Interpreter, home: Path, target: fill_targets.FillTarget) -> Any:
    """Keys of all that is compiled for a GPU, and what torch wrote of the GPU into its code."""
    share_stand_in(home)
    file = home / "facts.json"
    file.write_text(target.as_json())
    filled(python, home, TWO_GRAPHS, target=str(file))
    place = place_in(home)
    texts = [path.read_text() for path in (place / "inductor").rglob("*.py")]
    said = {one for text in texts for one in re.findall(r"DeviceProperties\([^)]*\)", text)}
    assert said
    return fill.compiled_parts(place), said


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one['known']}-{one['hip']}")
def test_known_gpus_have_the_keys_of_drivers_answers(
    answer: dict[str, Any], amd_python: Interpreter, tmp_path: Path
) -> None:
    """Also where a virtual function has another name and less memory than the card."""
    known = fill_targets.target_named(answer["known"], answer["hip"])
    told = fill_targets.make_target(replace(known.facts, **answer["facts"]))
    keys, said = compiled_for(amd_python, tmp_path / "known", known)
    assert (keys, said) == compiled_for(amd_python, tmp_path / "told", told)
    assert all(f"regs_per_multiprocessor={answer['facts']['registers']}" in one for one in said)


def test_each_change_is_compiled(amd_python: Interpreter, tmp_path: Path) -> None:
    """No code is taken for a function, an input or a setting that is another one."""
    program = program_file("filled_caches/mutations.py")
    out, _ = filled(amd_python, tmp_path, program, TMPDIR=str(tmp_path))
    found = json.loads(out)
    again = {name: found.pop(name) for name in [*found] if name.endswith(" again")}
    # torch keeps no graph that has torch.cond.
    assert {name for name, (hits, _, _) in again.items() if not hits} == {"branches again"}
    assert len(found) >= 100
    stale = [
        name
        for name, (hits, misses, bypasses) in found.items()
        if not misses + bypasses or (hits and not name.startswith("a half"))
    ]
    assert stale == []


def test_a_script_fills_what_zeros_end(amd_python: Interpreter, tmp_path: Path) -> None:
    """The example of docs/caches.md: all that the program would compile with real numbers."""
    program, script = tmp_path / "train.py", tmp_path / "fill_training_step.py"
    text = program_file("filled_caches/train.py").read_text()
    look = "if not loss.item() > 0:"
    program.write_text(text)
    _, said = filled(amd_python, tmp_path, program, status=1)
    assert "the loss is 0.0" in said
    shutil.copy(ROOT / "docs/examples" / script.name, script)
    _, said = filled(amd_python, tmp_path, script)
    assert " 0 graphs" not in said
    assert look in text
    program.write_text(text.replace(look, "if loss.item() < 0:"))
    _, said = filled(amd_python, tmp_path, program)
    assert "0 graphs and 0 kernels added" in said


def test_limit_of_graphs(amd_python: Interpreter, tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    program.write_text(
        "import torch\n"
        "for n in range(1, 10_000):\n"
        "    torch._dynamo.reset()\n"
        "    torch.compile(lambda x: x.sin() + n)(torch.ones(8, device='cuda'))\n"
    )
    _, said = filled(amd_python, tmp_path, program, "--graphs=2")
    # How many more it compiles until it is ended depends on how busy the machine is.
    assert re.search(r"[1-9]\d* graphs and [1-9]\d* kernels? added for .* by --graphs 2", said)
    assert len(fill.compiled_parts(place_in(tmp_path)).graphs) >= 2


def test_command_that_fails_or_compiles_nothing(amd_python: Interpreter, tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text(TWO_GRAPHS.read_text() + "raise SystemExit(9)\n")
    _, said = filled(amd_python, tmp_path, program, status=9)
    assert "2 graphs and" in said
    assert "COMMAND ended with status 9" in said
    program.write_text("import torch; torch.ones(3, device='cuda')")
    _, said = filled(amd_python, tmp_path, program, status=1)
    assert "COMMAND compiled nothing" in said


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ({"CXX": "/no/such/compiler"}, {}, "C++ compiler"),
        ({}, {"target": "h100"}, "is built for ROCm"),
        ({}, {"target": "mi999"}, "no GPU is known as 'mi999'"),
    ],
)
def test_can_not(
    amd_python: Interpreter,
    tmp_path: Path,
    env: dict[str, str],
    options: dict[str, str],
    said: str,
) -> None:
    if "CXX" in env:
        (tmp_path / ".cache/rocm-autopatch-stand-in").unlink()
    _, found = filled(amd_python, tmp_path, TWO_GRAPHS, status=1, **options, **env)
    assert said in found
    assert not [*tmp_path.rglob("*.hsaco")]


def test_facts_without_a_gpu(amd_python: Interpreter, python311: Interpreter) -> None:
    for python in (amd_python, python311):
        env = {"COMPILING_GPU": "off", "ROCM_AUTOPATCH_LOG": "quiet"}
        done = python.run("-m", "rocm_autopatch", "facts", "--gpu", env=env, check=False)
        assert done.returncode == 1
        assert re.search(r"no GPU|nothing of a GPU", last_said(done.stderr))


def test_facts_of_the_stand_in(amd_python: Interpreter, tmp_path: Path) -> None:
    """What is asked of torch and Triton is what the stand-in was given."""
    file = tmp_path / "facts.json"
    env = {"COMPILING_GPU": "rx9070xt", "COMPILING_GPU_SAID": "1", "ROCM_AUTOPATCH_LOG": "quiet"}
    amd_python.run("-m", "rocm_autopatch", "facts", "--gpu", "--out", file, env=env)
    read = fill_targets.target_named(str(file))
    known = fill_targets.target_named("rx9070xt")
    assert (read.units, read.device) == (known.units, 0)
    for name in ("vendor", "target", "memory", "processors", "wavefront", "lds", "registers"):
        assert getattr(read.facts, name) == getattr(known.facts, name), name
