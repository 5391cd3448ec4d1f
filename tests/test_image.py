"""Image references: their parts, and what real ones say. The lines of image_facts.txt were reviewed
one by one; a change in them is to be read, not regenerated."""

from __future__ import annotations

import string
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from packaging.version import Version

from rocm_autopatch.image.reference import ImageReference, parse_reference, reference_facts
from tests.messages import Golden

KEYS = (
    *("accelerator", "repository", "framework", "framework_version", "rocm", "gfx", "gpu"),
    *("python", "torch", "os", "date", "flavour"),
)
DIGEST = "sha256:" + "0123456789abcdef" * 4


def read_rows() -> list[tuple[str, str]]:
    text = (Path(__file__).parent / "data" / "image_facts.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(row[0], row[2]) for row in (line.partition(" ") for line in lines)]


ROWS = read_rows()
OTHERS = [reference for reference, words in ROWS if "accelerator=rocm" not in words.split()]


def say(text: str) -> str:
    """The facts of *text* as image_facts.txt writes them."""
    found = reference_facts(parse_reference(text))
    del found["repository"]
    return " ".join(f"{key}={value}" for key, value in found.items())


def test_facts_of_real_references() -> None:
    assert (len(ROWS), len(OTHERS)) == (401, 121)
    assert [(reference, say(reference)) for reference, _ in ROWS] == ROWS


def test_real_references_are_short_already() -> None:
    assert [parse_reference(reference).short for reference, _ in ROWS] == [row[0] for row in ROWS]


def test_versions_are_readable() -> None:
    for reference, _ in ROWS:
        found = reference_facts(parse_reference(reference))
        for key in ("framework_version", "rocm", "python", "torch"):
            assert key not in found or Version(found[key])


@pytest.mark.parametrize(
    ("text", "parts", "short"),
    [
        ("vllm", ("", "vllm", "", ""), "vllm"),
        ("rocm/vllm:latest", ("", "rocm/vllm", "latest", ""), "rocm/vllm:latest"),
        ("docker.io/rocm/vllm:a", ("docker.io", "rocm/vllm", "a", ""), "rocm/vllm:a"),
        ("index.docker.io/rocm/vllm", ("index.docker.io", "rocm/vllm", "", ""), "rocm/vllm"),
        ("docker.io/library/ubuntu:24.04", ("docker.io", "library/ubuntu", "24.04", ""), None),
        ("library/ubuntu:24.04", ("", "library/ubuntu", "24.04", ""), "ubuntu:24.04"),
        ("library/a/b", ("", "library/a/b", "", ""), "library/a/b"),
        ("docker.io/a.b/c", ("docker.io", "a.b/c", "", ""), "docker.io/a.b/c"),
        ("quay.io/library/x", ("quay.io", "library/x", "", ""), "quay.io/library/x"),
        ("localhost/x:1", ("localhost", "x", "1", ""), "localhost/x:1"),
        ("localhost:5000/a/b", ("localhost:5000", "a/b", "", ""), "localhost:5000/a/b"),
        ("my-host:5000/a/b:1", ("my-host:5000", "a/b", "1", ""), "my-host:5000/a/b:1"),
        ("MYHOST/a:1", ("MYHOST", "a", "1", ""), "MYHOST/a:1"),
        ("[fe80::1]:5000/a:1", ("[fe80::1]:5000", "a", "1", ""), "[fe80::1]:5000/a:1"),
        (f"rocm/vllm@{DIGEST}", ("", "rocm/vllm", "", DIGEST), "rocm/vllm"),
        (f"h:1/x:v1@{DIGEST}", ("h:1", "x", "v1", DIGEST), "h:1/x:v1"),
    ],
)
def test_parts(text: str, parts: tuple[str, str, str, str], short: str | None) -> None:
    reference = parse_reference(text)
    assert reference == ImageReference(*parts)
    assert reference.short == (short or "ubuntu:24.04")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        "rocm/vllm:",
        "rocm/vllm:a b",
        "rocm/vllm:-a",
        pytest.param("rocm/vllm:" + "a" * 129, id="a tag of 129 characters"),
        "rocm/vllm:a\n",
        "rocm/VLLM",
        "host:port/x",
        "rocm//vllm",
        "https://hub.docker.com/r/rocm/vllm",
        "rocm/vllm@",
        "rocm/vllm@sha256:0123",
        pytest.param("rocm/vllm@sha256:" + "0" * 63, id="a digest of 63 digits"),
        pytest.param("0" * 64, id="an ID"),
        pytest.param("a" * 256, id="a name of 256 characters"),
    ],
)
def test_what_is_no_reference(text: str, golden: Golden) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_reference(text)
    golden(str(caught.value))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # No tag: nothing of one, and no "latest".
        ("rocm/vllm", "accelerator=rocm framework=vllm"),
        (f"rocm/vllm@{DIGEST}", "accelerator=rocm framework=vllm"),
        ("ubuntu", ""),
        # A number alone is the version of a framework that the repository is for.
        (
            "rocm/sgl-dev:0.5.9-rocm720-mi35x",
            "accelerator=rocm framework=sglang framework_version=0.5.9 rocm=7.2.0 gfx=gfx950",
        ),
        (
            "vllm/vllm-openai-rocm:0.19.0",
            "accelerator=rocm framework=vllm framework_version=0.19.0",
        ),
        ("vllm/x:0.19.0-sglang", "framework=sglang flavour=0.19.0"),
        ("rocm/pytorch:0.19.0", "accelerator=rocm framework=pytorch flavour=0.19.0"),
        # A preview of ROCm, in AMD's repositories.
        (
            "rocm/vllm-dev:preview7.1_1117_rc1_20251112",
            "accelerator=rocm framework=vllm rocm=7.1 date=2025-11-12 flavour=preview_1117_rc1",
        ),
        ("rocm/vllm-dev:preview0.9", "accelerator=rocm framework=vllm flavour=preview0.9"),
        ("x:preview7.1_1117", "flavour=preview7.1_1117"),
        # A dash after rocm, unless the number can't be ROCm's.
        ("x:v2.11.0-rocm-7.2.1", "accelerator=rocm rocm=7.2.1 flavour=v2.11.0"),
        (
            "x:rocm-7.2.0-vllm-0.16.0",
            "accelerator=rocm framework=vllm framework_version=0.16.0 rocm=7.2.0",
        ),
        ("x:rocm-2.9.1", "accelerator=rocm flavour=2.9.1"),
        ("x:rocm-v7.2.1", "accelerator=rocm flavour=v7.2.1"),
        ("x:rocm7-6.2", "accelerator=rocm rocm=7 flavour=6.2"),
        # GPUs by the name of their architecture.
        ("x:server-rdna3", "accelerator=rocm gpu=rdna3 flavour=server"),
        ("x:cdna", "accelerator=rocm gpu=cdna"),
        (
            "rocm/vllm:preview_releases_v0.12.0",
            "accelerator=rocm framework=vllm framework_version=0.12.0 flavour=preview_releases",
        ),
        # What is left is as it was written.
        (
            "rocm/jax-training:maxtext-v25.7-jax060",
            "accelerator=rocm framework=jax flavour=maxtext-v25.7-jax060",
        ),
        # ROCm codes.
        ("x:rocm7", "accelerator=rocm rocm=7"),
        ("x:rocm10", "accelerator=rocm rocm=10"),
        ("x:rocm630", "accelerator=rocm rocm=6.3.0"),
        ("x:rocm1000", "accelerator=rocm rocm=10.0.0"),
        ("x:rocm7_14-20260101", "accelerator=rocm rocm=7.14 date=2026-01-01"),
        ("x:rocm7_20260101", "accelerator=rocm rocm=7 date=2026-01-01"),
        ("x:rocm7_vllm_0.9.1", "accelerator=rocm framework=vllm framework_version=0.9.1 rocm=7"),
        ("x:0.6.8-rocm", "accelerator=rocm flavour=0.6.8"),
        # Codes of which the digits can be read in two ways.
        ("x:rocm72", "accelerator=rocm flavour=rocm72"),
        ("x:rocm711", "accelerator=rocm flavour=rocm711"),
        ("x:rocm101", "accelerator=rocm flavour=rocm101"),
        ("x:rocm100", "accelerator=rocm flavour=rocm100"),
        # In vLLM's tags they are two numbers, unless three are as likely.
        ("x:vllm-rocm72", "accelerator=rocm framework=vllm rocm=7.2"),
        (
            "vllm/vllm-openai-rocm:nightly-rocm72",
            "accelerator=rocm framework=vllm rocm=7.2 flavour=nightly",
        ),
        (
            "vllm/vllm-openai-rocm:nightly-rocm100-3df4ae153eb385e27b52f26c81f8edb9e20b9984",
            "accelerator=rocm framework=vllm rocm=10.0 "
            "flavour=nightly-3df4ae153eb385e27b52f26c81f8edb9e20b9984",
        ),
        (
            "vllm/vllm-openai-rocm:nightly-rocm714",
            "accelerator=rocm framework=vllm rocm=7.14 flavour=nightly",
        ),
        ("rocm/vllm:rocm721", "accelerator=rocm framework=vllm rocm=7.2.1"),
        ("rocm/vllm:rocm711", "accelerator=rocm framework=vllm flavour=rocm711"),
        ("rocm/vllm:rocm72-rocm700", "accelerator=rocm framework=vllm flavour=rocm72-rocm700"),
        # The same in two forms, and two different things.
        ("x:rocm7.0-rocm700", "accelerator=rocm rocm=7.0.0"),
        ("x:rocm7.0-rocm720", "accelerator=rocm flavour=rocm7.0-rocm720"),
        ("x:mi30x-mi35x", "accelerator=rocm flavour=mi30x-mi35x"),
        ("x:mi30x-mi45x", "accelerator=rocm flavour=mi30x-mi45x"),
        ("x:vllm-sglang-0.5.9", "flavour=vllm-sglang-0.5.9"),
        ("x:rocm7.x", "accelerator=rocm flavour=rocm7.x"),
        ("x:rocm-cuda", "flavour=rocm-cuda"),
        # GPUs.
        ("x:MI300X", "accelerator=rocm gfx=gfx942"),
        ("x:v25.9_gfx950", "accelerator=rocm gfx=gfx950 flavour=v25.9"),
        ("x:rocm10-mi45x", "accelerator=rocm rocm=10 gfx=gfx1250"),
        ("x:mi450", "accelerator=rocm gfx=gfx1250"),
        ("x:MI455X", "accelerator=rocm gfx=gfx1250"),
        ("x:gfx94x", "accelerator=rocm gpu=gfx94x"),
        # Another accelerator counts before the repository, and a name before a GPU.
        ("rocm/vllm:cu129", "accelerator=cuda framework=vllm flavour=cu129"),
        ("rocm/vllm:cpu", "accelerator=cpu framework=vllm"),
        ("rocm/vllm:xpu", "framework=vllm flavour=xpu"),
        ("rocm/vllm:npu", "framework=vllm flavour=npu"),
        (
            "a/vllm-cpu-release-repo:v0.9.1",
            "accelerator=cpu framework=vllm framework_version=0.9.1",
        ),
        ("x:rocm700-b200", "accelerator=rocm rocm=7.0.0 flavour=b200"),
        # AMD's processors are no GPUs.
        ("lmsysorg/sglang:v0.5.5-amd64", "framework=sglang framework_version=0.5.5 flavour=amd64"),
        # Versions that are the framework's, beside its name or in its repository.
        (
            "rocm/vllm:nightly-v0.9.1",
            "accelerator=rocm framework=vllm framework_version=0.9.1 flavour=nightly",
        ),
        (
            "rocm/vllm:rocm7-v0.9.1",
            "accelerator=rocm framework=vllm framework_version=0.9.1 rocm=7",
        ),
        ("x:sglang-0.5.9-v2.0", "framework=sglang framework_version=0.5.9 flavour=v2.0"),
        # Versions that are not the framework's.
        ("x:v0.5.9-rocm720", "accelerator=rocm rocm=7.2.0 flavour=v0.5.9"),
        ("rocm/vllm:aiter-v0.1.15", "accelerator=rocm framework=vllm flavour=aiter-v0.1.15"),
        ("rocm/pytorch-training:v25.4", "accelerator=rocm framework=pytorch flavour=v25.4"),
        ("rocm/infera:sglang-v0.1.1", "framework=sglang flavour=v0.1.1"),
        ("nvcr.io/nvidia/pytorch:25.04-py3", "framework=pytorch python=3 flavour=25.04"),
        (
            "pytorch/pytorch:2.7.0-cuda12.6",
            "accelerator=cuda framework=pytorch framework_version=2.7.0 torch=2.7.0 "
            "flavour=cuda12.6",
        ),
        # Dates, and digits that are none.
        ("x:20261332", "flavour=20261332"),
        ("x:08052025", "flavour=08052025"),
        ("x:2026-05-11", "date=2026-05-11"),
        ("x:0813", "flavour=0813"),
    ],
)
def test_facts(text: str, words: str) -> None:
    assert say(text) == words


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("harbor.example/dockerhub-proxy/rocm/sgl-dev:x", "rocm/sgl-dev"),
        ("harbor.example/a/b/pytorch/pytorch:x", "pytorch/pytorch"),
        # Nobody says that these are copies of other images.
        ("harbor.example/team/project/sglang:x", "team/project/sglang"),
        ("harbor.example/rocm/sgl-dev/x:x", "rocm/sgl-dev/x"),
        ("team/proxy/rocm/sgl-dev:x", "team/proxy/rocm/sgl-dev"),
    ],
)
def test_what_a_proxy_puts_before_a_name(text: str, repository: str) -> None:
    reference = parse_reference(text)
    assert reference_facts(reference)["repository"] == repository
    # This is what can be pulled.
    assert reference.short == text


