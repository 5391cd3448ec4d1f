"""On the real torch 2.13.0, with a HIP label: config values, compile modes, workers, laziness.

The label makes every ``torch.version.hip`` branch in Python run; it is no HIP runtime.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import MAX, Interpreter
from tests.messages import Golden
from tests.programs import import_of, program_file

POLICY = """
version: 1
extends: []
config:
  torch._inductor.config:
    max_fusion_size: {default: 100, why: a default}
    benchmark_kernel: {default: true, yields_to: TORCHINDUCTOR_BENCHMARK_KERNEL}
    epilogue_fusion: {set: false, why: a set}
    max_autotune_gemm_backends: {pin: ATEN, why: a pin}
    triton.cudagraphs: {pin: false}
    triton.multi_kernel: {set: 1}
    no_such_key: {pin: 1}
    shape_padding: {pin: 3}
    force_disable_caches: {default: true}
  torch._dynamo.config:
    cache_size_limit: {default: 77}
compile_modes:
  reduce-overhead: default
  max-autotune: {use: max-autotune-no-cudagraphs, why: a mode}
"""


HEAD = import_of(program_file("torch/shown.py")) + "from shown import *\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("torch")
    (place / "policy.yaml").write_text(POLICY)
    return place


@pytest.fixture
def env(place: Path) -> dict[str, str]:
    """The same for all tests, so that their programs begin in the same process."""
    return {
        "ROCM_AUTOPATCH_POLICY": str(place / "policy.yaml"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
        "HOME": str(place),
        "PYTHONHASHSEED": "0",
    }


def shown_by(python: Interpreter, env: dict[str, str], code: str | Path, **more: str) -> Any:
    """What a program prints as JSON with ``show``. A text may use all names of
    programs/torch/shown.py: ``c`` and ``d`` are torch's configs."""
    done = forked.run(python, HEAD, code, env={**env, **more})
    return json.loads(done.stdout.splitlines()[-1])


