"""The conditions of ``when``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocm_autopatch import plan
from rocm_autopatch.image import facts
from rocm_autopatch.policy import load, lower, when
from tests.names import NEW_IMAGE


@pytest.mark.parametrize(
    ("condition", "fact", "expected"),
    [
        (("torch", ">=2.6,<2.10"), "2.9.1+rocm7.2.0.lw.git7e1940d4", True),
        (("torch", ">=2.6,<2.10"), "2.10.0", False),
        (("torch", ">=2.15"), "2.15.0.dev20260801+rocm7.2", False),
        (("torch", "==2.13.*"), "2.13.0+rocm7.0", True),
        (("rocm", ">=7.0,<7.1"), "7.0.51831-a3e329ad8", True),
        (("rocm", ">=7.2.4"), "7.14", True),
        (("python", "<3.12"), "3.11.7", True),
        (("date", ">=2026-02-01,<2026-03-01"), "2026-02-19", True),
        (("date", ">=2026-02-20"), "2026-02-19", False),
        (("framework_version", ">0.5.8"), "0.5.8.post1", False),
        (("framework_version", ">=0.5.8.post1"), "0.5.8.post1", True),
        (("framework_version", ">=0.5.8"), "", False),
        (("framework_version", ">=0.5.8"), "main", False),
        (("accelerator", "rocm"), "rocm", True),
        (("accelerator", "rocm", "cuda"), "cpu", False),
        (("repository", "rocm/sgl-dev"), "rocm/sgl-dev", True),
        (("gfx", "gfx942", "gfx950"), "gfx950", True),
        (("tag", "v0.5.8*-rocm700-*"), "v0.5.8.post1-rocm700-mi35x-20260219", True),
        (("tag", "v0.5.9*", "*-mi30x*"), "v0.5.8.post1-rocm700-mi35x-20260219", False),
    ],
)
def test_holds(condition: tuple[str, ...], fact: str, expected: bool) -> None:
    name, *wanted = condition
    assert when.holds({name: tuple(wanted)}, {name: fact}) is expected


def test_facts_follow_from_the_image(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text(
        "version: 1\n"
        "when: {framework: sglang, rocm: '>=7', gfx: gfx950, date: '>=2026-01-01', tag: v0.5.8*}\n"
        "env: {A: {set: a}}\n"
    )

    def lowered(**known: str) -> plan.Plan:
        found = facts.gather_facts({name: (value, "a test") for name, value in known.items()}, ())
        return lower.lower(load.layers(load.policy(policy)), found.values())

    assert lowered(image=NEW_IMAGE)["env"]
    assert not lowered(image="rocm/sgl-dev:latest")["env"]
    assert not lowered(image="no reference")["env"]
    # What is known of the place itself comes before what its image's tag says.
    assert not lowered(image=NEW_IMAGE, rocm="6.4")["env"]


def test_built_in_policies_ask_only_for_what_is_known_when_the_wheel_is_built() -> None:
    for name in load.names():
        assert set(load.top(name).when) <= set(lower.BUILT_IN_FACTS)
