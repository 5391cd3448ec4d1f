"""Many starts, at once and one after another: each does the same and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MAX, Interpreter, make_hooked
from tests.programs import program_file

# What a start did, as its program sees it. Not the report: it costs more than the start.
SEEN = (
    f"import os, sys, rocm_autopatch as r; print(os.environ.get({MAX!r}), r._RECORD['active'], "
    "r._RECORD['errors'], r._RECORD['notes'], os.path.basename(r._RECORD['baked']), "
    "sys.meta_path[0].__name__)"
)
DRIVER = program_file("many_starts/driver.py")


def files(python: Interpreter) -> set[str]:
    root = python.path.parent.parent
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize(
    ("baked", "writable", "total", "at_once"),
    [
        (False, True, 200, 200),
        (False, False, 200, 200),
        (True, True, 200, 200),
        (True, False, 200, 200),
        (True, True, 1000, 1),
        (False, False, 1000, 1),
    ],
)
def test_all_are_the_same(
    wheel: Path, tmp_path: Path, baked: bool, writable: bool, total: int, at_once: int
) -> None:
    place = make_hooked(tmp_path / "venv", wheel)
    if baked:
        place.run("-m", "rocm_autopatch", "bake")
    before = files(place)
    for cache in place.site_packages.glob("rocm_autopatch/**/__pycache__"):
        shutil.rmtree(cache)
    command = [sys.executable, str(DRIVER), str(place.path), SEEN, str(total), str(at_once)]
    if not writable:
        if os.getuid() != 0:
            pytest.skip("mounting needs root")
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", mount, str(place.path.parent.parent), *command]
    environ = {"PATH": os.environ["PATH"], MAX: "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    ((status, out, err),) = json.loads(done.stdout)
    plan = "baked.plan" if baked else ""
    assert (status, out) == (0, f"None True [] [] {plan} rocm_autopatch.startup\n")
    assert len(err.splitlines()) == 1
    assert files(place) <= before
