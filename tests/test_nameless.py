"""A user id without a name, as OpenShift and ``docker run --user`` give a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HIP, Interpreter, label_torch

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="another user id needs root")
NAMELESS = 45678
SHOW = """
import getpass, json, os, rocm_autopatch
report = rocm_autopatch.status()
rows = [[row["action"], row["after"]] for row in report["env"] if row["name"] == "LNAME"]
try:
    name = getpass.getuser()
except (KeyError, OSError):  # OSError from Python 3.13 on
    name = None
print(json.dumps([name, rows]))
"""


@pytest.fixture
def reachable(python311: Interpreter, tmp_path: Path) -> Iterator[Interpreter]:
    """An environment that other users can read. Those of other tests are in root's directories."""
    directory = Path(tempfile.mkdtemp(prefix=f"rocm-autopatch-{tmp_path.name}-", dir="/var/tmp"))
    directory.chmod(0o755)
    library = directory / "lib" / ("python%d.%d" % sys.version_info[:2])
    left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip")
    shutil.copytree(Path(os.__file__).parent, library, ignore=left_out)
    shutil.copytree(python311.site_packages, library / "site-packages")
    (directory / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), directory / "bin" / "python")
    for path in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
        shutil.copy(path, directory / "lib")
    yield Interpreter(directory / "bin" / "python", {"LD_LIBRARY_PATH": str(directory / "lib")})
    shutil.rmtree(directory)


def start(python: Interpreter, user: int, **env: str) -> tuple[str | None, list[list[str | None]]]:
    """Whose name getpass tells after our start, and what became of the variable."""
    done = subprocess.run(
        [python.path, "-c", SHOW],
        env={**python.env, "PATH": os.environ["PATH"], "HOME": "/", **env},
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    name, rows = json.loads(done.stdout)
    return name, rows


def test_it_gets_the_name_that_later_torches_give(reachable: Interpreter) -> None:
    named = f"uid_{NAMELESS}"
    for torch, expected in (("2.4.1", named), ("2.12.0", named), ("2.13.0", None)):
        label_torch(reachable.site_packages, f"{torch}+rocm7.0", HIP)
        rows = [["default", named]] if expected else []
        assert start(reachable, NAMELESS) == (expected, rows)
    label_torch(reachable.site_packages, "2.11.0+rocm7.0", HIP)
    # An empty value is none.
    assert start(reachable, NAMELESS, USER="", LNAME="") == (named, [["set", named]])
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        assert start(reachable, NAMELESS, **{variable: "me"}) == ("me", [])
    assert start(reachable, NAMELESS, ROCM_AUTOPATCH_KEEP="LNAME") == (None, [["default", None]])
    assert start(reachable, NAMELESS, ROCM_AUTOPATCH="off") == (None, [])
    # Those with a name keep it.
    assert start(reachable, 65534) == ("nobody", [])
    assert start(reachable, 0) == ("root", [])


def test_probe_says_that_it_works_with_us(reachable: Interpreter) -> None:
    label_torch(reachable.site_packages, "2.11.0+rocm7.0", HIP)
    (reachable.site_packages / "torch" / "__init__.py").write_text(
        "import getpass\nfrom torch import version\ngetpass.getuser()\n"
    )
    done = subprocess.run(
        [reachable.path, "-m", "rocm_autopatch", "probe", "--import", "torch"],
        env={**reachable.env, "PATH": os.environ["PATH"], "HOME": "/"},
        cwd="/",
        user=NAMELESS,
        group=NAMELESS,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    said = " ".join(done.stdout.split())
    assert "import torch fails: KeyError: 'getpwuid(): uid not found: 45678'" in said, done.stderr
    assert (
        "it also fails without variables and start-up files; with rocm_autopatch it works" in said
    )
