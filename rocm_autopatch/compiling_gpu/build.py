"""Make the stand-in for one torch: the package that its programs import, and what g++ builds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rocm_autopatch.support.progress import tell_step
from rocm_autopatch.support.user_error import UserError

from .connection import TORCH
from .gpus import GpuFacts
from .host_modules import LIBCUDA

PACKAGE = Path(__file__).parent
NAME = PACKAGE.name
_NOT_COPIED = ("__pycache__", "build.py")
_ENTRY_POINTS = "[torch.backends]\ncompiling_gpu = compiling_gpu.connection:connect_torch\n"
_METADATA = "Metadata-Version: 2.1\nName: compiling_gpu\nVersion: 1\n"
# Where torch is, without importing it; and which of the two ABIs of libstdc++ it was built with.
_FIND_TORCH = """
import importlib.util, json, sys
spec = importlib.util.find_spec("torch")
print(json.dumps(list(spec.submodule_search_locations) if spec else []))
"""
_FIND_ABI = "import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))"
# The first one that loads the entry points of torch.backends.
_OLDEST = (2, 5)
_VERSION = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", re.MULTILINE)


class StandInError(UserError):
    """The stand-in can't be made; the text says why, and what to do."""


class _Torch(NamedTuple):
    # torch's own directory.
    path: Path
    version: str
    # The runtime's version; "" if it is not for this one.
    cuda: str
    hip: str

    @property
    def vendor(self) -> str:
        """The vendor of the GPUs that it is for, or ""."""
        return "amd" if self.hip else "nvidia" if self.cuda else ""


def build_stand_in(python: Path, facts: GpuFacts, directory: Path) -> dict[str, str]:
    """Make the stand-in for the torch of *python* in *directory*; return the variables.

    Raises:
        StandInError: see `rocm_autopatch.compiling_gpu.prepare_stand_in`.
    """
    directory = directory.absolute()
    torch = _find_torch(python)
    if torch.vendor != facts.vendor:
        built = {"amd": "for ROCm", "nvidia": "for CUDA", "": "for CPUs alone"}[torch.vendor]
        raise StandInError(
            f"torch {torch.version} of {python} is built {built}, and {facts.name} needs another "
            "build: take an interpreter with the torch of the machines that have this GPU",
        )
    if tuple(map(int, re.findall(r"\d+", torch.version)[:2])) < _OLDEST:
        raise StandInError(
            f"torch {torch.version} of {python} loads no entry points: the stand-in needs torch "
            "2.5 or newer",
        )
    site = directory / f"torch-{_digest(torch, facts)}"
    directory.mkdir(parents=True, exist_ok=True)
    with _no_writers(), _locked(directory / "build.lock"):
        if not site.is_dir():
            _build(python, torch, facts, site)
        described = directory / f"{hashlib.sha256(facts.as_json().encode()).hexdigest()[:16]}.json"
        # Programs that another call has prepared read it.
        unfinished = described.with_suffix(".unfinished")
        unfinished.write_text(facts.as_json(), encoding="utf-8")
        unfinished.replace(described)
        (directory / "processes").mkdir(exist_ok=True)
    return _variables(torch, site, described, directory / "processes")


def copy_package(site: Path) -> Path:
    """Put the package and its entry point into *site*, a directory on sys.path; return its path.

    Raises:
        OSError: *site* can't be written.
    """
    package = site / NAME
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    info = site / f"{NAME}-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(_METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    return package


def device_command(package: Path, torch: Path, compiler: str = "") -> list[str]:
    """The command that compiles device.cpp in *package* against *torch*; it takes half a minute.

    *torch* is torch's own directory. $CXX, or g++, is the compiler if none is named.
    """
    include, libraries = torch / "include", torch / "lib"
    cpu_build = () if _gpu_library(torch) else ("-DCPU_BUILD",)
    return [
        *(shlex.split(compiler) or _compiler()),
        *("-std=c++20", "-O1", "-shared", "-fPIC", "-w", *cpu_build),
        *(f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(str(package / "device.cpp"), "-o", str(package / "device.so")),
        *(f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"),
    ]


def _variables(torch: _Torch, site: Path, facts: Path, processes: Path) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH", "")
    variables = {
        "COMPILING_GPU": str(facts),
        "COMPILING_GPU_PROCESSES": str(processes),
        # So that this command says what it is, also below another one.
        "COMPILING_GPU_SAID": "",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), before))),
        # torch loads no entry points without it.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    }
    if _gpu_library(torch.path):
        preloaded = os.environ.get("LD_PRELOAD", "")
        runtime = str(site / NAME / "runtime.so")
        variables["LD_PRELOAD"] = " ".join(filter(None, (runtime, preloaded)))
        # There is one GPU, also where a variable hides those that are not there.
        for name in ("CUDA", "HIP") if torch.hip else ("CUDA",):
            variables[f"{name}_VISIBLE_DEVICES"] = "0"
    return variables


def _build(python: Path, torch: _Torch, facts: GpuFacts, site: Path) -> None:
    unfinished = site.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    package = copy_package(unfinished)
    (package / TORCH).write_text(str(torch.path), encoding="utf-8")
    tell_step(f"compiling the stand-in for {facts.name} against torch {torch.version}")
    command = device_command(package, torch.path)
    if _gpu_library(torch.path):
        # A CPU build of torch since 2.6, as tests have it, has the compiler's default.
        abi = _run([str(python), "-c", _FIND_ABI], {"COMPILING_GPU": "off"}).strip()
        command.append(f"-D_GLIBCXX_USE_CXX11_ABI={abi}")
        (package / "facts.h").write_text(_facts_header(torch, facts), encoding="utf-8")
        _run(_runtime_command(package, torch))
        if not torch.hip:
            (package / LIBCUDA.name).symlink_to("runtime.so")
    _run(command)
    unfinished.rename(site)


