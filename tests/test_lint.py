"""Lint: what is said of a key, on keys that torch has, and of the built-in policies."""

from __future__ import annotations

import pytest

from rocm_autopatch.policy import document, load, schema
from rocm_autopatch.policy.lint import lint, versions
from rocm_autopatch.policy.model import Policy

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
    ("module", "entry", "chosen", "message"),
    [
        (INDUCTOR, "max_autotun: {pin: true}", ALL, "2.4 to 2.15: did you mean max_autotune?"),
        (INDUCTOR, "max_autotun: {pin: true}", "2.6", "2.6: did you mean max_autotune?"),
        (INDUCTOR, "multi_kernel: {pin: 1}", ALL, "2.4 to 2.15: did you mean triton.multi_kernel?"),
        (INDUCTOR, "abi_compatibl: {pin: 1}", "2.5", "2.5: did you mean abi_compatible?"),
        (INDUCTOR, "abi_compatibl: {pin: 1}", "2.13", "2.13"),
        (
            FUNCTORCH,
            "recompile_limit: {pin: 9}",
            ALL,
            "2.4 to 2.15: did you mean torch._dynamo.config.recompile_limit?",
        ),
        (INDUCTOR, "qqq: {pin: true}", ALL, "2.4 to 2.15"),
        (
            INDUCTOR,
            "abi_compatible: {pin: true}",
            "2.6,2.13",
            "2.6, 2.13; it is in torch 2.4 to 2.5",
        ),
        (
            COMPILER,
            "force_disable_caches: {pin: true}",
            "2.4..2.8",
            "2.4 to 2.8; the key there is torch._inductor.config.force_disable_caches",
        ),
        (
            DYNAMO,
            "ignore_logging_functions: {pin: 1}",
            "2.4..2.5",
            "2.4 to 2.5; it is in torch 2.11 and later",
        ),
    ],
)
def test_no_torch_has_the_key(module: str, entry: str, chosen: str, message: str) -> None:
    assert said(config(module, entry), chosen) == [f"error: no such key in torch {message}"]


@pytest.mark.parametrize(
    ("module", "entry", "chosen", "message"),
    [
        (
            INDUCTOR,
            "abi_compatible: {pin: true}",
            ALL,
            "no such key in torch 2.6 and later, so this entry is skipped there",
        ),
        (
            INDUCTOR,
            "abi_compatible: {pin: true}",
            "2.4..2.8",
            "no such key in torch 2.6 to 2.8, so this entry is skipped there",
        ),
        (INDUCTOR, "abi_compatible: {pin: true}", "2.4..2.5", None),
        (
            COMPILER,
            "force_disable_caches: {pin: true}",
            ALL,
            "no such key in torch 2.4 to 2.8, so this entry is skipped there; the key there is "
            "torch._inductor.config.force_disable_caches",
        ),
        (
            DYNAMO,
            "recompile_limit: {pin: 9}",
            ALL,
            "in torch 2.4 to 2.6 this key is called cache_size_limit",
        ),
        (
            DYNAMO,
            "recompile_limit: {pin: 9}",
            "2.6",
            "in torch 2.6 this key is called cache_size_limit",
        ),
        (DYNAMO, "recompile_limit: {pin: 9}", "2.7", None),
        (
            DYNAMO,
            "cache_size_limit: {pin: 9}",
            ALL,
            "in torch 2.7 and later this key is an alias of torch._dynamo.config.recompile_limit",
        ),
        (DYNAMO, "cache_size_limit: {pin: 9}", "2.4..2.6", None),
    ],
)
def test_names(module: str, entry: str, chosen: str, message: str | None) -> None:
    assert said(config(module, entry), chosen) == ([f"remark: {message}"] if message else [])


