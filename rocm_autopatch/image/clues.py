"""The facts that a container shows: in its variables, in a few files, in what is installed.

No file of an image holds its tag, but its Dockerfile leaves traces. All of it is best effort: what
is missing, unreadable or of an unknown form gives no fact. No GPU runtime is started.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rocm_autopatch import trust
from rocm_autopatch.image import reference
from rocm_autopatch.image.fact import CLUE, LIBRARY, ROCM_OF_HIP, Named, SourcedFact
from rocm_autopatch.startup import kfd

# These files have up to a few KiB. A bigger one is not the file that we expect.
_LONGEST = 64 * 1024

# Where ROCm's libraries are in AMD's packages, in Debian's and in Fedora's.
_LIBRARIES = ("opt/rocm/lib", f"usr/lib/{os.uname().machine}-linux-gnu", "usr/lib64")
# What these links lead to says more: librocm-core.so.1.0.70204 is of ROCm 7.2.4, as in AMD's own
# packages, and libamdhip64.so.6 leads to libamdhip64.so.6.4.43484.
_CORE = "librocm-core.so.1"
_ROCM_CORE = re.compile(r"librocm-core\.so\.1\.0\.([1-9][0-9]?)([0-9]{2})([0-9]{2})")
_HIP_MAJORS = (7, 6, 5)
# Where wheels have the HIP runtime: torch's own, and what torch needs from ROCm 7.10 on.
_WHEELS = ("torch/lib", "_rocm_sdk_core/lib")
_RUNTIME = "libamdhip64.so"
_RUNTIME_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.-]*")
# vLLM's images have a HIP runtime that they built from this commit.
_COMMIT = "ROCM_RUNTIME_COMMIT"
_HASH = re.compile("[0-9a-f]{7,40}")

# Where a launcher says how many ranks a job has: torchrun, Open MPI, Slurm, MPICH.
_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")

# PYTORCH_ROCM_ARCH is not among them: it lists what kernels were built for, in sglang's image three
# generations, in vLLM's nine.
# https://github.com/sgl-project/sglang/blob/main/docker/rocm.Dockerfile
_ARCH_VARIABLES = ("GPU_ARCH", "GPU_ARCH_LIST")
# Of what that Dockerfile sets, as Dockerfile.rocm did before it, these are the least likely to be
# set by somebody else. The last is in all of them from v0.4.3 on.
_SGLANG_VARIABLES = (
    "SGLANG_USE_AITER",
    "SGLANG_USE_ROCM700A",
    "SGLANG_ROCM_FUSED_DECODE_MLA",
    "SGLANG_SET_CPU_AFFINITY",
)
# https://github.com/vllm-project/vllm/blob/main/docker/Dockerfile.rocm_base writes BASE_IMAGE,
# Dockerfile.rocm adds VLLM_BASE_IMAGE. Where ROCm is from wheels, as in Dockerfile.rock_base,
# BASE_IMAGE is Ubuntu's, and ROCM_SDK_VERSION is ROCm's.
_VERSIONS = "app/versions.txt"
# Not atom: ROCm/ATOM shares that name with another package on PyPI.
_FRAMEWORKS = ("sglang", "vllm")

_RELEASE = re.compile(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+_-]*")
# sglang-0.5.8.dist-info, or sglang-0.5.8-py3.12.egg-info
_METADATA = re.compile(r"(?P<name>[^-]+)(?:-.*)?\.(?P<kind>dist|egg)-info")
_VERSION_FIELD = re.compile(r"^Version:[ \t]*(\S+)[ \t\r]*$", re.MULTILINE | re.IGNORECASE)
_SYSTEM = re.compile(r"[a-z][a-z-]*[0-9]+(?:\.[0-9]+)*")
# ID=ubuntu, VERSION_ID="22.04", BASE_IMAGE: rocm/dev-ubuntu-22.04:7.2.1-complete
_LINE = re.compile(r"^([A-Z_]+)[=:](.*)$", re.MULTILINE)


def gather_clues(
    environ: Mapping[str, str], root: Path = Path("/"), path: Sequence[str] | None = None
) -> list[Named]:
    """The facts that a container tells, of each name the most trusted first.

    Read from the variables *environ*, the files under *root* and the distributions on *path*, which
    is sys.path unless given. A framework's version has its distribution's name, sglang or vllm.
    Raises nothing.
    """
    path = sys.path if path is None else path
    versions = _parse_pairs(read_beginning(root, _VERSIONS))
    found = {name: distribution_version(name, path) for name in _FRAMEWORKS}
    installed = {name: fact for name, fact in found.items() if fact}
    return [
        *_gpu_facts(root),
        *_rocm_facts(root, path),
        *_architecture_facts(environ),
        *_framework_facts(environ, versions, installed),
        *installed.items(),
        ("python", SourcedFact(platform.python_version(), "this interpreter", CLUE)),
        *_system_facts(root),
        *_base_facts(versions),
        *_library_facts(root),
        *_runtime_facts(environ, versions, root, path),
        *_rank_facts(environ),
    ]


def _gpu_facts(root: Path) -> Iterator[Named]:
    """A fact for each kind of GPU. If there are different kinds, none of them counts."""
    for kind in sorted({gfx for gfx, _, _ in kfd.gpus(str(root))}):
        yield "gfx", SourcedFact(kind, f"/{kfd.NODES}", CLUE)


def _rocm_facts(root: Path, path: Sequence[str]) -> Iterator[Named]:
    name = "opt/rocm/.info/version"
    # 7.2.0-38, or 7.2.4
    release = _RELEASE.match(read_beginning(root, name))
    if release:
        yield "rocm", SourcedFact(release[0], f"/{name}", CLUE)
    # ROCm from wheels has no such file: 10.0.0, or 7.10.0a20251015.
    sdk = distribution_version("rocm-sdk-core", path)
    release = _RELEASE.match(sdk.value) if sdk else None
    if sdk and release:
        yield "rocm", SourcedFact(release[0], sdk.source, CLUE)


def _library_facts(root: Path) -> Iterator[Named]:
    """The ROCm whose libraries are in the first directory that has any, by their names.

    Only links are read: no library is opened or loaded. Debian has no /opt/rocm/.info/version: it
    packages the parts of ROCm one by one, and in different versions.
    """
    for directory in _LIBRARIES:
        core = _ROCM_CORE.fullmatch(_link_text(root, f"{directory}/{_CORE}"))
        if core:
            release = ".".join(str(int(number)) for number in core.groups())
            yield LIBRARY, SourcedFact(release, f"/{directory}/{_CORE}", CLUE)
            return
        found = [_link_text(root, f"{directory}/libamdhip64.so.{major}") for major in _HIP_MAJORS]
        for target in found:
            hip = ROCM_OF_HIP.match(target.partition(".so.")[2])
            if hip:
                yield LIBRARY, SourcedFact(hip[1], f"/{directory}/libamdhip64.so", CLUE)
        if any(found):
            return


def _runtime_facts(
    environ: Mapping[str, str], versions: Mapping[str, str], root: Path, path: Sequence[str]
) -> Iterator[Named]:
    """Which HIP runtime the dynamic linker would load for torch: its version and its build.

    Images may have one of their own under a version that others have, too. The file's size and,
    where an image tells it, the commit tell these apart. No library is opened.
    """
    file = _runtime_file(environ, root, path)
    with suppress(OSError):
        target = os.path.basename(os.path.realpath(file)).partition(".so.")[2]
        version = _RUNTIME_VERSION.fullmatch(target)
        commit = versions.get(_COMMIT, "")
        words = [version[0]] if version else []
        words.append(f"{os.path.getsize(file)} bytes")
        words += [f"commit {commit[:12]}"] if _HASH.fullmatch(commit) else []
        yield "hip_runtime", SourcedFact(" ".join(words), file, CLUE)


def _runtime_file(environ: Mapping[str, str], root: Path, path: Sequence[str]) -> str:
    """The first libamdhip64.so of this place, "" if there is none."""
    named = (one for one in environ.get("LD_LIBRARY_PATH", "").split(":") if one)
    directories = [os.path.join(root, one.lstrip("/")) for one in named]
    directories += [os.path.join(one, wheel) for one in map(str, path) for wheel in _WHEELS]
    directories += [os.path.join(root, one) for one in _LIBRARIES]
    names = [*(f"{_RUNTIME}.{major}" for major in _HIP_MAJORS), _RUNTIME]
    files = (os.path.join(directory, name) for directory in directories for name in names)
    return next(filter(os.path.isfile, files), "")


def hip_runtime(
    environ: Mapping[str, str], root: Path = Path("/"), path: Sequence[str] | None = None
) -> str:
    """The fact ``hip_runtime``, "" if it is not known. Raises nothing."""
    versions = _parse_pairs(read_beginning(root, _VERSIONS))
    found = _runtime_facts(environ, versions, root, sys.path if path is None else path)
    return next((fact.value for _, fact in found), "")


def _rank_facts(environ: Mapping[str, str]) -> Iterator[Named]:
    """How many processes the job of this one has, where a launcher says so."""
    for name in _RANKS:
        count = environ.get(name, "")
        if count.isdecimal() and count.isascii() and len(count) < 8:
            yield "ranks", SourcedFact(count, name, CLUE)


def _architecture_facts(environ: Mapping[str, str]) -> Iterator[Named]:
    """The facts in gfx950-rocm724 or gfx942, which is read like a tag. A list gives no fact."""
    for variable in _ARCH_VARIABLES:
        said = _reference_facts(f"x:{environ.get(variable, '')}")
        for name in ("gfx", "rocm"):
            if name in said:
                yield name, SourcedFact(said[name], variable, CLUE)


def _framework_facts(
    environ: Mapping[str, str], versions: Mapping[str, str], installed: Mapping[str, SourcedFact]
) -> Iterator[Named]:
    variable = next((name for name in _SGLANG_VARIABLES if name in environ), "")
    if variable:
        yield "framework", SourcedFact("sglang", variable, CLUE)
    if "VLLM_BASE_IMAGE" in versions:
        yield "framework", SourcedFact("vllm", f"/{_VERSIONS}", CLUE)
    # An image of SGLang may have been made from one of vLLM, so two of them give no fact.
    if len(installed) == 1:
        for name, fact in installed.items():
            yield "framework", SourcedFact(name, fact.source, CLUE)


def _system_facts(root: Path) -> Iterator[Named]:
    name = "etc/os-release"
    said = _parse_pairs(read_beginning(root, name))
    system = said.get("ID", "") + said.get("VERSION_ID", "")
    if _SYSTEM.fullmatch(system):
        yield "os", SourcedFact(system, f"/{name}", CLUE)


def _base_facts(versions: Mapping[str, str]) -> Iterator[Named]:
    release = _RELEASE.match(versions.get("ROCM_SDK_VERSION", ""))
    if release:
        yield "rocm", SourcedFact(release[0], f"/{_VERSIONS}", CLUE)
    said = _reference_facts(versions.get("BASE_IMAGE", ""))
    for name in ("rocm", "os"):
        if name in said:
            yield name, SourcedFact(said[name], f"/{_VERSIONS}", CLUE)


def distribution_version(name: str, path: Sequence[str]) -> SourcedFact | None:
    """The version of the distribution *name*, if it is on *path*.

    importlib.metadata would wait for ever where its file is a pipe, and take ten times as long.
    """
    for directory in path:
        try:
            entries = sorted(os.listdir(directory or "."))
        except (OSError, ValueError):
            continue
        for entry in entries:
            found = _METADATA.fullmatch(entry)
            if not found or re.sub("[-_.]+", "-", found["name"]).lower() != name:
                continue
            file = "METADATA" if found["kind"] == "dist" else "PKG-INFO"
            head = read_beginning(Path(directory), f"{entry}/{file}").partition("\n\n")[0]
            version = _VERSION_FIELD.search(head)
            if version and _VERSION.fullmatch(version[1]):
                return SourcedFact(version[1], f"{name} in {Path(directory)}", CLUE)
    return None


def _reference_facts(image: str) -> dict[str, str]:
    """What an image's reference says; nothing if it is none."""
    try:
        return reference.reference_facts(reference.parse_reference(image))
    except ValueError:
        return {}


def _parse_pairs(text: str) -> dict[str, str]:
    return {name: value.strip(" \"'") for name, value in _LINE.findall(text)}


def _link_text(root: Path, name: str) -> str:
    """The text of a link, "" where there is none."""
    with suppress(OSError):
        return os.readlink(root / name)
    return ""


def read_beginning(root: Path, name: str) -> str:
    """The beginning of a text file, "" where there is none."""
    with suppress(OSError, ValueError):
        data = trust.read(str(root / name), _LONGEST, judged=False)
        return data.decode("utf-8", "replace")
    return ""
