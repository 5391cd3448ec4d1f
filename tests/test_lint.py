"""Lint: what is said of a key, on keys that torch has, and of the built-in policies."""

from __future__ import annotations

import pytest

from rocm_autopatch.policy import document, load, schema
from rocm_autopatch.policy.lint import lint, versions
from rocm_autopatch.policy.model import Policy
from tests.messages import Golden

INDUCTOR, DYNAMO = "torch._inductor.config", "torch._dynamo.config"
FUNCTORCH, COMPILER = "torch._functorch.config", "torch.compiler.config"
ALL = "2.4..2.15"


def policy(text: str) -> Policy:
    return schema.read_policy(document.parse(f"version: 1\n{text}".encode(), "f"), "f", "f")


def config(module: str, entry: str, more: str = "") -> Policy:
    return policy(f"config:\n  {module}:\n    {entry}\n{more}")


def said(policy: Policy, chosen: str = ALL, *below: Policy) -> list[str]:
    return [f"{f.severity}: {f.message}" for f in lint(policy, versions(chosen), below)]


@pytest.mark.parametrize(
    ("module", "entry", "chosen", "hint"),
    [
        (INDUCTOR, "max_autotun: {pin: true}", ALL, "max_autotune"),
        (INDUCTOR, "max_autotun: {pin: true}", "2.6", "max_autotune"),
        (INDUCTOR, "multi_kernel: {pin: 1}", ALL, "triton.multi_kernel"),
        (INDUCTOR, "abi_compatibl: {pin: 1}", "2.5", "abi_compatible"),
        (INDUCTOR, "abi_compatibl: {pin: 1}", "2.13", ""),
        (FUNCTORCH, "recompile_limit: {pin: 9}", ALL, f"{DYNAMO}.recompile_limit"),
        (INDUCTOR, "qqq: {pin: true}", ALL, ""),
        (INDUCTOR, "abi_compatible: {pin: true}", "2.6,2.13", "2.4 to 2.5"),
        (
            COMPILER,
            "force_disable_caches: {pin: true}",
            "2.4..2.8",
            f"{INDUCTOR}.force_disable_caches",
        ),
        (DYNAMO, "ignore_logging_functions: {pin: 1}", "2.4..2.5", "2.11 and later"),
    ],
)
def test_no_torch_has_the_key(
    module: str, entry: str, chosen: str, hint: str, golden: Golden
) -> None:
    (message,) = said(config(module, entry), chosen)
    assert message.startswith("error: ")
    assert hint in message
    golden(message)


@pytest.mark.parametrize(
    ("module", "entry", "chosen", "torches"),
    [
        (INDUCTOR, "abi_compatible: {pin: true}", ALL, "2.6 and later"),
        (INDUCTOR, "abi_compatible: {pin: true}", "2.4..2.8", "2.6 to 2.8"),
        (COMPILER, "force_disable_caches: {pin: true}", ALL, "2.4 to 2.8"),
        (DYNAMO, "recompile_limit: {pin: 9}", ALL, "2.4 to 2.6"),
        (DYNAMO, "recompile_limit: {pin: 9}", "2.6", "2.6"),
        (DYNAMO, "cache_size_limit: {pin: 9}", ALL, "2.7 and later"),
    ],
)
def test_names(module: str, entry: str, chosen: str, torches: str, golden: Golden) -> None:
    (message,) = said(config(module, entry), chosen)
    assert message.startswith("remark: ")
    assert f"in torch {torches}" in message
    golden(message)


@pytest.mark.parametrize(
    ("module", "entry", "chosen"),
    [
        (INDUCTOR, "abi_compatible: {pin: true}", "2.4..2.5"),
        (DYNAMO, "recompile_limit: {pin: 9}", "2.7"),
        (DYNAMO, "cache_size_limit: {pin: 9}", "2.4..2.6"),
    ],
)
def test_names_that_each_torch_has(module: str, entry: str, chosen: str) -> None:
    assert said(config(module, entry), chosen) == []