@pytest.mark.parametrize(
    ("module", "key", "value", "message"),
    [
        (INDUCTOR, "max_autotune", "'yes'", '"yes" is not of type bool in torch 2.4 to 2.15'),
        (INDUCTOR, "max_autotune", "1", "1 is not of type bool in torch 2.4 to 2.15"),
        (INDUCTOR, "max_autotune", "null", "null is not of type bool in torch 2.4 to 2.15"),
        (INDUCTOR, "max_fusion_size", "true", "true is not of type int in torch 2.4 to 2.15"),
        (INDUCTOR, "max_fusion_size", "1.5", "1.5 is not of type int in torch 2.4 to 2.15"),
        # no default, so that anything passes, in 2.6 alone
        (
            INDUCTOR,
            "worker_start_method",
            "3",
            "3 is not of type str in torch 2.4 to 2.5, 2.7 and later",
        ),
        (DYNAMO, "cache_size_limit", "x", '"x" is not of type int in torch 2.4 to 2.15'),
    ],
)
def test_wrong_types(module: str, key: str, value: str, message: str) -> None:
    findings = said(config(module, f"{key}: {{pin: {value}}}"))
    assert [f for f in findings if f.startswith("error")] == [f"error: {message}"]


def test_types_that_differ() -> None:
    assert said(config(INDUCTOR, "compile_threads: {set: x}")) == [
        'error: "x" is not of type int in torch 2.4 to 2.5',
        'error: "x" is not of type int or None in torch 2.6 and later',
    ]


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


FORCED = "if TORCHINDUCTOR_FX_GRAPH_CACHE is set, it overrides this %s in torch 2.7 and later"
FIRST = (
    "if TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT is set, it overrides this default in torch "
    "2.10 and later"
)


@pytest.mark.parametrize(
    ("strength", "more", "messages"),
    [
        ("default: false", "", [FORCED % "default", FIRST]),
        ("default: false, yields_to: TORCHINDUCTOR_FX_GRAPH_CACHE", "", [FIRST]),
        ("default: false", "env: {TORCHINDUCTOR_FX_GRAPH_CACHE: {delete: true}}", [FIRST]),
        (
            "default: false",
            "env: {TORCHINDUCTOR_FX_GRAPH_CACHE: {delete: true, since: '2.8.1'}}",
            [FORCED.replace("2.7 and later", "2.7") % "default", FIRST],
        ),
        ("set: false", "", [FORCED % "set"]),
        ("pin: false", "", []),
    ],
)
def test_variables_that_win(strength: str, more: str, messages: list[str]) -> None:
    entry = f"fx_graph_cache: {{{strength}}}"
    assert said(config(INDUCTOR, entry, more)) == [f"remark: {message}" for message in messages]


PADDING = "TORCHINDUCTOR_SHAPE_PADDING"
SHIPPED = "remark: torch 2.4 to 2.15 ships this value: "


@pytest.mark.parametrize(
    ("entry", "more", "messages"),
    [
        ("shape_padding: {default: false}", "", []),
        ("shape_padding: {pin: true}", "", []),
        (
            "shape_padding: {set: true}",
            "",
            [f"{SHIPPED}its only effect is to override {PADDING} in 2.4 to 2.15"],
        ),
        (f"shape_padding: {{default: true, yields_to: {PADDING}}}", "", [f"{SHIPPED}no effect"]),
        (
            "shape_padding: {default: true}",
            f"env: {{{PADDING}: {{delete: true}}}}",
            [f"{SHIPPED}no effect"],
        ),
        ("shape_padding: {default: true, switch: PAD}", "", []),
        ("epilogue_fusion: {default: true}", "", [f"{SHIPPED}no effect"]),
        (
            "epilogue_fusion: {default: 1}",
            "",
            ["error: 1 is not of type bool in torch 2.4 to 2.15"],
        ),
        (
            "epilogue_fusion: {default: true, since: '2.6', until: '2.8.1'}",
            "",
            ["remark: torch 2.6 to 2.8 ships this value: no effect"],
        ),
        ("compile_threads: {default: 8}", "", []),  # that depends on the machine
    ],
)
def test_values_that_torch_ships(entry: str, more: str, messages: list[str]) -> None:
    assert said(config(INDUCTOR, entry, more)) == messages


