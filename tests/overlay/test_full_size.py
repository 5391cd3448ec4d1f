"""The overlay on an image of full size: a real torch, imported and compiling in the container.

It takes 1.2 GB and a minute or two, so only where ROCM_AUTOPATCH_TEST_OVERLAY is ``full``. The
torch is 2.13.0 for the CPU with a HIP label: a stand-in for the label, not for the runtime.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import WORK
from containers import Image, Store

from surroundings import hip_torch, image_env

if os.environ.get("ROCM_AUTOPATCH_TEST_OVERLAY") != "full":
    pytest.skip("set ROCM_AUTOPATCH_TEST_OVERLAY=full for an image of 1.2 GB", True)

from test_overlay import MAX, context, overlay, rows, store

__all__ = ["context", "store"]  # fixtures

BASE = "docker.io/rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260129"
PYTHON = "/opt/venv/bin/python3"
# No compiler is in the image: Dynamo and the mode table are asked, and Inductor's code is not.
PROGRAM = """
import json, threading, torch, torch._inductor.config as c
compiled = torch.compile(torch.nn.Linear(4, 4), backend="eager")
x = torch.ones(2, 4)
seen = []
thread = threading.Thread(target=lambda: seen.append([c.max_autotune, c.triton.cudagraph_trees]))
thread.start(); thread.join()
mode = dict(torch._TorchCompileInductorWrapper("reduce-overhead", None, None).config)
print(json.dumps([list(compiled(x).shape), seen, mode]))
"""


@pytest.fixture(scope="module")
def full(store: Store, context: Path) -> Image:
    _, hip = hip_torch.create(WORK)
    name = store.buildah("from", "--pull-never", store.debian()).stdout.strip()
    root = Path(store.buildah("mount", name).stdout.strip())
    subprocess.run(["chroot", root, "python3", "-m", "venv", "/opt/venv"], check=True)
    site = root / "opt/venv/lib/python3.11/site-packages"
    subprocess.run(["cp", "-r", f"{hip_torch.site_packages(hip)}/.", site], check=True)
    variables = {**image_env.load().env, "PATH": "/opt/venv/bin:/usr/bin:/bin"}
    settings = [word for item in variables.items() for word in ("--env", "=".join(item))]
    store.buildah("config", *settings, name)
    store.buildah("commit", "-q", name, BASE)
    store.buildah("rm", name)
    overlay(store, context, BASE, "localhost/overlay-tests/full")
    return Image(store, "localhost/overlay-tests/full")


def test_status_with_torch(full: Image) -> None:
    done = full.run(PYTHON, "-m", "rocm_autopatch", "status", "--json")
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["baked"] == "/opt/venv/lib/python3.11/site-packages/rocm_autopatch/baked.plan"
    assert report["facts"]["image"]["value"] == BASE
    assert {row["status"] for row in report["patches"]} == {"applied"}
    assert {row["status"] for row in report["config"]} == {"applied"}
    assert (rows(report)[MAX]["origin"], rows(report)[MAX]["status"]) == ("image", "applied")


@pytest.mark.parametrize(("user", "read_only"), [("0:0", False), ("65534:65534", True)])
def test_a_program(full: Image, tmp_path: Path, user: str, read_only: bool) -> None:
    # Torch itself wants a directory for temporary files, where nothing else can be written.
    tmp_path.chmod(0o777)
    done = full.run(
        *(PYTHON, "-c", PROGRAM), user=user, read_only=read_only, mounts={"/tmp": tmp_path}
    )
    shape, seen, mode = json.loads(done.stdout)
    assert (shape, seen) == ([2, 4], [[False, False]])
    assert not mode.get("triton.cudagraphs")
    assert len([line for line in done.said if line.startswith("rocm_autopatch: ")]) == 1