@pytest.mark.parametrize(
    ("module", "key", "value", "torches"),
    [
        (INDUCTOR, "max_autotune", "'yes'", "2.4 to 2.15"),
        (INDUCTOR, "max_autotune", "1", "2.4 to 2.15"),
        (INDUCTOR, "max_autotune", "null", "2.4 to 2.15"),
        (INDUCTOR, "max_fusion_size", "true", "2.4 to 2.15"),
        (INDUCTOR, "max_fusion_size", "1.5", "2.4 to 2.15"),
        # no default, so that anything passes where no type is declared
        (INDUCTOR, "cpp.simdlen", "'256'", "2.6 and later"),
        (DYNAMO, "cache_size_limit", "x", "2.4 to 2.15"),
        # The word for the CPUs, misspelt.
        (DYNAMO, "cache_size_limit", "cpu", "2.4 to 2.15"),
    ],
)
def test_wrong_types(module: str, key: str, value: str, torches: str, golden: Golden) -> None:
    findings = said(config(module, f"{key}: {{pin: {value}}}"))
    (message,) = (f for f in findings if f.startswith("error: "))
    assert f"in torch {torches}" in message
    golden(message)


def test_types_that_differ(golden: Golden) -> None:
    findings = said(config(INDUCTOR, "compile_threads: {set: x}"))
    assert len(findings) == 2
    golden("\n".join(findings))


@pytest.mark.parametrize(
    ("module", "entry"),
    [
        (DYNAMO, "repro_tolerance: {pin: 1}"),  # an integer for a float
        (INDUCTOR, "bundle_triton_into_fx_graph_cache: {pin: null}"),
        (DYNAMO, "dynamo_profiler: {pin: a.prof}"),
    ],
)
def test_types_that_fit(module: str, entry: str) -> None:
    assert said(config(module, entry), "2.13") == []


FORCES, FIRST = "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT"


@pytest.mark.parametrize(
    ("strength", "more", "names"),
    [
        ("default: false", "", f"{FORCES} {FIRST}"),
        (f"default: false, yields_to: {FORCES}", "", FIRST),
        ("default: false", f"env: {{{FORCES}: {{delete: true}}}}", FIRST),
        (
            "default: false",
            f"env: {{{FORCES}: {{delete: true, since: '2.8.1'}}}}",
            f"{FORCES} {FIRST}",
        ),
        ("set: false", "", FORCES),
    ],
)
def test_variables_that_win(strength: str, more: str, names: str, golden: Golden) -> None:
    messages = said(config(INDUCTOR, f"fx_graph_cache: {{{strength}}}", more))
    for message, name in zip(messages, names.split(), strict=True):
        assert message.startswith("remark: ")
        assert name in message.split()
    golden("\n".join(messages))


def test_no_variable_wins_over_a_pin() -> None:
    assert said(config(INDUCTOR, "fx_graph_cache: {pin: false}")) == []


PADDING = "TORCHINDUCTOR_SHAPE_PADDING"


@pytest.mark.parametrize(
    ("entry", "more"),
    [
        ("shape_padding: {set: true}", ""),
        (f"shape_padding: {{default: true, yields_to: {PADDING}}}", ""),
        ("shape_padding: {default: true}", f"env: {{{PADDING}: {{delete: true}}}}"),
        ("epilogue_fusion: {default: true}", ""),
        ("epilogue_fusion: {default: true, since: '2.6', until: '2.8.1'}", ""),
    ],
)
def test_values_that_torch_ships(entry: str, more: str, golden: Golden) -> None:
    (message,) = said(config(INDUCTOR, entry, more))
    assert message.startswith("remark: ")
    golden(message)