def _runtime_command(package: Path, torch: _Torch) -> list[str]:
    hip = ("-DHIP",) if torch.hip else ()
    # torch and Triton look for NVIDIA's driver by this name.
    name = "libamdhip_stand_in.so" if torch.hip else LIBCUDA.name
    return [
        *(*_compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *hip),
        *(f"-I{path}" for path in _runtime_headers(torch)),
        *(str(package / "runtime.cpp"), "-o", str(package / "runtime.so"), "-ldl"),
        # Every process of the program loads it.
        *("-static-libstdc++", "-static-libgcc", f"-Wl,-soname,{name}"),
    ]


def _runtime_headers(torch: _Torch) -> list[Path]:
    """The directories with the headers of the runtime for which torch was built."""
    packages = torch.path.parent
    triton = packages / "triton" / "backends"
    if torch.hip:
        places = [triton / "amd" / "include", Path("/opt/rocm/include")]
        found = [path for path in places if (path / "hip" / "hip_runtime_api.h").is_file()]
    else:
        # Triton's are of another version; they have what NVIDIA's wheels lack.
        places = [*sorted(packages.glob("nvidia/*/include")), Path("/usr/local/cuda/include")]
        major = f"{torch.cuda.partition('.')[0]}0"
        found = [path for path in places if re.search(rf"CUDART_VERSION +{major}\d", _api(path))]
        triton = triton / "nvidia" / "include"
        if _api(triton) and (found or re.search(rf"CUDART_VERSION +{major}\d", _api(triton))):
            found.append(triton)
    if not found:
        raise StandInError(
            f"no headers of {'HIP' if torch.hip else 'CUDA ' + torch.cuda} were found beside torch "
            f"{torch.version}: pip install triton and nvidia-cuda-runtime, or install the toolkit"
        )
    return found


def _api(include: Path) -> str:
    try:
        return (include / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _facts_header(torch: _Torch, facts: GpuFacts) -> str:
    """The facts as runtime.cpp reads them."""
    numbers = [int(number) for number in re.findall(r"\d+", torch.hip or torch.cuda)]
    major, minor, patch, *_ = [*numbers, 0, 0]
    version = major * 10**7 + minor * 10**5 + patch if torch.hip else major * 1000 + minor * 10
    rows = {
        "NAME": json.dumps(facts.name),
        "TARGET": json.dumps(facts.target),
        "MEMORY": f"{facts.memory}ull",
        "LDS": facts.lds,
        "LDS_OF_BLOCK": facts.lds_of_block or facts.lds,
        "LDS_OF_PROCESSOR": facts.lds_of_processor or facts.lds,
        "REGISTERS": facts.registers,
        "WAVEFRONT": facts.wavefront,
        "THREADS_OF_BLOCK": facts.threads_of_block,
        "THREADS_OF_PROCESSOR": facts.threads_of_processor,
        "MAJOR": facts.major,
        "MINOR": facts.minor,
        "PROCESSORS": facts.processors,
        "L2": facts.l2,
        "VERSION": version,
    }
    return "".join(f"#define {name} {value}\n" for name, value in rows.items())


def _find_torch(python: Path) -> _Torch:
    found = json.loads(_run([str(python), "-c", _FIND_TORCH], {"COMPILING_GPU": "off"}))
    for place in found:
        version = Path(place) / "version.py"
        if version.is_file():
            told = dict(_VERSION.findall(version.read_text(encoding="utf-8")))
            numbers = (told.get(name, "") for name in ("__version__", "cuda", "hip"))
            return _Torch(Path(place), *numbers)
    raise StandInError(f"{python} has no torch: take the interpreter that runs the program")


def _gpu_library(torch: Path) -> str:
    """ "cuda" or "hip" if *torch*, torch's own directory, is a build for GPUs, and "" if not."""
    names = ("cuda", "hip")
    return next((one for one in names if (torch / "lib" / f"libtorch_{one}.so").exists()), "")


def _compiler() -> list[str]:
    said = os.environ.get("CXX", "")
    try:
        command = shlex.split(said) or ["g++"]
    except ValueError as error:
        raise StandInError(f"CXX={said} is no command: {error}") from None
    if shutil.which(command[0]) is None:
        raise StandInError(
            f"there is no C++ compiler {command[0]}, which builds the stand-in for a GPU: "
            "install g++ (Debian, Ubuntu: apt-get install g++), or name another one in CXX"
        )
    return command


def _digest(torch: _Torch, facts: GpuFacts) -> str:
    digest = hashlib.sha256(repr((torch, facts, os.environ.get("CXX"))).encode())
    for path in sorted(PACKAGE.rglob("*.*")):
        if path.suffix in (".py", ".cpp", ".h"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str], environ: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise StandInError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-20:]
        raise StandInError(f"{command[0]} ended with status {done.returncode}", quoted=last)
    return done.stdout


@contextmanager
def _no_writers() -> Iterator[None]:
    """What is made is code that programs load: others can't write it, whatever the umask says."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