def test_a_set_overrules_what_a_default_does_not() -> None:
    entry, name = "run_gc_after_compile: {%s: true}", "TORCH_DYNAMO_RUN_GC_AFTER_COMPILE"
    shipped = "remark: torch 2.7 and later ships this value: "
    assert said(config(DYNAMO, entry % "set"))[1:] == [
        f"{shipped}its only effect is to override {name} in 2.7 and later"
    ]
    assert said(config(DYNAMO, entry % "default"))[1:] == [
        f"remark: if {name} is set, it overrides this default in torch 2.7 and later",
        f"{shipped}no effect",
    ]


def test_a_value_that_undoes_one_below_has_an_effect() -> None:
    base = config(INDUCTOR, "epilogue_fusion: {default: false}")
    assert said(config(INDUCTOR, "epilogue_fusion: {default: true}"), ALL, base) == []


def test_a_variable_that_is_deleted_below() -> None:
    entry = config(INDUCTOR, "shape_padding: {set: true}")
    base = policy(f"env: {{{PADDING}: {{delete: true}}}}")
    assert said(entry, ALL, base) == [f"{SHIPPED}no effect"]


def test_a_finding_has_its_place() -> None:
    (finding,) = lint(config(INDUCTOR, "max_autotun: {pin: true}"), versions("2.13"))
    assert str(finding) == (
        "f:4:5: config.torch._inductor.config.max_autotun: no such key in torch 2.13: did you mean "
        "max_autotune?"
    )


def test_an_entry_for_no_torch_that_was_asked_for() -> None:
    assert said(config(INDUCTOR, "qqq: {pin: true, until: '2.13'}"), "2.13..2.15") == []


# Each is said by the entry's own why: "As torch ships it", "Off unless", "up to 2.6".
REMARKS = {
    "capture-guard": [],
    "no-hipblaslt": [],
    "sglang-compile": [],
    "debug": [],
    "performance": [
        (INDUCTOR, "triton.multi_kernel", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "shape_padding", "torch 2.4 to 2.15 ships this value: no effect"),
        (DYNAMO, "recompile_limit", "in torch 2.4 to 2.6 this key is called cache_size_limit"),
    ],
    "safe": [
        (INDUCTOR, "max_autotune", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "max_autotune_pointwise", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "coordinate_descent_tuning", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "memory_planning", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "epilogue_fusion", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "pattern_matcher", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "reorder_for_locality", "torch 2.4 to 2.15 ships this value: no effect"),
        (INDUCTOR, "aggressive_fusion", "torch 2.4 to 2.15 ships this value: no effect"),
        (DYNAMO, "recompile_limit", "in torch 2.4 to 2.6 this key is called cache_size_limit"),
    ],
}


def test_the_built_in_policies() -> None:
    found = {}
    for name in load.names():
        *below, top = load.layers(load.policy(load.BUILTIN / f"{name}.yaml"))
        found[name] = [(f.severity, f.path, f.message) for f in lint(top, versions(ALL), below)]
    assert found == {
        name: [("remark", f"config.{module}.{key}", message) for module, key, message in remarks]
        for name, remarks in REMARKS.items()
    }


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


KNOWN = "2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 2.10, 2.11, 2.12, 2.13, 2.14, 2.15"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2.3", f"'2.3' is not one of the torch versions {KNOWN}"),
        ("2.6..2.16", f"'2.16' is not one of the torch versions {KNOWN}"),
        ("2.6,", f"'' is not one of the torch versions {KNOWN}"),
        ("2.6..2.7..2.8", f"'2.6..2.7..2.8' is not one of the torch versions {KNOWN}"),
        ("2.9..2.10,2.10..2.9", "'2.10..2.9' has no torch version: 2.9 comes first"),
    ],
)
def test_versions_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        versions(text)
    assert str(caught.value) == message


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

    assert config.fits(value, before, config._kinds(eval(declared, vars(typing)))) is fits