@pytest.mark.parametrize(
    "entry",
    [
        "shape_padding: {default: false}",
        "shape_padding: {pin: true}",
        "shape_padding: {default: true, switch: PAD}",
        "compile_threads: {default: 8}",  # that depends on the machine
    ],
)
def test_values_that_have_an_effect(entry: str) -> None:
    assert said(config(INDUCTOR, entry)) == []


def test_a_wrong_type_that_equals_what_torch_ships(golden: Golden) -> None:
    (message,) = said(config(INDUCTOR, "epilogue_fusion: {default: 1}"))
    assert message.startswith("error: ")
    golden(message)


@pytest.mark.parametrize(("strength", "count"), [("set", 1), ("default", 2)])
def test_a_set_overrules_what_a_default_does_not(strength: str, count: int, golden: Golden) -> None:
    _, *messages = said(config(DYNAMO, f"run_gc_after_compile: {{{strength}: true}}"))
    assert len(messages) == count
    golden("\n".join(messages))


def test_a_value_that_undoes_one_below_has_an_effect() -> None:
    base = config(INDUCTOR, "epilogue_fusion: {default: false}")
    assert said(config(INDUCTOR, "epilogue_fusion: {default: true}"), ALL, base) == []


def test_a_variable_that_is_deleted_below(golden: Golden) -> None:
    entry = config(INDUCTOR, "shape_padding: {set: true}")
    base = policy(f"env: {{{PADDING}: {{delete: true}}}}")
    (message,) = said(entry, ALL, base)
    golden(message)


@pytest.mark.parametrize(
    ("entry", "chosen"),
    [
        ("emulate_precision_casts: {pin: false}", ALL),
        ("emulate_precision_casts: {set: false}", "2.14..2.15"),
        ("eager_numerics.disable_ftz: {default: false}", "2.15"),
        ("numerics: {set: strict}\n    emulate_precision_casts: {pin: false}", "2.15"),
    ],
)
def test_keys_that_another_one_implies(entry: str, chosen: str, golden: Golden) -> None:
    (message,) = [one for one in said(config(INDUCTOR, entry), chosen) if "implies" in one]
    assert "in torch 2.15" in message
    golden(message)


@pytest.mark.parametrize(
    ("entry", "chosen"),
    [
        ("emulate_precision_casts: {pin: true}", ALL),
        ("emulate_precision_casts: {pin: false}", "2.4..2.14"),
        ("numerics: {set: strict}\n    emulate_precision_casts: {pin: true}", "2.15"),
    ],
)
def test_what_is_implied_is_what_the_entry_says(entry: str, chosen: str) -> None:
    assert not [one for one in said(config(INDUCTOR, entry), chosen) if "implies" in one]


def test_a_finding_has_its_place(golden: Golden) -> None:
    (finding,) = lint(config(INDUCTOR, "max_autotun: {pin: true}"), versions("2.13"))
    assert str(finding).startswith(f"f:4:5: config.{INDUCTOR}.max_autotun: ")
    golden(str(finding))


def test_an_entry_for_no_torch_that_was_asked_for() -> None:
    assert said(config(INDUCTOR, "qqq: {pin: true, until: '2.13'}"), "2.13..2.15") == []


# Each is said by the entry's own why: "As torch ships it", "Off unless", "up to 2.6".
REMARKS = {
    "capture-guard": [],
    "no-hipblaslt": [],
    "no-library-search": [],
    "sglang-compile": [],
    "tuning-notes": [],
    "debug": [],
    "performance": [
        f"{INDUCTOR}.shape_padding",
        f"{DYNAMO}.recompile_limit",
    ],
    "safe": [
        f"{INDUCTOR}.max_autotune",
        f"{INDUCTOR}.max_autotune_pointwise",
        f"{INDUCTOR}.coordinate_descent_tuning",
        f"{INDUCTOR}.memory_planning",
        f"{INDUCTOR}.epilogue_fusion",
        f"{INDUCTOR}.pattern_matcher",
        f"{INDUCTOR}.reorder_for_locality",
        f"{INDUCTOR}.aggressive_fusion",
        f"{DYNAMO}.recompile_limit",
    ],
}


