"""Lays out what the image carries: the stub, the package, and bytecode for the Pythons named.

    python3 deploy/image/tree.py dist/rocm_autopatch-*.whl build/hook python3.10 python3.12

The same wheel and the same Pythons make the same files. Times are SOURCE_DATE_EPOCH, or 0. It needs
nothing but a Python of 3.9 or later.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lay_out(
    wheel: Path,
    to: Path,
    pythons: Sequence[str],
    at: str,
    site: Path | None,
    time: int,
    package: str = "",
) -> None:
    """Fill the empty directory *to*. Raises CalledProcessError if a Python can't compile.

    *package* is the directory in it that gets the package, where that is not to be on sys.path.
    """
    place = to.resolve()
    with zipfile.ZipFile(wheel) as archive:
        # Without what pip reads: a container's pip shall not take it for an installed package.
        names = [name for name in archive.namelist() if name.startswith("rocm_autopatch/")]
        archive.extractall(to / package, names)
    shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", to)
    shutil.copy(ROOT / "LICENSE", to)
    if site:
        shutil.copytree(site, to / "site")
    # A constant set is written in the order of its hashes. The caller's PYTHONPATH is not for this.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONHASHSEED"] = "0"
    for python in pythons:
        # Not compared with the source, because no container can write there. -s and -p, so that
        # tracebacks name the files where containers see them.
        how = ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(place), "-p", at]
        # From "/", because -m looks for modules in the working directory first.
        command = [python, "-s", "-m", "compileall", *how, str(place)]
        subprocess.run(command, check=True, cwd="/", env=env)
    for path in sorted(to.rglob("*"), reverse=True):
        # Whatever umask built it, every user of a container may read it.
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (time, time))
    to.chmod(0o755)
    os.utime(to, (time, time))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("to", type=Path, help="a directory that does not exist yet")
    parser.add_argument("python", nargs="*", help="each compiles the package for its own version")
    parser.add_argument("--at", default="/opt/rocm-autopatch", help="where containers will find it")
    parser.add_argument(
        "--site",
        type=Path,
        metavar="DIRECTORY",
        help="policies for all containers, in the form of /etc/rocm-autopatch; they get to AT/site",
    )
    options = parser.parse_args()
    if options.to.exists():
        sys.exit(f"{options.to} exists already")
    if not zipfile.is_zipfile(options.wheel):
        sys.exit(f"{options.wheel} is no wheel that can be read")
    if options.site and not options.site.is_dir():
        sys.exit(f"{options.site} is no directory")
    pythons = []
    for python in options.python:
        found = shutil.which(python) or sys.exit(f"there is no {python}")
        pythons.append(os.path.abspath(found))
    time = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    try:
        options.to.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all.
        with tempfile.TemporaryDirectory(dir=options.to.parent) as above:
            made = Path(above, "hook")
            made.mkdir()
            lay_out(options.wheel, made, pythons, options.at, options.site, time)
            made.rename(options.to)
    except shutil.Error as error:
        sys.exit(f"{options.site} can't be copied: {error}")
    except OSError as error:
        sys.exit(f"{options.to} can't be written: {error.strerror}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} can't compile the package: see its lines above")


if __name__ == "__main__":
    main()
