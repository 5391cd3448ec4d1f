"""Graphs without a GPU: tests/graphs with a stand-in for the GPU, on the real torch."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked
from tests.conftest import LEFT_OUT, ROOT, WORK, Interpreter, pip
from tests.messages import Golden

ON = {"ROCM_AUTOPATCH_LOG": "quiet"}


GRAPHS = "tests/graphs/"
TRAINING = (f"{GRAPHS}test_training.py", "-k", "steps or dropout or shapes")


def left_out(runs: str) -> list[str]:
    """The tests of tests/graphs that "make test" leaves out, for later or for the nightly."""
    return [name for name, when in LEFT_OUT.items() if name.startswith(GRAPHS) and when == runs]


def select(*names: str) -> list[str]:
    """The names for a command line. Of one that is only the begin of an id, the whole function."""
    return [one if "[" not in one or one.endswith("]") else one.partition("[")[0] for one in names]


def deselect(*names: str) -> list[str]:
    return [word for name in names for word in ("--deselect", name)]


@pytest.fixture
def run_with_a_stand_in(torch_python: Interpreter, tmp_path: Path) -> Callable[..., str]:
    """Runs pytest on tests/graphs with the real torch, and gives what it says."""
    pip(torch_python, "install", "pytest")
    # It does not run in the checkout, whose package would be found before the wheel's.
    shutil.copytree(ROOT / GRAPHS, tmp_path / GRAPHS)
    # It has the order of locks.
    (tmp_path / "research").mkdir()
    shutil.copy(ROOT / "research" / "graphs-inside.md", tmp_path / "research")
    # What is compiled is kept as long as neither the graphs nor their tests change.
    text = b"".join(
        path.read_bytes()
        for directory in (ROOT / "rocm_autopatch" / "graphs", ROOT / GRAPHS)
        for path in sorted(directory.glob("*.py"))
    )
    caches = WORK.absolute() / "cache" / f"graphs-{hashlib.sha256(text).hexdigest()[:16]}"
    for other in caches.parent.glob("graphs-*"):
        if other != caches:
            shutil.rmtree(other, ignore_errors=True)
    env = {
        "ROCM_AUTOPATCH": "off",
        "HOME": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
    }

    def run(*arguments: str) -> str:
        done = torch_python.run(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--show-capture=no"),
            *("--rootdir", tmp_path),
            *arguments,
            env=env,
            cwd=tmp_path,
            check=False,
            timeout=9000,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_with_a_stand_in(run_with_a_stand_in: Callable[..., str]) -> None:
    elsewhere = [name for runs in ("ci", "later", "nightly") for name in left_out(runs)]
    said = run_with_a_stand_in(GRAPHS, *deselect(*elsewhere))
    found = re.search(r"(\d+) passed, (\d+) skipped", said)
    assert found is not None, said
    passed, skipped = map(int, found.groups())
    # Skipped tests need a GPU, one transformers. "python -m pytest tests/graphs" runs them there.
    assert (passed >= 300, skipped <= 26) == (True, True), said
    assert "4 passed" in run_with_a_stand_in(*TRAINING)


def test_again_with_a_stand_in(run_with_a_stand_in: Callable[..., str]) -> None:
    # With warm caches, torch finds a backward together with its forward.
    for _ in ("cold", "warm"):
        assert "4 passed" in run_with_a_stand_in(*TRAINING)


def test_soon_with_a_stand_in(run_with_a_stand_in: Callable[..., str]) -> None:
    run_with_a_stand_in(*select(*left_out("ci")))


def test_later_with_a_stand_in(run_with_a_stand_in: Callable[..., str]) -> None:
    run_with_a_stand_in(*select(*left_out("later")), *deselect(*left_out("nightly")))


def test_nightly_with_a_stand_in(run_with_a_stand_in: Callable[..., str]) -> None:
    run_with_a_stand_in(*select(*left_out("nightly")))


POLICY = """
version: 1
name: mine
extends: []
compile_modes: {reduce-overhead: graphs}
"""
HEAD = """
import json, sys, torch, torch._dynamo, rocm_autopatch
"""
PROGRAM = """
model = torch.nn.Linear(4, 4)
fast = torch.compile(model, mode="reduce-overhead")
with torch.no_grad():
    x = torch.ones(2, 4)
    same = [bool(torch.allclose(fast(x), model(x))) for _ in range(3)]
report = rocm_autopatch.status()
print(json.dumps([same, report["compile_modes"], report["graphs"], report["errors"]]))
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("graphs") / "mine.yaml"
    file.write_text(POLICY)
    return str(file)


@pytest.fixture(scope="module")
def ran(torch_python: Interpreter, policy: str) -> subprocess.CompletedProcess[str]:
    return forked.run(torch_python, HEAD, PROGRAM, env={"ROCM_AUTOPATCH_POLICY": policy})


def test_the_mode_without_a_gpu(ran: subprocess.CompletedProcess[str], golden: Golden) -> None:
    same, mode, graphs, errors = json.loads(ran.stdout)
    assert (same, errors) == ([True] * 3, [])
    assert [(one["after"], one["status"], one["uses"]) for one in mode] == [
        ("graphs", "applied", 1)
    ]
    (row,) = graphs
    ((why, count),) = row["plain"].items()
    assert count == 3
    golden(why)
    assert (row["calls"], row["replays"], row["origin"]) == (3, 0, "reduce-overhead")


def test_it_says_once_what_runs_without_a_graph(
    ran: subprocess.CompletedProcess[str], golden: Golden
) -> None:
    said = ran.stderr.splitlines()
    about = [line for line in said if line.startswith("rocm_autopatch: graphs: ")]
    golden("\n".join(about))


def test_kept(torch_python: Interpreter, policy: str) -> None:
    env = {**ON, "ROCM_AUTOPATCH_POLICY": policy, "ROCM_AUTOPATCH_KEEP": "reduce-overhead"}
    _, (mode,), graphs, _ = json.loads(torch_python.run("-c", HEAD + PROGRAM, env=env).stdout)
    assert (mode["status"], mode["after"], graphs) == ("kept", "reduce-overhead", [])


def test_graphs_are_not_loaded_for_other_modes(torch_python: Interpreter, policy: str) -> None:
    program = (
        "torch.compile(torch.nn.Linear(1, 1))(torch.ones(1));"
        "print([name for name in sys.modules if name.startswith('rocm_autopatch.graphs')])"
    )
    done = forked.run(torch_python, HEAD, program, env={"ROCM_AUTOPATCH_POLICY": policy})
    assert done.stdout == "[]\n"
