"""An image reference as `docker run` takes it, and the facts that its words state.

A tag is cut into tokens, each of one kind; docs/images.md has the table. Each token may state
facts. If two tokens state different values of a fact, the fact is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

_HUB = ("docker.io", "index.docker.io")
# Who publishes images of these frameworks at Docker Hub.
_PUBLIC = ("rocm", "vllm", "lmsysorg", "pytorch", "tensorflow")

# https://github.com/distribution/reference/blob/main/regexp.go
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-f]{32,}")
_LONGEST = 255


@dataclass(frozen=True)
class ImageReference:
    """The parts of a reference as they were written, "" where one is absent."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """The repository, without what a proxy puts before it, and without Docker Hub's library/.

        A proxy has Docker Hub's images beneath a path of its own:
        harbor.example/dockerhub-proxy/rocm/sgl-dev.
        """
        *path, namespace, name = f"/{self.repository}".split("/")[-3:]
        proxied = self.registry not in ("", *_HUB) and any(path) and namespace in _PUBLIC
        return f"{namespace}/{name}" if proxied else self._plain_reference

    @property
    def _plain_reference(self) -> str:
        first, _, rest = self.repository.partition("/")
        official = self.registry in ("", *_HUB) and first == "library" and "/" not in rest
        return rest if official and rest else self.repository

    @property
    def short(self) -> str:
        """The reference as images.yaml writes it: no docker.io/, no library/, no digest."""
        # Without docker.io/, docker.io/a.b/c would be c at the host a.b.
        plain = self.registry in ("", *_HUB) and not _split_registry(self._plain_reference)[0]
        registry = "" if plain else f"{self.registry}/"
        return registry + self._plain_reference + (f":{self.tag}" if self.tag else "")


def parse_reference(text: str) -> ImageReference:
    """The parts of *text*. Raises ValueError where it is no image reference."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"{text!r} is not an image reference: {digest!r} is not a digest")
    if digest.startswith("sha256:") and len(digest) != len("sha256:") + 64:
        raise ValueError(f"{text!r} is not an image reference: a sha256 digest has 64 hex digits")
    # A colon before a slash comes before a port.
    head, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        rest, colon, tag = rest, "", ""
    else:
        rest = head
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"{text!r} is not an image reference: {tag!r} is not a tag")
    registry, repository = _split_registry(rest)
    if registry and not _HOST.fullmatch(registry):
        raise ValueError(f"{text!r} is not an image reference: {registry!r} is not a registry")
    if not _PATH.fullmatch(repository):
        why = (
            "has capital letters, and the name of a repository has none"
            if repository != repository.lower()
            else "is not the name of a repository"
        )
        raise ValueError(f"{text!r} is not an image reference: {repository!r} {why}")
    if len(repository) > _LONGEST:
        raise ValueError(
            f"{text!r} is not an image reference: its repository's name has more than {_LONGEST} "
            "characters"
        )
    if not registry and re.fullmatch("[0-9a-f]{64}", repository):
        raise ValueError(f"{text!r} is an image's ID, not its reference")
    return ImageReference(registry, repository, tag, digest)


def _split_registry(name: str) -> tuple[str, str]:
    """Registry and repository. The first part is a host where it can be nothing else."""
    first, slash, rest = name.partition("/")
    host = any(c in first for c in ".:") or first == "localhost" or first != first.lower()
    return (first, rest) if slash and host else ("", name)


_END = r"(?=[-_/]|\Z)"
_VERSION = r"[0-9]+(?:\.[0-9]+)+(?:\.?(?:alpha|beta|a|b|rc|post|dev)[0-9]*)*"
_TOKEN = re.compile(
    rf"""
    (?P<framework> sgl[-_]dev | sglang | sgl | vllm | atom | jax | megatron-lm | tensorflow
                 | tf (?=[0-9]) ) (?= [-_/] | \Z | v?[0-9] )
  | (?P<pytorch> (?:py)?torch (?:[-_]release)? ) (?= [-_/] | \Z | v?[0-9] )
  | (?P<stamp> 20[0-9]{{6}} (?: [0-9]{{4}} | [0-9]{{6}} )? | 20[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}} )
    {_END}
  | rocm (?P<rocm> {_VERSION} | [0-9]{{1,2}} (?:_[0-9]{{1,2}}){{1,2}} | [0-9]* ) {_END}
  | (?P<gpu> mi[0-9]{{2}}x | mi[0-9]{{3}}[a-z]? | gfx[0-9][0-9a-z]*
           | [cr]dna[0-9]? ) {_END}
  | py (?:thon)? [-_]? (?P<python> 3(?:\.[0-9]+)+ | 3[0-9]{{0,2}} ) {_END}
  | (?P<os> (?: ubuntu | debian | centos | rhel | ubi | almalinux | rockylinux | fedora | sles )
            [-_]? [0-9]+ (?:\.[0-9]+)? ) {_END}
  | (?P<version> v? {_VERSION} ) {_END}
  | (?P<preview> preview ) (?= {_VERSION} {_END} )
  | (?P<word> [^-_/]+ )
    """,
    re.VERBOSE,
)

