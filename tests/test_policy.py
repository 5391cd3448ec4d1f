"""Policies: what the loader says of a wrong one, how layers stack, and what the built-ins hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocm_autopatch.measure.prove.subjects import SUBJECTS
from rocm_autopatch.plan import Plan
from rocm_autopatch.policy import PolicyError, builtin, document, load, lower, select
from rocm_autopatch.policy.model import Common, ConfigEntry, EnvRule, UseRule
from rocm_autopatch.probe import variables
from tests.conftest import ROOT
from tests.messages import Golden
from tests.wrong_policies import problems, wrong_policies


def lowered(file: Path) -> Plan:
    return lower.lower(load.layers(load.policy(file)))


@pytest.mark.parametrize(("text", "said"), list(wrong_policies()))
def test_what_is_said_of_a_wrong_policy(text: str, said: list[str]) -> None:
    assert problems(text.encode()) == said


@pytest.mark.parametrize(
    "data",
    [b"", b"#" * (document.MAX_BYTES + 1), b"\xff\xfe\x00", b"\x00"],
    ids=["nothing", "too much", "UTF-16", "a zero byte"],
)
def test_bytes_that_are_no_yaml(data: bytes, golden: Golden) -> None:
    (problem,) = problems(data)
    assert problem.startswith("f.yaml:1:1: ")
    golden(problem)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    problems(data)
    problems(b"version: 1\nenv: " + data)


# Where vLLM's images with ROCm 10 have it.
PACKAGES = "/usr/local/lib/python3.12/dist-packages"
WRONG_IMAGES = [
    b"version: 1\n",
    b"version: 1\nimages: [{policy: safe, name: a}]\n",
    b"version: 1\nimages: [{when: {}}]\n",
    b"version: 1\nimages: [{image: a, sets: {A: {why: b}}}]\n",
    b"version: 1\nimages: [{image: a, sets: {A: 1}}]\n",
    b"version: 1\nimages: [{image: a, known_issues: [{isue: b, issue: c}]}]\n",
    b"version: 1\nimages: [{image: a, policy: safe, x: 1}]\n",
]


@pytest.mark.parametrize("text", WRONG_IMAGES)
def test_images(text: bytes, golden: Golden) -> None:
    (problem,) = problems(text, "images")
    golden(problem)


class TestLayers:
    def write(self, directory: Path, name: str, text: str) -> Path:
        file = directory / f"{name}.yaml"
        file.write_text("version: 1\n" + text)
        return file

    def test_later_wins_entry_by_entry(self, tmp_path: Path) -> None:
        self.write(tmp_path, "base", "env: {A: {set: a}, B: {set: b}}\n")
        top = self.write(tmp_path, "top", "extends: ./base.yaml\nenv: {B: {delete: true}}\n")
        plan = lowered(top)
        assert plan["layers"] == ("base", "top")
        assert plan["env"] == (
            ("A", "set", "a", "base", "", (), ()),
            ("B", "delete", None, "top", "", (), ()),
        )

    def test_a_base_that_two_extend_stands_once(self, tmp_path: Path) -> None:
        self.write(tmp_path, "base", "")
        self.write(tmp_path, "left", "extends: base.yaml\n")
        self.write(tmp_path, "right", "extends: base.yaml\n")
        top = self.write(tmp_path, "top", "extends: [left.yaml, right.yaml]\n")
        assert lowered(top)["layers"] == ("base", "left", "right", "top")

    def test_a_layer_for_another_accelerator_is_left_out(self, tmp_path: Path) -> None:
        self.write(tmp_path, "a", "when: {accelerator: cuda}\nenv: {A: {set: a}}\n")
        self.write(tmp_path, "b", "when: {accelerator: [rocm, cuda]}\nenv: {B: {set: b}}\n")
        top = self.write(tmp_path, "top", "extends: [a.yaml, b.yaml]\n")
        plan = lowered(top)
        assert plan["layers"] == ("b", "top")
        assert plan["env"] == (("B", "set", "b", "b", "", (), ()),)
        assert lowered(tmp_path / "a.yaml")["env"] == ()

    def test_a_cycle(self, tmp_path: Path, golden: Golden) -> None:
        a = self.write(tmp_path, "a", "extends: b.yaml\n")
        b = self.write(tmp_path, "b", "extends: a.yaml\n")
        with pytest.raises(PolicyError) as caught:
            lowered(a)
        assert str(caught.value).startswith(f"{b}:2:10: ")
        golden(str(caught.value))

    def test_a_missing_base(self, tmp_path: Path, golden: Golden) -> None:
        top = self.write(tmp_path, "top", "extends: [safe, saef]\n")
        with pytest.raises(PolicyError) as caught:
            lowered(top)
        golden(str(caught.value))

    def test_a_later_entry_for_some_torches_leaves_the_earlier_for_the_others(
        self, tmp_path: Path
    ) -> None:
        self.write(tmp_path, "base", "env: {A: {set: base}, B: {set: base}}\n")
        text = (
            "extends: base.yaml\n"
            "env: {A: {set: top, since: '2.6', until: '2.10.1'}, B: {set: top}}\n"
        )
        plan = lowered(self.write(tmp_path, "top", text))
        assert plan["env"] == (
            ("A", "set", "base", "base", "", (), ()),
            ("A", "set", "top", "top", "", (2, 6), (2, 10, 1)),
            ("B", "set", "top", "top", "", (), ()),
        )

    def test_two_layers_that_pin_one_key_differently(self, tmp_path: Path, golden: Golden) -> None:
        text = "config: {torch._inductor.config: {triton.cudagraphs: {pin: true}}}\n"
        top = self.write(tmp_path, "top", f"extends: safe\n{text}")
        with pytest.raises(PolicyError) as caught:
            lowered(top)
        safe = load.BUILTIN / "safe.yaml"
        line = safe.read_text().splitlines().index("    triton.cudagraphs:") + 2
        golden(str(caught.value), PIN=f"{safe}:{line}:9")
        top.write_text(top.read_text().replace("true", "false"))
        assert lowered(top)["layers"] == ("safe", "top")

    def test_a_pin_may_insist(self, tmp_path: Path, golden: Golden) -> None:
        text = "config: {torch._inductor.config: {triton.cudagraphs: {pin: true, insist: true}}}\n"
        top = self.write(tmp_path, "top", f"extends: safe\n{text}")
        rows = {row[0]: row for _, _, rows in lowered(top)["patches"] for row in rows}
        assert rows["triton.cudagraphs"][1:3] == ("pin", True)
        # Only what insists: a third pin on it is an error again.
        again = f"extends: top.yaml\n{text.replace('true, insist: true', 'false')}"
        third = self.write(tmp_path, "third", again)
        with pytest.raises(PolicyError) as caught:
            lowered(third)
        golden(str(caught.value))

    def test_pins_for_different_torches_do_not_meet(self, tmp_path: Path, golden: Golden) -> None:
        def pin(value: int, span: str) -> str:
            return f"config: {{torch._inductor.config: {{k: {{pin: {value}, {span}}}}}}}\n"

        self.write(tmp_path, "base", pin(1, "until: '2.6'"))
        top = self.write(tmp_path, "top", "extends: base.yaml\n" + pin(2, "since: '2.6'"))
        ((_, _, rows), modes) = lowered(top)["patches"]
        # What a mode means follows from pins, too; there is nothing to count.
        assert modes == ("compile_modes", "torch", ())
        assert lowered(top)["counts"] == "1 config value"
        assert [(row[2], *row[-2:]) for row in rows] == [(1, (), (2, 6)), (2, (2, 6), ())]
        top.write_text(top.read_text().replace("since: '2.6'", "since: '2.5.1'"))
        with pytest.raises(PolicyError) as caught:
            lowered(top)
        golden(str(caught.value))

    def test_a_key_under_two_names_is_one_key(self, tmp_path: Path, golden: Golden) -> None:
        def limit(name: str, entry: str) -> str:
            return f"config: {{torch._dynamo.config: {{{name}: {{{entry}}}}}}}\n"

        base = self.write(tmp_path, "base", limit("cache_size_limit", "default: 8"))
        top = self.write(
            tmp_path, "top", "extends: base.yaml\n" + limit("recompile_limit", "pin: 9")
        )
        ((_, _, rows),) = lowered(top)["patches"]
        assert [row[:3] for row in rows] == [("recompile_limit", "pin", 9)]
        base.write_text(base.read_text().replace("default", "pin"))
        with pytest.raises(PolicyError) as caught:
            lowered(top)
        golden(str(caught.value))

    def test_patches(self, tmp_path: Path) -> None:
        self.write(tmp_path, "base", "patches: {capture: off}\n")
        top = self.write(
            tmp_path,
            "top",
            "extends: base.yaml\npatches: {capture: {use: skip-rng, until: '2.10', why: w}}\n",
        )
        assert lowered(top)["patches"] == (
            (
                "capture",
                "torch._dynamo.convert_frame",
                (
                    ("capture", "off", "base", "", (), ()),
                    ("capture", "skip-rng", "top", "w", (), (2, 10)),
                ),
            ),
        )

    def test_a_patch_with_fields_is_merged_field_by_field(self, tmp_path: Path) -> None:
        text = "patches: {watchdog: {warn_after: 120, dump_stacks: true, abort_after: null}}\n"
        self.write(tmp_path, "base", text)
        top = self.write(
            tmp_path,
            "top",
            "extends: base.yaml\npatches: {watchdog: {warn_after: 0.5, since: '2.6', why: w}}\n",
        )
        off = self.write(tmp_path, "off", "extends: top.yaml\npatches: {watchdog: off}\n")
        ((name, target, rows),) = lowered(top)["patches"]
        assert (name, target) == ("watchdog", "torch._dynamo.convert_frame")
        assert rows == (
            ("watchdog.warn_after", 120, "base", "", (), ()),
            ("watchdog.dump_stacks", True, "base", "", (), ()),
            ("watchdog.abort_after", None, "base", "", (), ()),
            ("watchdog.warn_after", 0.5, "top", "w", (2, 6), ()),
        )
        assert lowered(top)["counts"] == "watchdog"
        ((_, _, rows),) = lowered(off)["patches"]
        assert rows == (
            ("watchdog.dump_stacks", True, "base", "", (), ()),
            ("watchdog.warn_after", False, "off", "", (), ()),
            ("watchdog.abort_after", None, "off", "", (), ()),
        )


# What performance says of torch._inductor.config without evidence, and where a gain is proven.
GAINING = {
    "coordinate_descent_tuning": (False, True),
    "aggressive_fusion": (False, True),
    "max_fusion_size": (64, 128),
    "benchmark_kernel": (False, True),
    "triton.multi_kernel": (0, 1),
    "freezing": (False, True),
}


def entries(policy: str) -> dict[str, tuple[str, object]]:
    """Dotted name -> (strength or action, value) of everything in a built-in policy."""
    return entries_of(builtin.POLICIES[policy])


def entries_of(plan: Plan) -> dict[str, tuple[str, object]]:
    """The same of a plan."""
    found: dict[str, tuple[str, object]] = {row[0]: (row[1], row[2]) for row in plan["env"]}
    for patch, target, rows in plan["patches"]:
        for row in rows:
            if patch == "config":
                found[f"{target.split('.')[1].strip('_')}.{row[0]}"] = (str(row[1]), row[2])
            else:
                found[str(row[0])] = ("use", row[1])
    return found


def entry_name(entry: Common) -> str:
    """What a policy calls an entry."""
    if isinstance(entry, UseRule):
        return entry.name.partition(".")[0] if entry.section == "patches" else entry.name
    assert isinstance(entry, (ConfigEntry, EnvRule))
    return entry.key if isinstance(entry, ConfigEntry) else entry.name


class TestBuiltins:
    def test_every_entry_says_why(self) -> None:
        for plan in builtin.POLICIES.values():
            rows = [
                *plan["env"],
                *plan["empty"],
                *(row for _, _, rows in plan["patches"] for row in rows),
            ]
            assert rows
            for row in rows:
                # An unquoted # would cut a why short without a word.
                assert str(row[-3]).endswith("."), row

    def test_every_entry_has_a_trial_or_says_why_not(self) -> None:
        tried = {name for subject in SUBJECTS.values() for name in (subject.name, *subject.about)}
        without = set()
        for name in load.names():
            policy = load.policy(load.BUILTIN / f"{name}.yaml")
            for entry in (entry for entries in policy.entries.values() for entry in entries):
                said = entry_name(entry)
                assert not (said in tried and entry.no_trial), f"{name}: {said}"
                # Nobody wants the empty text, so there is nothing to try.
                wanted = "delete_empty" not in entry.names
                if said not in tried and not entry.no_trial and wanted:
                    without.add(f"{name}: {said}")
        assert without == set()

    def test_safe_holds_the_settings_of_000_002_and_003(self) -> None:
        safe = entries("safe")
        assert {
            "TORCHINDUCTOR_MAX_AUTOTUNE": ("delete", None),
            "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": ("delete", None),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": ("delete", None),
            "TORCH_COMPILE_DEBUG": ("delete", None),
            "inductor.max_autotune": ("default", False),
            "inductor.max_autotune_gemm_backends": ("pin", "ATEN"),
            "inductor.coordinate_descent_tuning": ("default", False),
            "inductor.triton.cudagraphs": ("pin", False),
            "inductor.triton.cudagraph_trees": ("pin", False),
            "inductor.memory_planning": ("default", False),
            "inductor.epilogue_fusion": ("default", True),
            "inductor.pattern_matcher": ("default", True),
            "inductor.aggressive_fusion": ("default", False),
            "inductor.reorder_for_locality": ("default", True),
            "dynamo.recompile_limit": ("default", 128),
            "reduce-overhead": ("use", "default"),
            "max-autotune": ("use", "max-autotune-no-cudagraphs"),
        }.items() <= safe.items()

    def test_tuning_notes_hold_the_settings_of_003_that_change_nothing(self) -> None:
        notes = {
            "HIP_LAUNCH_BLOCKING": ("default", "0"),
            "AMD_LOG_LEVEL": ("default", "0"),
            "HIP_CACHE_ENABLED": ("default", "1"),
        }
        assert notes.items() <= entries("tuning-notes").items()
        assert not notes.keys() & entries("safe").keys()

    def test_performance_has_the_switches_of_001(self) -> None:
        (rows,) = (
            rows
            for _, target, rows in builtin.POLICIES["performance"]["patches"]
            if target == "torch._inductor.config"
        )
        assert {
            "INDUCTOR_COORD_DESCENT": "coordinate_descent_tuning",
            "INDUCTOR_BENCHMARK_KERNEL": "benchmark_kernel",
            "INDUCTOR_GROUP_FUSION": "group_fusion",
            "INDUCTOR_AGGRESSIVE_FUSION": "aggressive_fusion",
            "INDUCTOR_MAX_FUSION_SIZE": "max_fusion_size",
            "INDUCTOR_FREEZING": "freezing",
        }.items() <= {row[4]: row[0] for row in rows if row[4]}.items()

    def test_performance_holds_the_settings_of_001(self) -> None:
        assert {
            "inductor.max_autotune": ("default", False),
            "inductor.max_autotune_gemm_backends": ("pin", "ATEN"),
            "inductor.triton.cudagraphs": ("pin", False),
            "inductor.memory_planning": ("default", False),
            "inductor.epilogue_fusion": ("default", True),
            "inductor.pattern_matcher": ("default", True),
            "inductor.group_fusion": ("default", True),
            "inductor.shape_padding": ("default", True),
            "dynamo.recompile_limit": ("default", 256),
            **{f"inductor.{key}": ("default", off) for key, (off, _) in GAINING.items()},
        }.items() <= entries("performance").items()

    def test_performance_has_what_is_proven_to_gain(self) -> None:
        subjects = [key.rpartition(".")[2] for key in GAINING]
        facts = {**lower.BUILT_IN_FACTS, "gains": " ".join([*subjects, "expandable_segments"])}
        chosen = select.select(facts, "performance", at=())
        plan = lower.lower(chosen.layers, facts, chosen.policy)
        assert {
            "PYTORCH_ALLOC_CONF": ("default", "expandable_segments:True"),
            **{f"inductor.{key}": ("default", on) for key, (_, on) in GAINING.items()},
        }.items() <= entries_of(plan).items()

    @pytest.mark.parametrize(
        ("facts", "use"),
        [
            ({}, "default"),
            ({"proven": "cudagraphs"}, "reduce-overhead"),
            ({"proven": "cudagraphs training-graphs graphs"}, "graphs"),
            ({"proven": "training-graphs", "gains": "training-graphs"}, "default"),
            ({"proven": "training-graphs graphs", "gains": "training-graphs"}, "training-graphs"),
        ],
    )
    def test_performance_has_graphs_where_they_are_proven(
        self, facts: dict[str, str], use: str
    ) -> None:
        facts = {**lower.BUILT_IN_FACTS, **facts}
        chosen = select.select(facts, "performance", at=())
        plan = lower.lower(chosen.layers, facts, chosen.policy)
        assert entries_of(plan)["reduce-overhead"] == ("use", use)

    def test_no_variable_outranks_what_a_user_asks_otherwise(self) -> None:
        # docs/policies.md has what each outranks. A variable that is added here belongs there.
        defaults = {
            name: {row[0] for row in plan["env"] if row[1] == "default"}
            for name, plan in builtin.POLICIES.items()
        }
        assert defaults == {
            "safe": set(),
            "performance": set(),
            "debug": {"TORCH_LOGS"},
            "capture-guard": set(),
            "no-hipblaslt": {
                "TORCH_BLAS_PREFER_HIPBLASLT",
                "DISABLE_ADDMM_CUDA_LT",
                "ROCBLAS_USE_HIPBLASLT",
            },
            "no-library-search": {"MIOPEN_FIND_MODE", "PYTORCH_TUNABLEOP_TUNING"},
            "sglang-compile": {"SGLANG_TORCH_COMPILE_MODE"},
            "tuning-notes": {"HIP_LAUNCH_BLOCKING", "AMD_LOG_LEVEL", "HIP_CACHE_ENABLED"},
        }
        page = (ROOT / "docs" / "policies.md").read_text()
        section = page.partition("### Variables that outrank a flag")[2].partition("\n## ")[0]
        assert [name for names in defaults.values() for name in names if name not in section] == []

    def test_what_an_image_may_not_ask_of_libraries(self) -> None:
        plan = builtin.POLICIES["no-library-search"]
        ours = {row[0]: row[1:3] for row in plan["env"] if row[3] == "no-library-search"}
        deleted = {"MIOPEN_FIND_ENFORCE", "AITER_REBUILD", "AITER_ONLINE_TUNE", "HIP_ONLINE_TUNING"}
        assert ours == {
            "MIOPEN_FIND_MODE": ("default", "FAST"),
            "PYTORCH_TUNABLEOP_TUNING": ("default", "0"),
            **dict.fromkeys(deleted, ("delete", None)),
        }
        # A user who sets one of them keeps it.
        assert deleted <= set(plan["image_only"])
        # The mitigation leaves nothing that probe calls slow.
        for name, (action, value) in ours.items():
            if action == "default":
                assert variables.of_variable(name, str(value), "2.13.0").verdict == "harmless"

    def test_debug_holds_the_debugging_of_001(self) -> None:
        assert {
            "TORCH_COMPILE_DEBUG": ("set", "1"),
            "TORCH_LOGS": ("default", "+inductor"),
            "inductor.trace.enabled": ("default", True),
            "inductor.trace.debug_log": ("default", True),
        }.items() <= entries("debug").items()

    @pytest.mark.parametrize(
        ("facts", "sets"),
        [
            (
                {"framework": "vllm", "framework_version": "0.33.0", "rocm": "10.0.0"},
                {
                    "HSA_NO_SCRATCH_RECLAIM": "1",
                    "HSA_ENABLE_IPC_MODE_LEGACY": "1",
                    "UCX_ROCM_COPY_SIGPOOL_MAX_ELEMS": "inf",
                    "UCX_ROCM_IPC_SIGPOOL_MAX_ELEMS": "inf",
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                    "TOKENIZERS_PARALLELISM": "false",
                    "SAFETENSORS_FAST_GPU": "1",
                    "KINETO_CONFIG": "/app/libkineto.conf",
                    "ROCPROFILER_QUEUE_INTERPOSITION": "0",
                    "HIP_FORCE_DEV_KERNARG": "1",
                },
            ),
            # ROCm 10 is in dist-packages, with a PYTHONPATH; ROCm 7.2 is not.
            (
                {"framework": "vllm", "framework_version": "0.33.0", "rocm": "10.0.0"},
                {
                    "PYTHONPATH": f"{PACKAGES}/_rocm_sdk_core/share/amd_smi",
                    "UCX_RMA_PPLN_ENABLE": None,
                },
            ),
            (
                {"framework": "vllm", "framework_version": "0.32.0", "rocm": "7.2.3"},
                {"ROCM_PATH": "/opt/rocm", "UCX_RMA_PPLN_ENABLE": "y", "PYTHONPATH": None},
            ),
            (
                {
                    "framework": "vllm",
                    "framework_version": "0.33.0",
                    "gfx": "gfx1250",
                    "rocm": "10.1.0",
                },
                {"PYTORCH_ROCM_ARCH": "gfx1250", "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE"},
            ),
            (
                {"framework": "vllm", "repository": "rocm/atom-dev"},
                {"PYTORCH_ROCM_ARCH": "gfx942;gfx950"},
            ),
            (
                {"repository": "rocm/megatron-lm"},
                {"PYTHONPATH": "/var/lib/jenkins/triton/python", "NVTE_USE_HIPBLASLT": "1"},
            ),
            (
                {"framework": "sglang", "framework_version": "0.5.17", "rocm": "7.2.4"},
                {
                    "HSA_ENABLE_IPC_MODE_LEGACY": "1",
                    "PIP_CONSTRAINT": "/etc/sglang/constraints/torch-rocm.txt",
                    "AITER_USE_SYSTEM_TRITON": "1",
                    "SGLANG_MOE_PADDING": "1",
                },
            ),
            ({"framework": "atom"}, {"PYTORCH_ROCM_ARCH": "gfx942;gfx950"}),
            (
                {"repository": "rocm/primus", "tag": "v26.8"},
                {"HSA_ENABLE_SCRATCH_ASYNC_RECLAIM": "0", "DEBUG_CLR_AQL_DEV_QUEUE": "1"},
            ),
        ],
    )
    def test_what_images_of_2026_set(
        self, facts: dict[str, str], sets: dict[str, str | None]
    ) -> None:
        found = self.recorded(**facts)
        assert {name: found.get(name) for name in sets} == sets

    @staticmethod
    def recorded(**facts: str) -> dict[str, object]:
        rows = select.records(load.images(), {"accelerator": "rocm", **facts})
        return {setting.name: setting.value for row in rows for setting in row.sets}

    def test_what_other_images_do_not_set(self) -> None:
        older = self.recorded(framework="vllm", framework_version="0.19.0", rocm="7.2.1")
        assert set(older) == {"HSA_NO_SCRATCH_RECLAIM", "HIP_FORCE_DEV_KERNARG"}
        sglang = self.recorded(framework="sglang", framework_version="0.5.17", rocm="7.2.0")
        assert not {"HSA_ENABLE_IPC_MODE_LEGACY", "PIP_CONSTRAINT"} & set(sglang)

    @pytest.mark.parametrize(
        ("torch", "rocm", "said"),
        [
            ("2.10.0", "7.2.4", "ignores"),
            ("2.11.0+rocm10.0.0", "10.0.0", "wait for ever"),
            ("2.13.0+rocm7.2", "7.2", "wait for ever"),
            ("2.13.0", "6.4", ""),
        ],
    )
    def test_where_expandable_segments_may_hang(self, torch: str, rocm: str, said: str) -> None:
        facts = {"accelerator": "rocm", "torch": torch, "rocm": rocm}
        rows = select.records(load.images(), facts)
        about = [row for row in rows if row.name.startswith("expandable segments")]
        text = " ".join(issue.text for row in about for issue in row.known_issues)
        assert said in text
        assert bool(said) == bool(text)

    def test_images_hold_the_version_table_of_000(self) -> None:
        issues = {
            row.image: [issue.text for issue in row.known_issues]
            for row in load.images()
            if row.image
        }
        assert issues == {
            "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129": ["hipBLASLt solver bug"],
            "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210": [
                "hipBLASLt solver bug",
                "FP8 flash attention broken",
            ],
            "rocm/sgl-dev:v0.5.8.post1-rocm700-mi35x-20260219": [],
        }
        assert set(builtin.IMAGES) == set(issues)
