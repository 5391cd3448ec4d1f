"""A torch whose programs compile for an AMD GPU: the HIP-labelled one, Triton, and compiling_gpu.

``python -m surroundings.amd_torch DIRECTORY`` makes the venv ``amd`` in DIRECTORY, beside ``cpu``
and ``hip`` of hip_torch.py. In it, ``cuda`` is an MI300X that compiles and does not run; the
variable COMPILING_GPU chooses another GPU (rocm_autopatch/compiling_gpu/gpus.py).
"""

from __future__ import annotations

import argparse
import hashlib
import py_compile
import sys
from pathlib import Path

from rocm_autopatch.compiling_gpu import build
from surroundings import hip_torch

# The release that torch 2.13.0 for GPUs requires.
TRITON = "3.7.1"
REQUIREMENTS = (f"triton=={TRITON}",)


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
            install_stand_in(site, site / "torch")
            hip_torch.run(build.device_command(site / build.NAME, site / "torch"))
            hip_torch.finish(amd, recipe)
    return amd


def install_stand_in(site: Path, torch: Path) -> None:
    """Put compiling_gpu into *site*, and lead *torch* to it.

    *torch* is torch's own directory, with the label already. device.cpp is not compiled yet.
    """
    build.copy_package(site)
    _preload(torch / "version.py")


def _preload(version: Path) -> None:
    """Register the device before torch's libraries ask for one: torch imports this file first."""
    text = version.read_text(encoding="utf-8")
    line = "__import__('compiling_gpu.connection').connection.preload_device()\n"
    if not text.endswith(line):
        hip_torch.replace(version, (text + line).encode())
        py_compile.compile(str(version), doraise=True)


def _recipe() -> dict[str, object]:
    digest = hashlib.sha256()
    for path in sorted(build.PACKAGE.rglob("*.*")):
        if path.suffix in (".py", ".cpp", ".h"):
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
