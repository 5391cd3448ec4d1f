"""What a start may cost, in instructions and modules, so that no change uses the room unseen.

callgrind counts the instructions of ``python -c pass`` above the same environment without us. They
are the same at each run, but differ between Pythons. The limits are for CPython 3.11, and at most a
few percent above what is counted there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import (
    HIP,
    Interpreter,
    label_torch,
    make_hooked,
    make_venv,
    run_with_site,
)
from tests.names import MI30X_IMAGE
from tests.test_evidence import put

pytestmark = [
    pytest.mark.skipif(
        shutil.which("valgrind") is None, reason="valgrind counts the instructions: not installed"
    ),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the limits are for CPython 3.11"),
]
MILLION = 1_000_000


def instructions(python: Interpreter, site: Path | None = None, /, **env: str) -> int:
    """Instructions of an interpreter's start and end, after every .pyc was written.

    *site* is what /etc/rocm-autopatch has.
    """
    env = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONHASHSEED": "0", **env}
    python.run("-c", "pass", env=env)
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [*valgrind, str(python.path), "-c", "pass"]
    if site:
        done = run_with_site(site, *command, **env)
    else:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.fixture(scope="module")
def hooked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    # Its path is as long as the bare one's, because paths are hashed, joined and compared.
    made = make_hooked(tmp_path_factory.mktemp("cost") / "ours", wheel)
    # Bytecode that was copied names another place, and an import corrects that, which costs.
    made.run("-m", "compileall", "-q", "-f", made.site_packages / "rocm_autopatch")
    return made


@pytest.fixture(scope="module")
def bare(hooked: Interpreter) -> Interpreter:
    made = make_venv(hooked.path.parents[2] / "bare")
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    return made


@pytest.fixture(scope="module")
def child(hooked: Interpreter) -> dict[str, str]:
    """The environment that a process gives to its children, after its start has changed it."""
    show = "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')"
    return dict(line.split("=", 1) for line in hooked.value(show).splitlines())


def test_off(hooked: Interpreter, bare: Interpreter) -> None:
    assert instructions(hooked, ROCM_AUTOPATCH="off") - instructions(bare) < 1.14 * MILLION


def test_nothing_applies(hooked: Interpreter, bare: Interpreter, tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(label_torch(tmp_path, "2.13.0+cpu", None))}
    assert instructions(hooked, **env) - instructions(bare, **env) < 1.27 * MILLION


def test_no_torch(hooked: Interpreter, bare: Interpreter) -> None:
    torches = [(made.site_packages / "torch") for made in (hooked, bare)]
    for torch in torches:
        torch.rename(torch.with_name("aside"))
    try:
        assert instructions(hooked) - instructions(bare) < 1.65 * MILLION
        code = "import sys; print([n for n in sys.modules if n.startswith('rocm_autopatch')])"
        assert hooked.value(code) == "['rocm_autopatch', 'rocm_autopatch.late_site']"
    finally:
        for torch in torches:
            torch.with_name("aside").rename(torch)


def test_active(hooked: Interpreter, bare: Interpreter, child: dict[str, str]) -> None:
    assert instructions(hooked) - instructions(bare) < 2.5 * MILLION
    image = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    assert instructions(hooked, **image) - instructions(bare, **image) < 2.61 * MILLION
    assert instructions(hooked, **child) - instructions(bare, **child) < 2.5 * MILLION


def test_image_named(hooked: Interpreter, bare: Interpreter) -> None:
    env = {"ROCM_AUTOPATCH_IMAGE": MI30X_IMAGE}
    assert instructions(hooked, **env) - instructions(bare, **env) < 3.1 * MILLION


def test_baked(
    hooked: Interpreter, bare: Interpreter, child: dict[str, str], tmp_path: Path
) -> None:
    policy = tmp_path / "team.yaml"
    without = instructions(bare, **child)
    costs = []
    for rules in (1, 1_500):
        # Their conditions don't hold, so the same rules apply.
        entries = "".join(f"  NAME_{i}: {{default: a, since: '9.{i}'}}\n" for i in range(rules))
        policy.write_text("version: 1\nenv:\n" + entries.replace("'9.0'", "'2.4'"))
        hooked.run("-m", "rocm_autopatch", "bake", "--image", MI30X_IMAGE, "--policy", policy)
        costs.append(instructions(hooked, **child) - without)
    (hooked.site_packages / "rocm_autopatch" / "baked.plan").unlink()
    few, many = costs
    assert few < 2.6 * MILLION
    # Only the first 64 KiB of a file are hashed.
    assert many - few < 0.25 * MILLION


def test_baked_with_evidence(hooked: Interpreter, child: dict[str, str], tmp_path: Path) -> None:
    """It costs a mark of each evidence file, and room in the plan: the machine is not looked at."""
    costs = []
    for trials in (None, 1, 3_000):
        site = tmp_path / str(trials)
        (site / "evidence").mkdir(parents=True)
        if trials:
            put(site, {"cudagraphs": True}, trials=[{"subject": "cudagraphs"}] * trials)
        run_with_site(site, hooked.path, "-m", "rocm_autopatch", "bake", "--image", MI30X_IMAGE)
        costs.append(instructions(hooked, site, **child))
    (hooked.site_packages / "rocm_autopatch" / "baked.plan").unlink()
    without, few, many = costs
    assert few - without < 0.05 * MILLION
    # Only the first 64 KiB of a file are hashed.
    assert many - few < 0.25 * MILLION


def test_caches(hooked: Interpreter, tmp_path: Path) -> None:
    """A directory for all caches costs two modules and a look at the place; it is made once."""
    for use in ("on", "off"):
        (tmp_path / use).write_text(f"version: 1\nextends: safe\ncaches: {use}\n")
    costs = []
    for use in ("on", "off"):
        hooked.run("-m", "rocm_autopatch", "bake", "--policy", tmp_path / use)
        costs.append(instructions(hooked, XDG_CACHE_HOME=str(tmp_path)))
    (hooked.site_packages / "rocm_autopatch" / "baked.plan").unlink()
    used, unused = costs
    assert os.listdir(tmp_path / "rocm-autopatch")
    # The path of the test's directory differs, and its length counts.
    assert used - unused < 0.77 * MILLION
