"""Facts: what a container tells, and what becomes of it beside a tag and a user's assumptions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocm_autopatch.image import clues
from rocm_autopatch.image.fact import ASSUMPTION, CLUE, TAG, KnownFacts, SourcedFact
from rocm_autopatch.image.facts import gather_facts
from tests.conftest import ROOT
from tests.messages import Golden
from tests.names import NEW_IMAGE

ASSUME = "ROCM_AUTOPATCH_ASSUME"
NODES = "sys/class/kfd/kfd/topology/nodes"
ROCM_FILE = "opt/rocm/.info/version"
VERSION_PY = "/opt/venv/lib/python3.10/site-packages/torch/version.py"

VERSIONS_TXT = (
    "BASE_IMAGE: rocm/dev-ubuntu-22.04:7.2.1-complete\n"
    "TRITON_BRANCH: ba5c1517\n"
    "TRITON_REPO: https://github.com/ROCm/triton.git\n"
    "PYTORCH_BRANCH: 8514f051\n"
)
OS_RELEASE = (
    'PRETTY_NAME="Ubuntu 22.04.5 LTS"\n'
    'NAME="Ubuntu"\n'
    'VERSION_ID="22.04"\n'
    'VERSION="22.04.5 LTS (Jammy Jellyfish)"\n'
    "VERSION_CODENAME=jammy\n"
    "ID=ubuntu\n"
    "ID_LIKE=debian\n"
)


def gpu(version: int) -> str:
    return f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {version}\nvendor_id 4098\n"


def make(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def install(site: Path, name: str, version: str) -> None:
    directory = f"{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    make(site, {f"{directory}/METADATA": text})


def tell(
    root: Path, environ: Mapping[str, str] | None = None, path: tuple[str, ...] = ()
) -> list[tuple[str, str, str]]:
    """What there is of clues, but for the Python, which is always there."""
    found = clues.gather_clues(environ or {}, root, path)
    assert {fact.kind for _, fact in found} == {CLUE}
    return [(name, fact.value, fact.source) for name, fact in found if name != "python"]


def known(**facts: str) -> dict[str, tuple[str, str]]:
    """What a start records; an assumed fact is written name_ =."""
    sources = {"image": "ROCM_AUTOPATCH_IMAGE"}
    return {
        name.rstrip("_"): (value, ASSUME if name[-1] == "_" else sources.get(name, VERSION_PY))
        for name, value in facts.items()
    }


def clue(name: str, value: str, source: str = "a clue") -> tuple[str, SourcedFact]:
    return name, SourcedFact(value, source, CLUE)


def rows(facts: KnownFacts) -> list[tuple[str, str, str]]:
    return [(c.name, c.used.value, c.other.value) for c in facts.contradictions]


# Clues.


def test_an_empty_container_tells_its_python(tmp_path: Path) -> None:
    version = SourcedFact(platform.python_version(), "this interpreter", CLUE)
    assert clues.gather_clues({}, tmp_path, ()) == [("python", version)]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((0, 90402), ["gfx942"]),
        ((90010,), ["gfx90a"]),
        ((90500, 90500), ["gfx950"]),
        ((110501,), ["gfx1151"]),
        ((120500,), ["gfx1250"]),
        ((100306,), ["gfx1036"]),
        ((90402, 90010), ["gfx90a", "gfx942"]),
        ((0,), []),
        ((904020,), []),
        ((99999,), []),
    ],
)
def test_gpus(tmp_path: Path, versions: tuple[int, ...], expected: list[str]) -> None:
    make(tmp_path, {f"{NODES}/{n}/properties": gpu(v) for n, v in enumerate(versions)})
    assert tell(tmp_path) == [("gfx", gfx, f"/{NODES}") for gfx in expected]


def test_an_unreadable_gpu_is_left_out(tmp_path: Path) -> None:
    # As where a container was given one GPU of two: the kernel refuses to show the other.
    make(tmp_path, {f"{NODES}/1/properties": gpu(90402)})
    (tmp_path / NODES / "2" / "properties").mkdir(parents=True)
    assert tell(tmp_path) == [("gfx", "gfx942", f"/{NODES}")]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GPU_ARCH": "gfx942"}, [("gfx", "gfx942", "GPU_ARCH")]),
        (
            {"GPU_ARCH": "gfx950-rocm724"},
            [("gfx", "gfx950", "GPU_ARCH"), ("rocm", "7.2.4", "GPU_ARCH")],
        ),
        (
            {"GPU_ARCH": "gfx1250-rocm1000"},
            [("gfx", "gfx1250", "GPU_ARCH"), ("rocm", "10.0.0", "GPU_ARCH")],
        ),
        (
            {"GPU_ARCH_LIST": "gfx942", "GPU_ARCH": "gfx950"},
            [("gfx", "gfx950", "GPU_ARCH"), ("gfx", "gfx942", "GPU_ARCH_LIST")],
        ),
        ({"GPU_ARCH_LIST": "gfx942"}, [("gfx", "gfx942", "GPU_ARCH_LIST")]),
        ({"GPU_ARCH_LIST": "gfx942;gfx950"}, []),
        ({"GPU_ARCH_LIST": "gfx942 gfx950"}, []),
        ({"GPU_ARCH": ""}, []),
        ({"GPU_ARCH": "native"}, []),
        ({"PYTORCH_ROCM_ARCH": "gfx942"}, []),
        ({"SGLANG_USE_AITER": "1"}, [("framework", "sglang", "SGLANG_USE_AITER")]),
        ({"SGLANG_USE_ROCM700A": "1"}, [("framework", "sglang", "SGLANG_USE_ROCM700A")]),
        ({"SGLANG_SET_CPU_AFFINITY": "1"}, [("framework", "sglang", "SGLANG_SET_CPU_AFFINITY")]),
        ({"SGLANG_TORCH_COMPILE_MODE": "default"}, []),
    ],
)
def test_variables(
    tmp_path: Path, environ: dict[str, str], expected: list[tuple[str, str, str]]
) -> None:
    assert tell(tmp_path, environ) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (ROCM_FILE, "7.2.0-38\n", [("rocm", "7.2.0")]),
        (ROCM_FILE, "7.0.0", [("rocm", "7.0.0")]),
        (ROCM_FILE, "not yet\n", []),
        ("app/versions.txt", VERSIONS_TXT, [("os", "ubuntu22.04"), ("rocm", "7.2.1")]),
        (
            "app/versions.txt",
            "VLLM_BASE_IMAGE=rocm/vllm-dev:base\nMORI_NIC_BACKEND=all\n",
            [("framework", "vllm")],
        ),
        ("app/versions.txt", "BASE_IMAGE: ?\n", []),
        # ROCm from wheels.
        (
            "app/versions.txt",
            "BASE_IMAGE: ubuntu:22.04\nPYTHON_VERSION: 3.12\nROCM_SDK_VERSION: 10.0.0\n"
            "TORCH_VERSION: 2.12.0+rocm10.0.0\n",
            [("rocm", "10.0.0")],
        ),
        ("app/versions.txt", "ROCM_SDK_VERSION: 7.15.0a20260630\n", [("rocm", "7.15.0")]),
        ("app/versions.txt", "ROCM_SDK_VERSION:\n", []),
        ("etc/os-release", OS_RELEASE, [("os", "ubuntu22.04")]),
        ("etc/os-release", "ID=debian\nVERSION_ID='12'\n", [("os", "debian12")]),
        ("etc/os-release", 'ID="rhel"\nVERSION_ID="9.4"\n', [("os", "rhel9.4")]),
        ("etc/os-release", "ID=arch\n", []),
        ("etc/os-release", 'VERSION_ID="22.04"\n', []),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, expected: list[tuple[str, str]]) -> None:
    make(tmp_path, {name: text})
    assert sorted(tell(tmp_path)) == [(fact, value, f"/{name}") for fact, value in expected]


def test_the_system_is_said_as_by_a_tag(tmp_path: Path) -> None:
    make(tmp_path, {"etc/os-release": OS_RELEASE})
    image = "rocm/pytorch:rocm7.2_ubuntu22.04_py3.10_pytorch_release_2.9.1"
    facts = gather_facts(known(image=image), clues.gather_clues({}, tmp_path, ()))
    assert facts.facts["os"] == SourcedFact("ubuntu22.04", "/etc/os-release", CLUE)
    assert "os" not in [c.name for c in facts.contradictions]


def test_the_order_of_trust(tmp_path: Path) -> None:
    files = {
        f"{NODES}/0/properties": gpu(90402),
        ROCM_FILE: "7.0.0\n",
        "app/versions.txt": VERSIONS_TXT + "VLLM_BASE_IMAGE=rocm/vllm-dev:base\n",
        "etc/os-release": OS_RELEASE.replace("22.04", "24.04"),
    }
    site = tmp_path / "site"
    install(site, "rocm-sdk-core", "10.0.0")
    install(site, "vllm", "0.11.2")
    environ = {"GPU_ARCH": "gfx950-rocm724", "SGLANG_USE_AITER": "1"}
    told = tell(make(tmp_path, files), environ, (str(site),))
    order = {name: [v for n, v, _ in told if n == name] for name, _, _ in told}
    assert order == {
        "gfx": ["gfx942", "gfx950"],
        "rocm": ["7.0.0", "10.0.0", "7.2.4", "7.2.1"],
        "framework": ["sglang", "vllm", "vllm"],
        "vllm": ["0.11.2"],
        "os": ["ubuntu24.04", "ubuntu22.04"],
    }


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"sglang": "0.5.8.post1"}, ["framework=sglang", "sglang=0.5.8.post1"]),
        ({"vllm": "0.11.2+rocm700"}, ["framework=vllm", "vllm=0.11.2+rocm700"]),
        ({"atom": "0.1.4"}, []),
        ({"sglang": "0.5.8", "vllm": "0.11.2"}, ["sglang=0.5.8", "vllm=0.11.2"]),
        ({"rocm-sdk-core": "10.0.0"}, ["rocm=10.0.0"]),
        ({"rocm-sdk-core": "7.10.0a20251015"}, ["rocm=7.10.0"]),
        ({"sglang": "main"}, []),
        ({"sglang-router": "0.3.0", "vllm-omni": "0.2"}, []),
    ],
)
def test_distributions(tmp_path: Path, installed: dict[str, str], expected: list[str]) -> None:
    site = tmp_path / "site-packages"
    for name, version in installed.items():
        install(site, name, version)
    told = tell(tmp_path, path=(str(tmp_path / "nothing"), str(site)))
    assert [f"{name}={value}" for name, value, _ in told] == expected
    assert all(source.endswith(f" in {site}") for _, _, source in told)


def test_a_distribution_of_a_development_install(tmp_path: Path) -> None:
    text = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n"
    make(tmp_path, {"python/sglang.egg-info/PKG-INFO": text})
    told = tell(tmp_path, path=(str(tmp_path / "python"),))
    assert ("sglang", "0.5.9", f"sglang in {tmp_path / 'python'}") in told


def test_a_venv_of_sglang(tmp_path: Path) -> None:
    site = tmp_path / "opt/venv/lib/python3.10/site-packages"
    install(site, "sglang", "0.5.8.post1")
    make(site, {"sglang/__init__.py": "", "__editable__.sglang-0.5.8.post1.pth": "/sgl-workspace"})
    facts = gather_facts({}, clues.gather_clues({}, tmp_path, ["", str(site)]))
    source = f"sglang in {site}"
    assert facts.facts["framework"] == SourcedFact("sglang", source, CLUE)
    assert facts.facts["framework_version"] == SourcedFact("0.5.8.post1", source, CLUE)


def test_the_path_is_sys_path_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "sglang", "0.5.8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert ("sglang", SourcedFact("0.5.8", f"sglang in {tmp_path}", CLUE)) in clues.gather_clues(
        {}, tmp_path
    )


CLUE_FILES = (f"{NODES}/0/properties", ROCM_FILE, "app/versions.txt", "etc/os-release")
METADATA = ("sglang-0.5.8.dist-info/METADATA", "rocm_sdk_core-10.0.0.dist-info/METADATA")


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "forbidden", "zeros"])
def test_what_is_no_file_tells_nothing(tmp_path: Path, kind: str) -> None:
    for name in (*CLUE_FILES, *METADATA):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        if kind == "directory":
            file.mkdir()
        elif kind == "pipe":
            os.mkfifo(file)
        elif kind == "loop":
            file.symlink_to(file)
        elif kind == "forbidden":
            # Refused to root too: nothing is mapped at its beginning.
            file.symlink_to("/proc/self/mem")
        elif kind == "zeros":
            file.write_bytes(bytes(100_000))
    assert tell(tmp_path, path=(str(tmp_path),)) == []


def test_only_the_beginning_of_a_file_is_read(tmp_path: Path) -> None:
    rest = "#" * 65536 + "\nVLLM_BASE_IMAGE=x\n"
    make(tmp_path, {"app/versions.txt": VERSIONS_TXT + rest})
    assert [name for name, _, _ in tell(tmp_path)] == ["rocm", "os"]


@given(data=st.binary() | st.text().map(str.encode), name=st.sampled_from(CLUE_FILES + METADATA))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(data)
    found = gather_facts({}, clues.gather_clues({}, root, [str(root)]))
    assert all(found.values().values())


@given(st.dictionaries(st.sampled_from(["GPU_ARCH", "GPU_ARCH_LIST"]), st.text()))
def test_no_variable_raises(environ: dict[str, str]) -> None:
    assert gather_facts({}, clues.gather_clues(environ, Path("/nowhere"), ()))


# Facts put together.


def test_kinds_and_sources() -> None:
    facts = gather_facts(
        known(gfx_="gfx942", torch="2.9.1", image="x:py3.12"), [clue("os", "debian12")]
    )
    assert facts.facts == {
        "gfx": SourcedFact("gfx942", ASSUME, ASSUMPTION),
        "torch": SourcedFact("2.9.1", VERSION_PY, CLUE),
        "image": SourcedFact("x:py3.12", "ROCM_AUTOPATCH_IMAGE", CLUE),
        "os": SourcedFact("debian12", "a clue", CLUE),
        "repository": SourcedFact("x", "image, by ROCM_AUTOPATCH_IMAGE", TAG),
        "python": SourcedFact("3.12", "image, by ROCM_AUTOPATCH_IMAGE", TAG),
        "tag": SourcedFact("py3.12", "image, by ROCM_AUTOPATCH_IMAGE", TAG),
    }


def test_values_have_the_image_and_its_tag() -> None:
    assert gather_facts(known(image=NEW_IMAGE), ()).values() == {
        "image": NEW_IMAGE,
        "tag": "v0.5.8.post1-rocm700-mi35x-20260219",
        "repository": "rocm/sgl-dev",
        "accelerator": "rocm",
        "framework": "sglang",
        "sglang": "0.5.8.post1",
        "framework_version": "0.5.8.post1",
        "rocm": "7.0.0",
        "gfx": "gfx950",
        "date": "2026-02-19",
    }


@pytest.mark.parametrize("image", ["no reference", "", "rocm/VLLM:1", "x:" + "y" * 200])
def test_an_image_that_is_no_reference_gives_no_facts(image: str) -> None:
    facts = gather_facts(known(image=image), ())
    assert (facts.values(), facts.contradictions) == ({"image": image}, ())


def test_an_image_without_a_tag() -> None:
    assert "tag" not in gather_facts(known(image="rocm/vllm"), ()).values()


@pytest.mark.parametrize(
    ("told", "expected", "contradictions"),
    [
        ("7.2 7.2.4", "7.2.4", []),
        ("7.2.4 7.2", "7.2.4", []),
        ("7.2 7.2.4 7.2.1", "7.2.4", ["7.2.1"]),
        ("7.2.0 7.2.4", "7.2.0", ["7.2.4"]),
        ("7.2 7.0 7.2.4", "7.2.4", ["7.0"]),
        ("7.2 7.20", "7.2", ["7.20"]),
        ("3.10 3.10.12", "3.10.12", []),
        ("2.9.1 2.9.1+rocm7.2.0", "2.9.1+rocm7.2.0", []),
        ("2.9.1+rocm7.2 2.9.1+cu129", "2.9.1+rocm7.2", ["2.9.1+cu129"]),
        ("0.5.8 0.5.8.post1", "0.5.8", ["0.5.8.post1"]),
        ("0.5.8rc1 0.5.8", "0.5.8rc1", ["0.5.8"]),
        ("gfx942 gfx942", "gfx942", []),
        ("gfx90 gfx90a", "gfx90", ["gfx90a"]),
        ("gfx942 gfx950 gfx90a", "gfx942", ["gfx950", "gfx90a"]),
    ],
)
def test_agreement(told: str, expected: str, contradictions: list[str]) -> None:
    facts = gather_facts(
        {}, [clue("x", value, f"source {n}") for n, value in enumerate(told.split())]
    )
    assert facts.values() == {"x": expected}
    assert rows(facts) == [("x", expected, other) for other in contradictions]


def test_the_more_precise_source_is_named() -> None:
    facts = gather_facts({}, [clue("rocm", "7.2", "one"), clue("rocm", "7.2.4", "another")])
    assert facts.facts["rocm"] == SourcedFact("7.2.4", "another", CLUE)


def test_assumption_before_clue_before_tag() -> None:
    told = [clue("gfx", "gfx942")]
    facts = gather_facts(known(gfx_="gfx90a", image=NEW_IMAGE), told)
    assert facts.facts["gfx"] == SourcedFact("gfx90a", ASSUME, ASSUMPTION)
    assert rows(facts) == [("gfx", "gfx90a", "gfx942"), ("gfx", "gfx90a", "gfx950")]
    assert gather_facts(known(image=NEW_IMAGE), told).facts["gfx"] == told[0][1]
    assert gather_facts(known(image=NEW_IMAGE), ()).facts["gfx"].kind == TAG


def test_an_assumption_is_not_refined() -> None:
    facts = gather_facts(known(rocm_="7.2"), [clue("rocm", "7.2.4")])
    assert facts.facts["rocm"] == SourcedFact("7.2", ASSUME, ASSUMPTION)
    assert facts.contradictions == ()


def test_what_an_assumed_image_says_comes_before_clues_and_is_not_refined() -> None:
    told = [clue("gfx", "gfx942"), clue("python", "3.12.3"), clue("os", "debian12")]
    image = "rocm/vllm:rocm7.0.0_py3.12_gfx950"
    facts = gather_facts(known(image_=image, torch="2.9.1+rocm7.2.0"), told)
    source = f"image, by {ASSUME}"
    assert facts.facts["gfx"] == SourcedFact("gfx950", source, TAG)
    assert facts.facts["rocm"] == SourcedFact("7.0.0", source, TAG)
    assert facts.facts["python"] == SourcedFact("3.12", source, TAG)
    assert facts.facts["os"] == SourcedFact("debian12", "a clue", CLUE)
    assert rows(facts) == [("rocm", "7.0.0", "7.2.0"), ("gfx", "gfx950", "gfx942")]


@pytest.mark.parametrize("name", ["image", "image_"])
def test_no_tag_overrides_what_torch_says_of_itself(name: str) -> None:
    image = "rocm/pytorch:rocm7.2_ubuntu22.04_py3.10_pytorch_release_2.9.1"
    facts = gather_facts(known(**{name: image}, torch="2.13.0", accelerator="cpu"), ())
    assert (facts.values()["torch"], facts.values()["accelerator"]) == ("2.13.0", "cpu")
    assert {("torch", "2.13.0", "2.9.1"), ("accelerator", "cpu", "rocm")} <= set(rows(facts))


def test_a_source_that_contradicts_itself_does_not_count(tmp_path: Path, golden: Golden) -> None:
    make(tmp_path, {f"{NODES}/{n}/properties": gpu(v) for n, v in enumerate((90402, 90010))})
    facts = gather_facts({}, clues.gather_clues({}, tmp_path, ()))
    assert "gfx" not in facts.facts
    (contradiction,) = facts.contradictions
    golden(str(contradiction))
    facts = gather_facts({}, clues.gather_clues({"GPU_ARCH": "gfx942"}, tmp_path, ()))
    assert facts.facts["gfx"].source == "GPU_ARCH"
    assert len(facts.contradictions) == 1


def test_a_contradiction_is_a_sentence() -> None:
    facts = gather_facts(known(image=NEW_IMAGE), [clue("rocm", "7.2.0", "/opt/rocm/.info/version")])
    assert [str(c) for c in facts.contradictions] == [
        "rocm is 7.2.0 (/opt/rocm/.info/version), not 7.0.0 (image, by ROCM_AUTOPATCH_IMAGE)"
    ]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"torch": "2.9.1+rocm7.2.0.lw.git7e1940d4"}, ("7.2.0", "torch")),
        ({"torch": "2.11.0+rocm7.2"}, ("7.2", "torch")),
        ({"torch": "2.12.0+rocm10.0.0"}, ("10.0.0", "torch")),
        ({"torch": "2.10.0a0+rocm7.10.0a20251015"}, ("7.10.0", "torch")),
        ({"torch": "2.11.0a0+devrocm7.13.0.dev0-abc"}, ("7.13.0", "torch")),
        ({"torch": "2.9.1+lw.rocm7.2.0.git7e1940d4"}, ("7.2.0", "torch")),
        ({"torch": "2.9.1+rocmsdk20260116", "hip": "7.2.26024-f6f897bd3d"}, ("7.2", "hip")),
        ({"torch": "2.11.0+gfx1151", "hip": "7.2.53211"}, ("7.2", "hip")),
        ({"torch": "2.9.1+cu129"}, None),
        ({"torch": "2.13.0+cpu"}, None),
        ({"torch": "2.9.0a0+git7bcbafe"}, None),
        ({"torch": "2.9.0a0+git7bcbafe", "hip": "7.0.51831-a3e329ad8"}, ("7.0", "hip")),
        ({"hip": "7.2.26015-fc0010cf6a"}, ("7.2", "hip")),
        ({"hip": "6.4.43482-0f2d60242"}, ("6.4", "hip")),
        # HIP's version is ROCm's no more.
        ({"hip": "7.15.26333"}, None),
        ({"torch": "2.13.0+rocm10.0.0", "hip": "7.15.26333"}, ("10.0.0", "torch")),
        ({"torch": "2.10.0a0+rocm7.10.0a20251015", "hip": "7.1.25413-77"}, ("7.10.0", "torch")),
        # torch.version.rocm, from torch 2.10 on.
        ({"rocm": "7.10.0", "hip": "7.1.25413"}, ("7.10.0", "")),
    ],
)
def test_rocm_of_torch(facts: dict[str, str], expected: tuple[str, str] | None) -> None:
    found = gather_facts(known(**facts), ())
    assert found.contradictions == ()
    assert found.values().items() >= facts.items()
    rocm = found.facts.get("rocm")
    if not expected:
        assert rocm is None
    else:
        value, by = expected
        assert rocm == SourcedFact(value, f"{by}, by {VERSION_PY}" if by else VERSION_PY, CLUE)


def test_torch_is_trusted_most_with_rocm_and_hip_least() -> None:
    told = [clue("rocm", "6.4.1")]
    facts = gather_facts(known(torch="2.9.1+rocm7.2.0", hip="7.2.26015"), told)
    assert facts.values()["rocm"] == "7.2.0"
    facts = gather_facts(known(hip="7.2.26015"), told)
    assert facts.values()["rocm"] == "6.4.1"
    assert rows(facts) == [("rocm", "6.4.1", "7.2")]
    assert gather_facts(known(hip="7.2.26015", image="x:rocm700"), ()).values()["rocm"] == "7.2"


def test_what_follows_from_an_assumed_torch_is_assumed() -> None:
    facts = gather_facts(
        known(torch_="2.9.1+rocm7.2"), [clue("rocm", "7.0.0", "1"), clue("rocm", "7.2.4", "2")]
    )
    assert facts.facts["rocm"] == SourcedFact("7.2", f"torch, by {ASSUME}", ASSUMPTION)
    assert rows(facts) == [("rocm", "7.2", "7.0.0")]
    assert gather_facts(known(torch_="2.9.1+rocm7.2", rocm_="6.4"), ()).values()["rocm"] == "6.4"


def test_an_assumed_rocm_is_held_against_hip() -> None:
    facts = gather_facts(known(rocm_="6.4", hip="7.0.51831"), ())
    assert rows(facts) == [("rocm", "6.4", "7.0")]


@pytest.mark.parametrize(
    ("facts", "told", "expected"),
    [
        # One is installed, and the tag knows better or worse.
        ({}, "framework=vllm vllm=0.11.2+rocm700", "0.11.2+rocm700"),
        ({"image": "rocm/vllm:rocm7.0.0_vllm_0.11.2"}, "framework=vllm vllm=0.11.3", "0.11.3"),
        ({"image": "rocm/vllm:rocm7.0.0_vllm_0.11.2"}, "framework=vllm", "0.11.2"),
        # Two are, and a variable or the tag says which.
        ({}, "framework=sglang sglang=0.5.8 vllm=0.11.2", "0.5.8"),
        ({}, "sglang=0.5.8 vllm=0.11.2", None),
        ({"image": "lmsysorg/sglang:latest"}, "sglang=0.5.8 vllm=0.11.2", "0.5.8"),
        # The version of another framework is none.
        ({"image": "rocm/vllm:rocm7.0.0_vllm_0.11.2"}, "framework=sglang", None),
        ({"image_": "rocm/vllm:latest"}, "framework=sglang sglang=0.5.8", None),
        ({"framework_": "vllm"}, "framework=sglang sglang=0.5.8", None),
        # PyTorch's is torch's.
        ({"image": "rocm/pytorch:latest", "torch": "2.9.1+rocm7.2"}, "", "2.9.1+rocm7.2"),
        ({"image": "rocm/pytorch:pytorch_release_2.9.1"}, "", "2.9.1"),
        ({"torch": "2.9.1"}, "", None),
        ({"framework_version_": "1.0"}, "framework=sglang sglang=0.5.8", "1.0"),
        ({"framework_version_": "1.0"}, "", "1.0"),
    ],
)
def test_framework_version(facts: dict[str, str], told: str, expected: str | None) -> None:
    words = [word.split("=") for word in told.split()]
    found = gather_facts(known(**facts), [clue(name, value) for name, value in words])
    assert found.values().get("framework_version") == expected


def test_assumptions_that_contradict_each_other() -> None:
    facts = gather_facts(known(framework_version_="1.0", framework_="pytorch", torch_="2.9.1"), ())
    assert facts.values()["framework_version"] == "1.0"
    assert [str(c) for c in facts.contradictions] == [
        f"framework_version is 1.0 ({ASSUME}), not 2.9.1 ({ASSUME})"
    ]


def test_an_assumed_version_is_held_against_the_installed_one() -> None:
    facts = gather_facts(
        known(framework_version_="1.0", framework_="vllm"), [clue("vllm", "0.11.2")]
    )
    assert rows(facts) == [("framework_version", "1.0", "0.11.2")]


def test_a_container_of_sglang_that_was_made_from_vllm(tmp_path: Path) -> None:
    site = tmp_path / "opt/venv/lib/python3.10/site-packages"
    install(site, "sglang", "0.5.8.post1")
    install(site, "vllm", "0.9.2rc2.dev2632+gdd5ba72e1.rocm700")
    root = make(
        tmp_path,
        {
            f"{NODES}/0/properties": "cpu_cores_count 64\ngfx_target_version 0\n",
            f"{NODES}/2/properties": gpu(90500),
            ROCM_FILE: "7.0.0-38\n",
            "app/versions.txt": VERSIONS_TXT.replace("7.2.1", "7.0"),
            "etc/os-release": OS_RELEASE,
        },
    )
    environ = {"GPU_ARCH": "gfx950", "GPU_ARCH_LIST": "gfx950", "SGLANG_USE_AITER": "1"}
    start = known(
        image="rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210",
        torch="2.9.0a0+git7bcbafe",
        accelerator="rocm",
        hip="7.0.51831-a3e329ad8",
    )
    facts = gather_facts(start, clues.gather_clues(environ, root, [str(site)]))
    assert facts.values() == {
        "image": "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210",
        "tag": "v0.5.8-rocm700-mi35x-20260210",
        "repository": "rocm/sgl-dev",
        "date": "2026-02-10",
        "accelerator": "rocm",
        "torch": "2.9.0a0+git7bcbafe",
        "hip": "7.0.51831-a3e329ad8",
        "rocm": "7.0.0",
        "gfx": "gfx950",
        "framework": "sglang",
        "framework_version": "0.5.8.post1",
        "sglang": "0.5.8.post1",
        "vllm": "0.9.2rc2.dev2632+gdd5ba72e1.rocm700",
        "python": platform.python_version(),
        "os": "ubuntu22.04",
    }
    assert [str(c) for c in facts.contradictions] == [
        f"sglang is 0.5.8.post1 (sglang in {site}), not 0.5.8 (image, by ROCM_AUTOPATCH_IMAGE)"
    ]


def test_clues_are_this_containers_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_AITER", "1")
    assert gather_facts({}).facts["framework"] == SourcedFact("sglang", "SGLANG_USE_AITER", CLUE)
    assert gather_facts({}, ()).facts == {}


values = st.text() | st.sampled_from([NEW_IMAGE, "rocm/pytorch", "7.2", "7.2.4", "2.9.1+rocm7.2"])
names = st.sampled_from(["image", "torch", "hip", "rocm", "framework", "framework_version", "gfx"])


@given(
    st.dictionaries(names, st.tuples(values, st.sampled_from([ASSUME, VERSION_PY]))),
    st.lists(
        st.tuples(names, st.builds(SourcedFact, values, st.sampled_from("abc"), st.just(CLUE)))
    ),
)
def test_nothing_is_dropped(
    start: dict[str, tuple[str, str]], told: list[tuple[str, SourcedFact]]
) -> None:
    facts = gather_facts(start, told)
    for name, (value, source) in start.items():
        if source == ASSUME:
            assert facts.facts[name] == SourcedFact(value, ASSUME, ASSUMPTION)
    parts = [fact for c in facts.contradictions for fact in (c.used, c.other)]
    for name, fact in told:
        used = facts.facts.get(name)
        agreed = used and (used.value.startswith(fact.value) or fact.value.startswith(used.value))
        assert (
            agreed or fact in parts or fact.source in {c.used.source for c in facts.contradictions}
        )


def test_importing_the_rules_imports_no_metadata() -> None:
    code = (
        "import rocm_autopatch.image.facts, rocm_autopatch.image.clues, sys\n"
        "print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == "False\n"