# mi30x, mi35x and mi45x: sglang's docker/rocm.Dockerfile. MI450: ROCm/TheRock,
# cmake/therock_amdgpu_targets.cmake. The others, and each one's CDNA:
# https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html
GFX_BY_PRODUCT = {
    gpu: gfx
    for gfx, gpus in {
        "gfx908": "mi100 cdna1",
        "gfx90a": "mi200 mi210 mi250 mi250x cdna2",
        "gfx942": "mi30x mi300 mi300a mi300x mi325 mi325x cdna3",
        "gfx950": "mi35x mi350 mi350x mi355 mi355x cdna4",
        "gfx1250": "mi45x mi450 mi450x mi455x",
    }.items()
    for gpu in gpus.split()
}
_EXACT_GFX = re.compile("gfx[0-9]{2,3}[0-9a-f]")

_FRAMEWORKS = {"sgl": "sglang", "sgl-dev": "sglang", "tf": "tensorflow"}
# A v and a number in a tag is the version of these; elsewhere, as in rocm/pytorch-training:v25.4,
# it may be the image's own.
_VERSIONED = ("sglang", "vllm", "atom")
# Words that may stand before such a version.
_CHANNELS = (*("dev", "nightly", "main", "upstream", "preview", "release", "releases", "latest"),)
# Where a tag begins with a number, it is the version of this.
_NUMBERED = {"pytorch/pytorch": "torch", "tensorflow/tensorflow": "framework_version"}
# ROCm's first number, where a dash is between name and version: rocm-7.2.1. No framework has it.
_LEAST_ROCM = 4
_ROCM_BASE = re.compile("rocm/(?:dev|rocm)-.+")
# vLLM's own images have two numbers of ROCm: rocm72 is 7.2, rocm100 is 10.0
# (https://github.com/vllm-project/vllm/blob/main/.buildkite/scripts/push-nightly-builds-rocm.sh),
# and rocm714 was 7.14 (https://github.com/vllm-project/vllm/pull/55246). Three digits of others are
# three numbers.
_VLLM_ROCM = re.compile("rocm(?:([4-9])([0-9])|(10)([0-9])|(7)(14))")
# v0.1.1 in rocm/infera:sglang-v0.1.1 is Infera's version, and its kvd and server images are named
# like the others: https://github.com/AMD-AGI/Infera/pull/23
_INFERA = re.compile("(?:.*/)?infera(?:-.*)?")

_ACCELERATORS = {"cuda": "cuda", "cudnn": "cuda", "cpu": "cpu", "xeon": "cpu", "rocm": "rocm"}
_ACCELERATORS.update((word, word) for word in ("xpu", "npu", "hpu", "tpu", "musa"))
_ACCELERATORS.update({"gaudi": "hpu", "ascend": "npu", "cann": "npu"})
_NVIDIA = re.compile("hopper|blackwell|a100|h20|h100|h200|b200|b300|gh200|gb200|gb300")
_STEM = re.compile("[a-z]*")


class _TagToken:
    __slots__ = ("kind", "says", "separator", "spent", "text")

    def __init__(self, separator: str, text: str, kind: str) -> None:
        self.separator = separator
        self.text = text
        self.kind = kind
        # Facts; "hardware", the accelerator of the GPU that is named; and "pytorch" for the name.
        self.says: dict[str, str] = {}
        # Whether the token is used up, so that it is not part of the flavour.
        self.spent = True