def test_registry_does_not_matter() -> None:
    tag = "rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210"
    for registry in ("docker.io/", "localhost:5000/", "MIRROR/"):
        assert reference_facts(parse_reference(registry + tag)) == reference_facts(
            parse_reference(tag)
        )


@given(st.text() | st.text(alphabet=string.ascii_letters + string.digits + "./:@-_[]"))
@example("@:/")
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(ValueError):
        assert set(reference_facts(parse_reference(text))) <= set(KEYS)


tokens = st.lists(
    st.sampled_from([word for row in ROWS for word in row[0].partition(":")[2].split("-")]),
    min_size=1,
    max_size=6,
).map("-".join)
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True) | tokens.map(
    lambda text: text[:128]
)


@given(tags)
def test_facts_of_any_tag(tag: str) -> None:
    found = reference_facts(parse_reference(f"x:{tag}"))
    assert set(found) <= set(KEYS)
    assert all(found.values())
    for key in ("framework_version", "rocm", "python", "torch"):
        assert key not in found or Version(found[key])


@given(
    st.sampled_from(OTHERS),
    st.sampled_from(["", "docker.io/", "localhost:5000/", "MIRROR.example:443/"]),
    st.sampled_from(["", f"@{DIGEST}"]),
    st.sampled_from(["", "-20260101", "-amd64", "_py3.12", "-v2"]),
)
def test_no_rocm_is_claimed(text: str, registry: str, digest: str, suffix: str) -> None:
    found = reference_facts(parse_reference(registry + text + suffix + digest))
    assert found.get("accelerator") != "rocm"
    assert not found.keys() & {"rocm", "gfx", "gpu"}


@given(
    st.sampled_from(["", "docker.io", "ghcr.io", "localhost", "h:1", "UPPER", "[::1]:5000"]),
    st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+){0,2}(/[a-z0-9]+){0,2}", fullmatch=True),
    st.just("") | tags,
    st.sampled_from(["", DIGEST, "sha512:" + "a" * 128]),
)
def test_parts_come_back(registry: str, repository: str, tag: str, digest: str) -> None:
    rest = repository + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    first, slash, _ = repository.partition("/")
    assume(registry or not slash or ("." not in first and first != "localhost"))
    reference = parse_reference(f"{registry}/{rest}" if registry else rest)
    assert reference == ImageReference(registry, repository, tag, digest)
    short = parse_reference(reference.short)
    assert (short.short, short.digest) == (reference.short, "")