def test_the_built_in_policies(golden: Golden) -> None:
    found, messages = {}, []
    for name in load.names():
        *below, top = load.layers(load.policy(load.BUILTIN / f"{name}.yaml"))
        findings = lint(top, versions(ALL), below)
        found[name] = [f.path.removeprefix("config.") for f in findings]
        messages += [f"{name}: {f.severity}: {f.path}: {f.message}" for f in findings]
        assert all(f.severity == "remark" for f in findings)
    assert found == REMARKS
    golden("\n".join(messages))


def test_the_image_rows() -> None:
    for row in load.images():
        below = load.layers(load.base(row))
        assert lint(row, versions(ALL), below) == []


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("2.13", ("2.13",)),
        ("2.9..2.11", ("2.9", "2.10", "2.11")),
        ("2.13..2.13", ("2.13",)),
        ("2.13, 2.6", ("2.6", "2.13")),
        ("2.6,2.5..2.7", ("2.5", "2.6", "2.7")),
    ],
)
def test_versions(text: str, chosen: tuple[str, ...]) -> None:
    assert versions(text) == chosen
    assert len(versions(ALL)) == 12


@pytest.mark.parametrize(
    "text", ["2.3", "2.6..2.16", "2.6,", "2.6..2.7..2.8", "2.9..2.10,2.10..2.9"]
)
def test_versions_that_are_none(text: str, golden: Golden) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        versions(text)
    golden(str(caught.value))


@pytest.mark.parametrize(
    ("value", "before", "declared", "fits"),
    [
        ("x", [], "list[str]", False),
        ("no_optimization", True, "Union[bool, str]", True),
        ("other", True, "Optional[bool]", False),
        (None, True, "Optional[bool]", True),
        (3, 0, "Literal[0, 1, 2, 3]", True),
        ("auto", False, "Union[bool, Literal['auto']]", True),
        (None, "", "str", False),
    ],
)
def test_declared_types_that_fit(value: object, before: object, declared: str, fits: bool) -> None:
    import typing

    from rocm_autopatch.patches import config

    assert config.fits(value, before, config._declared_types(eval(declared, vars(typing)))) is fits


@pytest.mark.parametrize(
    ("module", "key", "value", "wrong"),
    [
        (COMPILER, "job_id", "48213", True),
        (COMPILER, "job_id", "'48213'", False),
        (INDUCTOR, "cpp.simdlen", "'256'", True),
        (INDUCTOR, "cpp.simdlen", "256", False),
        (INDUCTOR, "triton.cudagraph_capture_sizes", "1", True),
        (INDUCTOR, "combo_kernel_peak_memory_increase_gb", "1", False),
    ],
)
def test_keys_without_a_value(module: str, key: str, value: str, wrong: bool) -> None:
    messages = said(config(module, f"{key}: {{pin: {value}}}"), "2.13")
    errors = [one for one in messages if one.startswith("error: ")]
    assert [" is not of type " in one for one in errors] == [True] * wrong


@pytest.mark.parametrize(
    ("use", "chosen", "torches"),
    [
        ("lite", ALL, "2.4 to 2.9"),
        ("lite", "2.9", "2.9"),
        ("lite", "2.10..2.15", ""),
        ("training-graphs", ALL, "2.4 to 2.5"),
        ("training-graphs", "2.6", ""),
        ("graphs", ALL, ""),
        ("{use: training-graphs, since: '2.6'}", ALL, ""),
        ("{use: training-graphs, proven: training-graphs}", ALL, ""),
    ],
)
def test_modes(use: str, chosen: str, torches: str, golden: Golden) -> None:
    messages = said(policy(f"compile_modes:\n  reduce-overhead: {use}\n"), chosen)
    assert len(messages) == bool(torches)
    for message in messages:
        assert f"torch {torches} has no " in message
        golden(message)