def reference_facts(reference: ImageReference) -> dict[str, str]:
    """What *reference* says of its image; docs/images.md describes the keys."""
    name = reference.name
    tag, claims = _tag_tokens(reference.tag), _repository_claims(name)
    framework = _framework_name(tag, claims)
    if framework == "vllm":
        _read_two_numbers(tag)
    _place_versions(tag, framework, name, "framework" in claims)
    said = _merge_tokens(tag)
    doubted = {key for key, value in said.items() if not value}
    if not framework:
        doubted.add("framework_version")
    version = said.get("torch" if framework == "pytorch" else "framework_version", "")
    # Where the tag says nothing of these, the repository may.
    rocm, gfx, python, system = (
        said[key] if key in said else claims.get(key, "") for key in ("rocm", "gfx", "python", "os")
    )
    exact = _EXACT_GFX.fullmatch(gfx)
    found = {
        "accelerator": _accelerator_name(said, claims),
        "repository": name,
        "framework": framework,
        "framework_version": version if framework else "",
        "rocm": rocm,
        "gfx": gfx if exact else "",
        "gpu": "" if exact else gfx,
        "python": python,
        "torch": said.get("torch", ""),
        "os": system,
        "date": said.get("date", ""),
        "flavour": _tag_flavour(tag, doubted),
    }
    return {key: value for key, value in found.items() if value}


@lru_cache(maxsize=256)
def _repository_claims(name: str) -> dict[str, str]:
    """What the repository *name* says: of many tags, few have a repository of their own."""
    claims = _merge_tokens(_tag_tokens(name))
    if _INFERA.fullmatch(name):
        claims.pop("accelerator", None)
    return claims


def _tag_tokens(text: str) -> list[_TagToken]:
    tokens = []
    end = 0
    for match in _TOKEN.finditer(text.lower()):
        kind = match.lastgroup or ""
        start, before = match.start(), end
        end = match.end()
        token = _TagToken(text[before:start], text[start:end], kind)
        _read_token(token, match[kind])
        tokens.append(token)
    return tokens


def _read_token(token: _TagToken, value: str) -> None:
    """Let *token* say what it says on its own."""
    kind, says = token.kind, token.says
    if kind == "word":
        _read_word(token, value)
    elif kind in ("version", "preview"):
        token.spent = False
    elif kind == "framework":
        value = value.replace("_", "-")
        says["framework"] = _FRAMEWORKS.get(value, value)
    elif kind == "pytorch":
        says["pytorch"] = "yes"
    elif kind == "rocm":
        says["accelerator"] = "rocm"
        version = _rocm_version(value)
        if version:
            says["rocm"] = version
        token.spent = version == value or bool(version)
    elif kind == "gpu":
        says["hardware"] = "rocm"
        says["gfx"] = GFX_BY_PRODUCT.get(value, value)
    elif kind == "stamp":
        day = _day_of_stamp(value)
        if day:
            says["date"] = day
        token.spent = bool(day)
    elif kind == "python":
        says["python"] = value if "." in value else f"{value[0]}.{value[1:]}".rstrip(".")
    elif kind == "os":
        system = value.replace("-", "").replace("_", "")
        says["os"] = re.sub(r"(?<=^ubuntu\d\d)(?=\d\d$)", ".", system)


def _read_word(token: _TagToken, word: str) -> None:
    stem = (_STEM.match(word) or [""])[0]
    if _NVIDIA.fullmatch(word):
        token.says["hardware"] = "cuda"
    elif stem == "cu" and stem != word:
        token.says["accelerator"] = "cuda"
    elif stem in _ACCELERATORS:
        token.says["accelerator"] = _ACCELERATORS[stem]
    token.spent = word in ("cuda", "cpu")


def _day_of_stamp(stamp: str) -> str:
    digits = stamp.replace("-", "")
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:8])).isoformat()
    except ValueError:
        return ""


def _rocm_version(code: str) -> str:
    """The version that follows "rocm", dotted; "" where its digits can be read in two ways."""
    if "." in code:
        return code
    if "_" in code:
        return code.replace("_", ".")
    if len(code) == 1 or code == "10":
        return code
    if len(code) == 4 and code[0] == "1":
        return f"{code[:2]}.{code[2]}.{code[3]}"
    # ROCm 7.1.1 and 7.11 both exist, and 101 may be 10.1.
    if len(code) == 3 and code[0] not in "01" and code[:2] != "71":
        return ".".join(code)
    return ""


