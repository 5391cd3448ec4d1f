"""How many compile workers a process has CPUs for, and who says that there are too many.

The cgroups of most tests are files in a directory that stands for ``/``. The last tests make one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.startup import cpus
from tests.conftest import Interpreter

SEEN = len(os.sched_getaffinity(0))
WORKERS = "TORCHINDUCTOR_COMPILE_THREADS"
# What is in /proc/self/cgroup, the files below /sys/fs/cgroup, and the quota in CPUs.
V1 = "cpu.cfs_quota_us", "cpu.cfs_period_us"
GROUPS: dict[str, tuple[str, dict[str, str], float]] = {
    "version 2": ("0::/", {"cpu.max": "400000 100000"}, 4),
    "version 2, no limit": ("0::/", {"cpu.max": "max 100000"}, 0),
    "version 2, a part of a CPU": ("0::/a", {"a/cpu.max": "50000 100000"}, 0.5),
    "version 2, a parent": ("0::/a/b", {"a/cpu.max": "4 2", "a/b/cpu.max": "max 2"}, 2),
    "version 2, the host's path": ("0::/kubepods/x", {"cpu.max": "200000 100000"}, 2),
    "version 1": ("1:cpu:/", {f"cpu/{V1[0]}": "400000", f"cpu/{V1[1]}": "100000"}, 4),
    "version 1, no limit": ("1:cpu:/", {f"cpu/{V1[0]}": "-1", f"cpu/{V1[1]}": "100000"}, 0),
    "version 1, two controllers": (
        "4:cpu,cpuacct:/a\n3:cpuset:/b",
        {f"cpu,cpuacct/a/{V1[0]}": "300000", f"cpu,cpuacct/a/{V1[1]}": "100000"},
        3,
    ),
    "version 1, the host's path": (
        "1:cpu:/docker/1",
        {f"cpu/{V1[0]}": "400000", f"cpu/{V1[1]}": "100000"},
        4,
    ),
    "both": (
        "1:cpu:/\n0::/",
        {f"cpu/{V1[0]}": "400000", f"cpu/{V1[1]}": "100000", "unified/cpu.max": "max 100000"},
        4,
    ),
    "nothing": ("", {}, 0),
    "damaged": ("0::/\nx\n:\n1:cpu", {"cpu.max": "x y z"}, 0),
    "zero": ("0::/", {"cpu.max": "100000 0"}, 0),
}


def put(root: Path, groups: str, files: dict[str, str]) -> str:
    for name, text in {"proc/self/cgroup": groups, **_below(files)}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


def _below(files: dict[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup/{name}": text for name, text in files.items()}


@pytest.mark.parametrize("name", GROUPS)
def test_quota(name: str, tmp_path: Path) -> None:
    groups, files, expected = GROUPS[name]
    assert cpus.cpu_quota(put(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"LOCAL_WORLD_SIZE": "1", "SLURM_NTASKS_PER_NODE": "8"}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
    ],
)
def test_ranks_of_a_node(environ: dict[str, str], ranks: int) -> None:
    assert cpus.local_ranks(environ) == ranks


@pytest.mark.parametrize(
    ("seen", "quota", "ranks", "share", "said"),
    [
        (192, "max", 1, 32, ""),
        (192, "400000", 1, 4, "32 workers on a quota of 4 CPUs"),
        (192, "400000", 8, 1, "32 workers on a quota of 4 CPUs for 8 ranks on this node"),
        (192, "max", 8, 24, "32 workers on 192 CPUs for 8 ranks on this node"),
        (192, "150000", 1, 1, "32 workers on a quota of 1.5 CPUs"),
        (192, "100000", 1, 1, "32 workers on a quota of 1 CPU"),
        (16, "6400000", 1, 16, "32 workers on 16 CPUs"),
    ],
)
def test_share(
    seen: int,
    quota: str,
    ranks: int,
    share: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(seen)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    root = put(tmp_path, "0::/", {"cpu.max": f"{quota} 100000"})
    assert (cpus.cpu_share(root), cpus.describe_crowding(32, root)) == (share, said)
    assert cpus.describe_crowding(share, root) == ""


@pytest.fixture
def group() -> Iterator[Path]:
    """A real cgroup with half a CPU."""
    for mount, name, text in (("cpu", V1[0], "50000"), ("", "cpu.max", "50000 100000")):
        place = Path("/sys/fs/cgroup", mount, f"rocm_autopatch_test_{os.getpid()}")
        try:
            place.mkdir()
        except OSError:
            continue
        try:
            (place / name).write_text(text)
            yield place
            return
        except OSError:
            pass
        finally:
            place.rmdir()
    pytest.skip("no cgroup with a quota can be made here")


def inside(group: Path, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the cgroup, under ``safe``."""
    script = 'echo $$ > "$0" && exec "$@"'
    words = ["sh", "-c", script, str(group / "cgroup.procs"), *map(str, command)]
    environ = {name: value for name, value in os.environ.items() if "TORCH" not in name}
    environ.update(ROCM_AUTOPATCH_POLICY="safe", **env)
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