class TestConfig:
    def test_everybody_reads_the_values(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        read = (
            "read = lambda: [c.max_fusion_size, c.benchmark_kernel, c.epilogue_fusion,"
            " c.max_autotune_gemm_backends, c.triton.multi_kernel, d.cache_size_limit,"
            " d.recompile_limit, c.force_disable_caches,"
            " torch.compiler.config.force_disable_caches]"
        )
        pool = "from concurrent.futures import ThreadPoolExecutor as P; pool = P(1)"
        code = f"{read}\n{pool}\nshow(read(), elsewhere(read), pool.submit(read).result())"
        wanted = [100, True, False, "ATEN", 1, 77, 77, True, True]
        assert shown_by(torch_python, env, code) == [wanted] * 3

    def test_a_program_wins_over_default_and_set(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = """
c.max_fusion_size = 5
c.epilogue_fusion = True
d.cache_size_limit = 9
inside = []
with c.patch(max_fusion_size=6, epilogue_fusion=False):
    inside = [c.max_fusion_size, c.epilogue_fusion]
show(c.max_fusion_size, c.epilogue_fusion, d.recompile_limit, inside)
"""
        assert shown_by(torch_python, env, code) == [5, True, 9, [6, False]]

    def test_a_pin_holds(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = program_file("torch/a_pin_holds.py")
        seen, cudagraphs, backends = shown_by(torch_python, env, code)
        assert seen == [["ATEN", False]] * 9
        assert (cudagraphs, backends) == (False, "ATEN")

    def test_hashes_follow(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        # Inductor's cache keys hash the config. So a changed value has to give another key.
        code = "show(c.get_hash().hex(), c.codegen_config())"
        ours, written = shown_by(torch_python, env, code)
        off, _ = shown_by(torch_python, env, code, ROCM_AUTOPATCH="off")
        assert ours != off
        assert "torch._inductor.config.max_autotune_gemm_backends = 'ATEN'" in written

    def test_the_record(
        self, torch_python: Interpreter, env: dict[str, str], golden: Golden
    ) -> None:
        code = "import rocm_autopatch; show(rocm_autopatch.status())"
        (report,) = shown_by(torch_python, env, code)
        rows = {row["name"].replace("torch._inductor.config.", ""): row for row in report["config"]}
        assert rows["max_fusion_size"] == {
            "name": "torch._inductor.config.max_fusion_size",
            "strength": "default",
            "wanted": 100,
            "yields_to": "",
            "switch": "",
            "layer": "policy",
            "why": "a default",
            "before": 64,
            "after": 100,
            "status": "applied",
            "reason": "",
        }
        assert rows["no_such_key"]["status"] == "skipped"
        golden(rows["no_such_key"]["reason"], "reason")
        assert rows["shape_padding"]["status"] == "failed"
        assert rows["shape_padding"]["after"] is True
        (error,) = report["errors"]
        golden(error, "error")
        assert [row["status"] for row in report["patches"]] == ["applied"] * 3

    def test_keys_without_a_value(
        self, torch_python: Interpreter, env: dict[str, str], tmp_path: Path
    ) -> None:
        """What is None in torch has a declared type, and an annotation is all that tells it."""
        wrong = {
            "torch.compiler.config.job_id": 48213,
            "torch._inductor.config.cpp.simdlen": "256",
            "torch._inductor.config.post_grad_custom_post_pass": "mine",
            "torch._inductor.config.max_fusion_unique_io_buffers": True,
            "torch._inductor.config.triton.cudagraph_capture_sizes": 2,
        }
        right = {
            "torch.compiler.config.pgo_extra_read_key": "team",
            "torch._inductor.config.cpp.march": None,
            "torch._inductor.config.test_configs.max_mm_configs": 3,
            "torch._inductor.config.combo_kernel_peak_memory_increase_gb": 1,
        }
        modules = ("torch.compiler.config", "torch._inductor.config")
        policy = tmp_path / "none.yaml"
        config = {
            module: {
                name[len(module) + 1 :]: {"default": value}
                for name, value in {**wrong, **right}.items()
                if name.startswith(module)
            }
            for module in modules
        }
        policy.write_text(json.dumps({"version": 1, "extends": [], "config": config}))
        code = "import rocm_autopatch; show(rocm_autopatch.status()['config'])"
        (rows,) = shown_by(torch_python, env, code, ROCM_AUTOPATCH_POLICY=str(policy))
        said = {row["name"]: (row["status"], row["reason"]) for row in rows}
        assert {name: said[name][0] for name in right} == dict.fromkeys(right, "applied")
        assert {name: said[name][0] for name in wrong} == dict.fromkeys(wrong, "failed")
        assert said["torch.compiler.config.job_id"][1].endswith("this key takes str")

    def test_a_failure_is_said_once(
        self, torch_python: Interpreter, env: dict[str, str], golden: Golden
    ) -> None:
        code = (
            "import torch._inductor.config, subprocess, sys;"
            "subprocess.run([sys.executable, '-c', 'import torch._inductor.config'])"
        )
        lines = torch_python.run("-c", code, env=env).stderr.splitlines()
        assert len(lines) == 2
        assert "6 config values" in lines[0]
        golden(lines[1])

    def test_keep(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = """
import rocm_autopatch
rows = {row["name"]: row["status"] for row in rocm_autopatch.status()["config"]}
show(c.max_fusion_size, c.triton.cudagraph_trees, d.recompile_limit, sorted(
    name for name in rows if rows[name] == "kept"))
"""
        keep = "max_fusion_size,recompile_limit"
        assert shown_by(torch_python, env, code, ROCM_AUTOPATCH_KEEP=keep) == [
            64,
            True,
            8,
            ["torch._dynamo.config.recompile_limit", "torch._inductor.config.max_fusion_size"],
        ]
        assert shown_by(torch_python, env, code, ROCM_AUTOPATCH_KEEP="config")[:3] == [64, True, 8]

    def test_a_default_yields_to_its_variable(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = "show(c.benchmark_kernel)"
        assert shown_by(torch_python, env, code, TORCHINDUCTOR_BENCHMARK_KERNEL="0") == [False]
        keep = {"ROCM_AUTOPATCH_KEEP": MAX, MAX: "1"}
        del env["ROCM_AUTOPATCH_POLICY"]
        assert shown_by(torch_python, env, "show(c.max_autotune)", **keep) == [True]
        assert shown_by(torch_python, env, "show(c.max_autotune)", **{MAX: "1"}) == [False]

    def test_switches(self, torch_python: Interpreter, env: dict[str, str], golden: Golden) -> None:
        code = """
import rocm_autopatch
show(c.freezing, c.coordinate_descent_tuning, c.aggressive_fusion, c.group_fusion,
     c.benchmark_kernel, c.max_fusion_size, rocm_autopatch.status()["errors"])
"""
        env["ROCM_AUTOPATCH_POLICY"] = "performance"
        env["PYTHONWARNINGS"] = "ignore"
        *values, errors = shown_by(torch_python, env, code)
        assert (values, errors) == ([False, False, False, True, False, 64], [])
        switched = {
            "INDUCTOR_FREEZING": "1",
            "INDUCTOR_COORD_DESCENT": "true",
            "INDUCTOR_AGGRESSIVE_FUSION": "1",
            "INDUCTOR_GROUP_FUSION": "off",
            "INDUCTOR_BENCHMARK_KERNEL": "True",
            "INDUCTOR_MAX_FUSION_SIZE": "96",
        }
        *values, errors = shown_by(torch_python, env, code, **switched)
        assert values == [True, True, True, False, True, 96]
        (error,) = errors
        golden(error, "not a boolean")
        *values, errors = shown_by(torch_python, env, code, INDUCTOR_MAX_FUSION_SIZE="many")
        assert values[-1] == 64
        (error,) = errors
        golden(error, "not a number")

    def test_observe(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = """
import rocm_autopatch
report = rocm_autopatch.status()
show(c.max_fusion_size, c.max_autotune_gemm_backends, sys.meta_path[0].__class__.__name__,
     torch._TorchCompileInductorWrapper("reduce-overhead", None, None).config,
     {row["status"] for row in report["config"]} == {"observed", "skipped", "failed"},
     [row["after"] for row in report["compile_modes"]])
"""
        *values, modes = shown_by(torch_python, env, code, ROCM_AUTOPATCH="observe")
        plain = [64, "ATEN,TRITON,CPP"]
        assert values[:2] == plain
        assert values[3:] == [{"triton.cudagraphs": True}, True]
        assert modes == ["reduce-overhead", "max-autotune"]


ROUTES = {
    "called": "torch.compile(f, mode=MODE)(x)",
    "keywords": "torch.compile(model=f, mode=MODE, backend='inductor', fullgraph=True)(x)",
    "decorator": "torch.compile(mode=MODE)(f)(x)",
    "taken from torch before": "early(f, mode=MODE)(x)",
    "Module.compile": "m = Module(); m.compile(mode=MODE); m(x)",
    "a module": "torch.compile(Module(), mode=MODE, dynamic=False)(x)",
}


class TestCompileModes:
    def test_every_route(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = "from recorder import *\n"
        modes = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "default")
        for route in ROUTES.values():
            for mode in modes:
                code += f"torch._dynamo.reset()\n{route.replace('MODE', repr(mode))}\n"
        (seen,) = shown_by(torch_python, env, code + "show(patches)")
        tuned = ["coordinate_descent_tuning", "max_autotune"]
        for number, route in enumerate(ROUTES):
            assert seen[number * 4 : number * 4 + 4] == [[], tuned, tuned, []], route

    def test_every_other_call_is_untouched(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = program_file("torch/other_calls.py")
        (ours,) = shown_by(torch_python, env, code)
        (without,) = shown_by(torch_python, env, code, ROCM_AUTOPATCH="off")
        assert ours == without
        assert len(ours) == 17
        assert "either mode or options" in ours[1].lower()

    def test_uses_are_counted(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = """
torch.compile(abs, mode="reduce-overhead")
import rocm_autopatch
rows = rocm_autopatch.status()["compile_modes"]
show([(row["name"], row["before"], row["after"], row["uses"]) for row in rows])
"""
        assert shown_by(torch_python, env, code) == [
            [
                ["reduce-overhead", "reduce-overhead", "default", 1],
                ["max-autotune", "max-autotune", "max-autotune-no-cudagraphs", 0],
            ]
        ]

    def test_keep(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = "show(torch._TorchCompileInductorWrapper('reduce-overhead', None, None).config)"
        # The policy pins what a mode that is kept asks for.
        for keep, captures in (
            ("reduce-overhead", False),
            ("reduce-overhead,cudagraphs", True),
            ("compile_modes", True),
        ):
            seen = shown_by(torch_python, env, code, ROCM_AUTOPATCH_KEEP=keep)
            assert seen == [{"triton.cudagraphs": captures}]
        assert shown_by(torch_python, env, code) == [{}]


ANSWERS = """
import torch._inductor as inductor
def asked(mode):
    wrapper = torch._TorchCompileInductorWrapper(mode, None, None)
    used = wrapper.get_compiler_config()
    return [inductor.list_mode_options(mode), inductor.list_mode_options()[mode], wrapper.config,
            {name: used[name] for name in SAID[mode]}]
SAID = {mode: list(options) for mode, options in plain.items()}
"""
# What torch itself answers, taken where we are off.
PLAIN = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
    "max-autotune": {
        "max_autotune": True,
        "triton.cudagraphs": True,
        "coordinate_descent_tuning": True,
    },
}


class TestWhatAModeMeans:
    """What programs are told of a mode, by each of the ways in which they ask."""

    def answers(
        self, python: Interpreter, env: dict[str, str], *modes: str, first: str = "", **more: str
    ) -> list[Any]:
        code = f"plain = {PLAIN!r}\n{first}{ANSWERS}show(*[asked(mode) for mode in {modes!r}])"
        found: list[Any] = shown_by(python, env, code, **more)
        return found

    def test_without_us(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        seen = self.answers(torch_python, env, *PLAIN, ROCM_AUTOPATCH="off")
        assert seen == [[options] * 4 for options in PLAIN.values()]

    def test_the_table(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        tuned = PLAIN["max-autotune-no-cudagraphs"]
        seen = self.answers(torch_python, env, *PLAIN)
        assert [said[:3] for said in seen] == [[{}] * 3, [{}] * 3, [tuned] * 3, [tuned] * 3]
        assert [said[3].get("triton.cudagraphs") for said in seen] == [None, False, None, False]

    def test_a_question_is_no_refused_write(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = """
import rocm_autopatch
torch._inductor.list_mode_options()
torch._inductor.list_mode_options("reduce-overhead")
def refused():
    rows = rocm_autopatch.status()["config"]
    return [writer for row in rows for writer in row.get("refused", [])]
asked = refused()
torch.compile(abs, mode="reduce-overhead")
show(asked, [(w["value"], w["file"], w["count"]) for w in refused()])
"""
        asked, compiled = shown_by(torch_python, env, code, ROCM_AUTOPATCH_KEEP="reduce-overhead")
        assert asked == []
        assert compiled == [["True", "<string>", 1]]

    def test_inductor_that_was_imported_before(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        # As by "import torch" of 2.5.
        code = """
import torch._inductor
from rocm_autopatch.patches import compile_modes
compile_modes.apply(torch, [("reduce-overhead", "default", "layer", "why")], (), False)
show(torch._inductor.list_mode_options("reduce-overhead"))
"""
        assert shown_by(torch_python, env, code, ROCM_AUTOPATCH="off") == [{}]

    def test_a_mode_that_torch_lacks(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = program_file("torch/lacking_mode.py")
        result, *configs, row, errors, said = shown_by(
            torch_python, env, code, ROCM_AUTOPATCH="off"
        )
        assert result == [2, 2]
        assert configs == [PLAIN["reduce-overhead"]] * 4
        assert (row["status"], row["after"], row["uses"]) == ("skipped", "reduce-overhead", 2)
        assert row["reason"] == "this torch has no mode lite"
        assert errors == [f"reduce-overhead stays as it is: {row['reason']}"]
        assert said == "Unrecognized mode=lite"

    def test_errors_and_signature(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = program_file("torch/list_mode_options.py")
        ours = shown_by(torch_python, env, code)
        assert ours == shown_by(torch_python, env, code, ROCM_AUTOPATCH="off")

    def test_an_answer_is_the_programs_own(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = """
ask = torch._inductor.list_mode_options
for mode in ask():
    ask(mode).clear()
    ask()[mode]["freezing"] = True
show(ask(), ask("lite"))
"""
        every, lite = shown_by(torch_python, env, code)
        assert every["lite"] == lite
        assert lite["fallback_by_default"] is True
        assert not any("freezing" in options for options in every.values())

    def test_keep_and_observe(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        keep = {"ROCM_AUTOPATCH_KEEP": "reduce-overhead"}
        kept = self.answers(torch_python, env, "reduce-overhead", **keep)
        assert kept == [[{"triton.cudagraphs": False}] * 4]
        seen = self.answers(torch_python, env, *PLAIN, ROCM_AUTOPATCH="observe")
        assert seen == [[options] * 4 for options in PLAIN.values()]

    def test_one_step_in_the_table(
        self, torch_python: Interpreter, env: dict[str, str], tmp_path: Path
    ) -> None:
        # What a mode stands for is one of torch's own, whatever that name stands for here.
        policy = tmp_path / "chain.yaml"
        policy.write_text(
            "version: 1\nextends: []\ncompile_modes: {default: max-autotune-no-cudagraphs, "
            "max-autotune-no-cudagraphs: reduce-overhead, reduce-overhead: default}\n"
        )
        env["ROCM_AUTOPATCH_POLICY"] = str(policy)
        modes = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")
        seen = self.answers(torch_python, env, *modes)
        tuned, captured = PLAIN["max-autotune-no-cudagraphs"], PLAIN["reduce-overhead"]
        assert [said[:3] for said in seen] == [[tuned] * 3, [captured] * 3, [{}] * 3]

    def test_pins(self, torch_python: Interpreter, env: dict[str, str], tmp_path: Path) -> None:
        policy = tmp_path / "pins.yaml"
        policy.write_text(
            "version: 1\nextends: []\nconfig: {torch._inductor.config: {triton.cudagraphs: "
            "{pin: false}, max_autotune: {default: false}}}\n"
        )
        env["ROCM_AUTOPATCH_POLICY"] = str(policy)
        # A question that comes before torch's config modules are imported.
        code = "import torch; print(torch._inductor.list_mode_options('reduce-overhead'))"
        assert torch_python.value(code, env=env) == "{'triton.cudagraphs': False}"
        seen = self.answers(torch_python, env, "reduce-overhead", "max-autotune")
        off = {"triton.cudagraphs": False}
        assert seen == [[off] * 4, [{**PLAIN["max-autotune"], **off}] * 4]

    def test_our_graphs(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        # As default: whoever captures the call captures ours with it (tests/graphs).
        env["ROCM_AUTOPATCH_POLICY"] = "performance"
        env["ROCM_AUTOPATCH_ASSUME"] = "proven=graphs"
        seen = self.answers(torch_python, env, "reduce-overhead", PYTHONWARNINGS="ignore")
        assert seen == [[{}, {}, {}, {"triton.cudagraphs": False}]]


# What set_torch_compile_config and patch_model of SGLang do (experiments/live/sglang_compile.py).
SGLANG = """
import os
c.coordinate_descent_tuning = True
c.fx_graph_cache = True
d.accumulated_cache_size_limit = 1024
d.cache_size_limit = 1024
mode = os.environ.get("SGLANG_TORCH_COMPILE_MODE", "max-autotune-no-cudagraphs")
used = torch._TorchCompileInductorWrapper(mode, None, False).get_compiler_config()
show(mode, used["coordinate_descent_tuning"], used["max_autotune"],
     used["max_autotune_gemm_backends"], elsewhere(lambda: c.coordinate_descent_tuning))
"""
SEARCH = "max-autotune-no-cudagraphs"


@pytest.mark.parametrize(
    ("policy", "given", "seen"),
    [
        # Until the program says otherwise: it is the program that turns coordinate descent on.
        ("safe", "", [SEARCH, True, True, "ATEN", False]),
        ("sglang-compile", "", ["default", False, False, "ATEN", False]),
        ("sglang-compile", SEARCH, [SEARCH, False, True, "ATEN", False]),
    ],
)
def test_sglang(
    torch_python: Interpreter, env: dict[str, str], policy: str, given: str, seen: list[Any]
) -> None:
    env["ROCM_AUTOPATCH_POLICY"] = policy
    more = {"SGLANG_TORCH_COMPILE_MODE": given} if given else {}
    assert shown_by(torch_python, env, SGLANG, **more) == seen


def test_a_program_may_plan_memory(torch_python: Interpreter, env: dict[str, str]) -> None:
    env["ROCM_AUTOPATCH_POLICY"] = "safe"
    code = "wrapper = torch._TorchCompileInductorWrapper(None, {'memory_planning': True}, None)\n"
    code += "before = c.memory_planning\nc.memory_planning = True\n"
    code += "show(before, c.memory_planning, wrapper.get_compiler_config()['memory_planning'])"
    assert shown_by(torch_python, env, code) == [False, True, True]
    wish = {"TORCHINDUCTOR_MEMORY_PLANNING": "1"}
    assert shown_by(torch_python, env, "show(c.memory_planning)", **wish) == [True]


class TestLaziness:
    def test_nothing_of_torch_is_imported_early(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        del env["ROCM_AUTOPATCH_POLICY"]
        imports = ("sys", "torch", "torch.distributed")
        code = "".join(f"import {name}\nprint(*sys.modules)\n" for name in imports)
        ours = torch_python.value(code, env=env).splitlines()
        off = torch_python.value(code, env={**env, "ROCM_AUTOPATCH": "off"}).splitlines()
        assert len(ours) == len(off) == len(imports)
        for name, loaded, alone in zip(imports, map(str.split, ours), map(str.split, off)):
            more = {module.partition(".")[0] for module in {*loaded} - {*alone}}
            assert more == {"rocm_autopatch"}, name
            assert {*alone} <= {*loaded}, name

    def test_the_record_of_what_waits(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = "import json, torch, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
        report = json.loads(torch_python.value(code, env=env))
        status = {row["target"]: row["status"] for row in report["patches"]}
        assert status == {
            "torch": "applied",
            "torch._inductor.config": "waiting",
            "torch._dynamo.config": "waiting",
        }
        assert {row["status"] for row in report["config"]} == {"waiting"}

    def test_the_finder_leaves(self, torch_python: Interpreter, env: dict[str, str]) -> None:
        code = "show([type(f).__module__ for f in sys.meta_path if 'rocm' in type(f).__module__])"
        assert shown_by(torch_python, env, code) == [[]]

    def test_torch_imported_before_we_came(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        code = """
import os, rocm_autopatch
os.environ["ROCM_AUTOPATCH"] = "on"
rocm_autopatch._started = ""
rocm_autopatch.start()
show(c.max_fusion_size, d.recompile_limit)
"""
        assert shown_by(torch_python, env, code, ROCM_AUTOPATCH="off") == [100, 77]

    def test_hashes_from_before_we_came(
        self, torch_python: Interpreter, env: dict[str, str], tmp_path: Path
    ) -> None:
        """By one default alone: torch itself forgets them where a value is set."""
        policy = tmp_path / "default.yaml"
        policy.write_text(
            "version: 1\nextends: []\n"
            "config: {torch._inductor.config: {max_fusion_size: {default: 100}}}\n"
        )
        code = """
import os, rocm_autopatch
before = c.get_hash()
os.environ["ROCM_AUTOPATCH"] = "on"
rocm_autopatch._started = ""
rocm_autopatch.start()
show(c.max_fusion_size, c.get_hash() == before)
"""
        late = {**env, "ROCM_AUTOPATCH_POLICY": str(policy), "ROCM_AUTOPATCH": "off"}
        assert shown_by(torch_python, late, code) == [100, False]


def test_an_empty_policy_leaves_torch_as_it_is(torch_python: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "empty.yaml"
    policy.write_text("version: 1\nextends: []\n")
    code = """
import sys, torch, torch._inductor.config as c, torch._dynamo.config as d
print(torch._TorchCompileInductorWrapper.apply_mode.__code__.co_filename == torch.__file__,
      type(c._config), c.get_hash().hex(), d.get_hash().hex(),
      c.codegen_config(), d.codegen_config(), len(sys.meta_path))
"""
    seed = {"PYTHONHASHSEED": "0"}
    ours = torch_python.run("-c", code, env={**seed, "ROCM_AUTOPATCH_POLICY": str(policy)})
    off = torch_python.run("-c", code, env={**seed, "ROCM_AUTOPATCH": "off"})
    assert (ours.stdout, ours.stderr) == (off.stdout, "")
    assert ours.stdout.startswith("True <class 'dict'>")


def test_the_line_counts_no_default(torch_python: Interpreter, golden: Golden) -> None:
    golden(torch_python.run("-c", "import torch").stderr)


def test_importing_torch_loads_what_torch_loads(torch_python: Interpreter) -> None:
    code = "import sys, torch; print(*sys.modules); import torch._inductor.config; "
    code += "import torch._dynamo.config; print(*sys.modules); print(len(sys.meta_path))"
    env = {"ROCM_AUTOPATCH_LOG": "quiet"}
    ours = torch_python.value(code, env=env).splitlines()
    off = torch_python.value(code, env={**env, "ROCM_AUTOPATCH": "off"}).splitlines()
    for loaded, alone in zip(ours[:2], off):
        more = set(loaded.split()) - set(alone.split())
        assert {name.partition(".")[0] for name in more} == {"rocm_autopatch"}
    # The finder has left after its last target.
    assert ours[2] == off[2]


def test_an_unmodified_program_compiles_in_a_thread(
    torch_python: Interpreter, env: dict[str, str]
) -> None:
    del env["ROCM_AUTOPATCH_POLICY"]
    code = """
from torch._dynamo.utils import counters
def work():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(4, 8)
    with torch.no_grad():
        compiled = torch.compile(model, mode="reduce-overhead")
        return [torch.allclose(compiled(x), model(x), atol=1e-5), c.max_autotune,
                c.max_autotune_gemm_backends, d.recompile_limit]
show(elsewhere(work), counters["stats"]["unique_graphs"])
"""
    wanted = [[True, False, "ATEN", 128], 1]
    assert shown_by(torch_python, env, code, **{MAX: "1"}) == wanted


def test_inductors_compile_workers(
    torch_python: Interpreter, env: dict[str, str], tmp_path: Path
) -> None:
    del env["ROCM_AUTOPATCH_POLICY"]
    (tmp_path / "job.py").write_text(
        "def job():\n"
        "    import os, torch._inductor.config as c, rocm_autopatch\n"
        f"    return [os.getpid(), os.environ.get({MAX!r}), c.max_autotune,\n"
        "            c.max_autotune_gemm_backends, rocm_autopatch.status()['active']]\n"
    )
    code = f"""
import os
sys.path.insert(0, {str(tmp_path)!r})
import job
from torch._inductor.compile_worker.subproc_pool import SubprocPool
pool = SubprocPool(1)
pid, *seen = pool.submit(job.job).result()
pool.shutdown()
show(pid != os.getpid(), seen)
"""
    assert shown_by(torch_python, env, code, **{MAX: "1"}) == [True, [None, False, "ATEN", True]]


class TestBadTorch:
    def test_broken_torch_fails_as_without_us(
        self, python: Interpreter, bare: Interpreter, tmp_path: Path
    ) -> None:
        broken = tmp_path / "torch"
        broken.mkdir()
        (broken / "version.py").write_text("__version__ = '2.13.0+rocm7.0'\nhip = '7.0'\n")
        (broken / "__init__.py").write_text("import ctypes\nctypes.CDLL('libtorch_absent.so')\n")
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        ours = python.run("-c", "import torch", env=env, check=False)
        off = python.run("-c", "import torch", env={**env, "ROCM_AUTOPATCH": "off"}, check=False)
        assert (ours.stdout, ours.stderr, ours.returncode) == (off.stdout, off.stderr, 1)

    def test_torch_without_what_a_patch_needs(
        self, python: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        strange = tmp_path / "torch"
        strange.mkdir()
        (strange / "version.py").write_text("__version__ = '3.0.0+rocm9.0'\nhip = '9.0'\n")
        (strange / "__init__.py").write_text("from torch import version\nVALUE = 1\n")
        done = python.run(
            *("-c", "import torch; print(torch.VALUE)"), env={"PYTHONPATH": str(tmp_path)}
        )
        assert done.stdout == "1\n"
        golden(done.stderr.splitlines()[-1])

    def test_nothing_changed_nothing_said(
        self, torch_python: Interpreter, env: dict[str, str]
    ) -> None:
        env["ROCM_AUTOPATCH_KEEP"] = "compile_modes,config"
        done = torch_python.run("-c", "import torch._inductor.config", env=env)
        assert (done.stdout, done.stderr) == ("", "")

    def test_a_patch_that_exits(self, fresh: Interpreter, golden: Golden) -> None:
        path = fresh.site_packages / "rocm_autopatch" / "patches" / "compile_modes.py"
        path.write_text("raise SystemExit(3)\n")
        done = fresh.run("-c", "import torch; print(torch.version.hip)")
        assert done.stdout == "7.0.51831-a3e329ad8\n"
        golden(done.stderr.splitlines()[-1])