def _read_two_numbers(tag: list[_TagToken]) -> None:
    """Let vLLM's short versions of ROCm in *tag* say what they are."""
    for token in tag:
        short = _VLLM_ROCM.fullmatch(token.text.lower()) if token.kind == "rocm" else None
        if short:
            token.says["rocm"] = ".".join(part for part in short.groups() if part)
            token.spent = True


def _framework_name(tag: list[_TagToken], claims: dict[str, str]) -> str:
    """The tag's before the repository's, and PyTorch, which is in all of them, where neither is."""
    names = {token.says["framework"] for token in tag if "framework" in token.says}
    if names:
        return _agreed_value(names)
    if "framework" in claims:
        return claims["framework"]
    pytorch = "pytorch" in claims or any("pytorch" in token.says for token in tag)
    return "pytorch" if pytorch else ""


def _place_versions(tag: list[_TagToken], framework: str, name: str, its: bool) -> None:
    """Let the version tokens of *tag* say whose version they are, where that is clear.

    *its* says that the repository is the framework's.
    """
    own = _INFERA.fullmatch(name)
    alone = its and not any("framework" in token.says for token in tag)
    loose = []
    named = False
    before = None
    for token in tag:
        if token.kind == "version":
            version = token.text.lower().lstrip("v")
            if before is None and version == token.text:
                if name in _NUMBERED:
                    token.says[_NUMBERED[name]] = version
                elif _ROCM_BASE.fullmatch(name):
                    token.says["rocm"] = version
                elif alone and framework in _VERSIONED and not own:
                    named = True
                    token.says["framework_version"] = version
            elif before and _is_rocm(before, version, token, name):
                token.says["rocm"] = version
            elif before and before.kind == "pytorch":
                token.says["torch"] = version
            elif before and before.kind == "framework":
                named = True
                if not own:
                    token.says["framework_version"] = version
            elif version != token.text and (
                before is None or before.spent or before.text.lower() in _CHANNELS
            ):
                loose.append((token, version))
            token.spent = bool(token.says)
        before = token
    if framework in _VERSIONED and not named and not own:
        for token, version in loose:
            token.says["framework_version"] = version
            token.spent = True


def _is_rocm(before: _TagToken, version: str, token: _TagToken, name: str) -> bool:
    """Whether a version is ROCm's: after the word rocm, or after preview in an image of AMD's, as
    in rocm/vllm-dev:preview7.1_1117."""
    word = before.text.lower()
    follows = word == "rocm" or (before.kind == "preview" and name.startswith("rocm/"))
    bare = follows and version == token.text
    return bare and int(version.partition(".")[0]) >= _LEAST_ROCM


def _merge_tokens(tokens: Iterable[_TagToken]) -> dict[str, str]:
    """What *tokens* say together: "" where they say different things."""
    said: dict[str, set[str]] = {}
    for token in tokens:
        for key, value in token.says.items():
            said.setdefault(key, set()).add(value)
    return {
        key: next(iter(values)) if len(values) == 1 else _agreed_value(values)
        for key, values in said.items()
    }


def _agreed_value(values: set[str]) -> str:
    """The one of *values* that says all that the others say, "" if there is none: 7.0 and 7.0.0
    are 7.0.0."""
    best = max(values, key=len)
    return best if all(f"{best}.".startswith(f"{value}.") for value in values) else ""


def _accelerator_name(said: dict[str, str], claims: dict[str, str]) -> str:
    """A name in the tag counts before a GPU in the tag, and both before the repository."""
    for source, key in (
        (said, "accelerator"),
        (said, "hardware"),
        (claims, "accelerator"),
        (claims, "hardware"),
    ):
        if key in source:
            return source[key] if source[key] in ("rocm", "cuda", "cpu") else ""
    return ""


def _tag_flavour(tag: list[_TagToken], doubted: set[str]) -> str:
    left = ""
    before = None
    for token in tag:
        if not token.spent or not doubted.isdisjoint(token.says):
            # What is left of one word, as 060 of jax060, is left as the word was written.
            if before and not token.separator:
                left += before.separator + before.text
            left += token.separator + token.text
            before = None
        else:
            before = token
    return left.lstrip("-_")