READ = "import torch._inductor.config as c; print(c.compile_threads)"


class TestARealQuota:
    def test_the_default(self, torch_python: Interpreter, group: Path) -> None:
        if SEEN == 1:
            pytest.skip("torch starts no worker here by itself")
        assert inside(group, torch_python.path, "-c", READ).stdout == "1\n"
        off = inside(group, torch_python.path, "-c", READ, ROCM_AUTOPATCH="off")
        assert off.stdout == f"{min(SEEN, 32)}\n"

    def test_it_yields_to_the_variable_and_to_a_write(
        self, torch_python: Interpreter, group: Path
    ) -> None:
        said = inside(group, torch_python.path, "-c", READ, **{WORKERS: "7"})
        assert said.stdout == "7\n"
        write = READ.replace("print", "c.compile_threads = 5; print")
        assert inside(group, torch_python.path, "-c", write).stdout == "5\n"

    def test_status(self, torch_python: Interpreter, group: Path) -> None:
        command = (torch_python.path, "-m", "rocm_autopatch", "status", "--json")
        found = json.loads(inside(group, *command).stdout)
        (row,) = [one for one in found["config"] if one["name"].endswith(".compile_threads")]
        assert (row["status"], row["after"]) == ("applied", 1)
        if SEEN > 1:
            assert row["reason"] == "for a quota of 0.5 CPUs"
        assert not [note for note in found["notes"] if "workers" in note]
        found = json.loads(inside(group, *command, **{WORKERS: "32"}).stdout)
        (note,) = [note for note in found["notes"] if "workers" in note]
        assert note.startswith("torch compiles with 32 workers on a quota of 0.5 CPUs")

    def test_probe(self, torch_python: Interpreter, group: Path) -> None:
        command = (torch_python.path, "-m", "rocm_autopatch", "probe", "--json")
        found = json.loads(inside(group, *command, **{WORKERS: "32"}).stdout)
        (note,) = [note for note in found["notes"] if "workers" in note]
        assert note.startswith("torch compiles with 32 workers on a quota of 0.5 CPUs")
        if SEEN > 1:
            found = json.loads(inside(group, *command).stdout)
            (note,) = [note for note in found["notes"] if "workers" in note]
            assert f"{min(SEEN, 32)} workers on a quota of 0.5 CPUs; with rocm_autopatch 1" in note


def test_the_watchdog_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the kernel that is waited for, as in torch's async_compile.py."""
    from types import SimpleNamespace

    from rocm_autopatch.patches.watchdog import frame_details

    config = SimpleNamespace(compile_threads=32)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cpus, "cpu_quota", lambda root="/": 0.0)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    code = compile(
        "def wait(key, kernels): return here()", "torch/_inductor/async_compile.py", "exec"
    )
    scope: dict[str, Any] = {"here": lambda: sys._getframe(1)}
    exec(code, scope)
    frame = scope["wait"]("kernel_0", {"kernel_0": None})
    assert frame_details.tell_workers(frame) == [
        "for kernel_0, 1 of 1 left",
        "32 workers on 4 CPUs",
    ]
    config.compile_threads = 4
    assert frame_details.tell_workers(frame) == ["for kernel_0, 1 of 1 left"]
