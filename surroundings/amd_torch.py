"""A torch whose programs compile for an AMD GPU: the HIP-labelled one, Triton, and compiling_gpu.

``python -m surroundings.amd_torch DIRECTORY`` makes the venv ``amd`` in DIRECTORY, beside ``cpu``
and ``hip`` of hip_torch.py. In it, ``cuda`` is an MI300X that compiles and does not run; the
variable COMPILING_GPU chooses another GPU (compiling_gpu/gpus.py).
"""

from __future__ import annotations

import argparse
import hashlib
import py_compile
import re
import shutil
import sys
from pathlib import Path

from surroundings import hip_torch

# The release that torch 2.13.0 for GPUs requires.
TRITON = "3.7.1"
REQUIREMENTS = (f"triton=={TRITON}", "pyelftools")
PACKAGE = Path(__file__).with_name("compiling_gpu")
ENTRY_POINTS = "[torch.backends]\ncompiling_gpu = compiling_gpu:connect\n"
METADATA = "Metadata-Version: 2.1\nName: compiling_gpu\nVersion: 1\n"


def create(directory: Path) -> Path:
    """Make the venv ``amd`` in *directory*, or find it there; return its path.

    Raises:
        SurroundingsError: pip or the C++ compiler fails.
    """
    directory = directory.resolve()
    _, hip = hip_torch.create(directory)
    amd = directory / "amd"
    recipe = _recipe()
    with hip_torch.lock(directory / "amd.lock"):
        if not hip_torch.finished(amd, recipe):
            hip_torch.copy(hip, amd)
            hip_torch.pip(amd, "install", *REQUIREMENTS)
            site = hip_torch.site_packages(amd)
            connect(site, site / "torch", site)
            hip_torch.run(build_command(site, site / "torch"))
            hip_torch.finish(amd, recipe)
    return amd


def connect(site: Path, torch: Path, triton: Path) -> None:
    """Put compiling_gpu into *site*, and lead *torch* and the Triton in *triton* to it.

    *torch* is torch's own directory, with the label already. device.cpp is not compiled yet.
    """
    package = site / PACKAGE.name
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / f"{PACKAGE.name}-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    _lead_triton(triton)
    _preload(torch / "version.py")


def build_command(site: Path, torch: Path) -> list[str]:
    """The command that compiles device.cpp in *site* against *torch*; it takes half a minute."""
    package, include, libraries = site / PACKAGE.name, torch / "include", torch / "lib"
    return [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w"),
        *(f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(str(package / "device.cpp"), "-o", str(package / "device.so")),
        *(f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"),
    ]


def _lead_triton(site: Path) -> None:
    """Let Triton take its AMD backend with our driver, and no other backend."""
    (path,) = site.glob("triton-*.dist-info/entry_points.txt")
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^amd = .*$", "amd = compiling_gpu.triton_amd", text, flags=re.MULTILINE)
    text = re.sub(r"^nvidia = .*\n?", "", text, flags=re.MULTILINE)
    hip_torch.replace(path, text.encode())


def _preload(version: Path) -> None:
    """Register the device before torch's libraries ask for one: torch imports this file first."""
    text = version.read_text(encoding="utf-8")
    line = "__import__('compiling_gpu').preload()\n"
    if not text.endswith(line):
        hip_torch.replace(version, (text + line).encode())
        py_compile.compile(str(version), doraise=True)


def _recipe() -> dict[str, object]:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.*")):
        if path.suffix in (".py", ".cpp"):
            digest.update(path.read_bytes())
    return {"requirements": REQUIREMENTS, "compiling_gpu": digest.hexdigest()}


def main() -> int:
    """Make the venv and print its path."""
    parser = argparse.ArgumentParser(description="make the venv amd in a directory")
    parser.add_argument("directory", type=Path)
    try:
        print(create(parser.parse_args().directory))
    except hip_torch.SurroundingsError as error:
        print(f"surroundings: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
