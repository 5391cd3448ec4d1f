"""Caches that are kept, under the real torch: in a layer, by many at once, by processes that die.

Inductor compiles for the CPU, with a C++ compiler. What needs a process of its own imports torch
anew; the rest are forks of one process that has imported it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rocm_autopatch.startup import caches
from tests.conftest import Interpreter
from tests.programs import program_file
from tests.running import run_mounted

PROGRAM = """
import json, torch
compiled = torch.compile(lambda x: (x * 2).relu().sum())
value = compiled(torch.arange(8.0)).item()
import rocm_autopatch
caches = rocm_autopatch.status()["caches"]
print(json.dumps([value, caches["hits"], caches["misses"], caches["reason"]]))
"""
TOGETHER = program_file("cache_real/together.py")
KILLED = program_file("cache_real/killed.py")
CUT = program_file("cache_real/cut.py")
CONFIGS = program_file("cache_real/configs.py")
# "make live" has fifty.
MANY = int(os.environ.get("ROCM_AUTOPATCH_TEST_CACHES", "6"))


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "XDG_CACHE_HOME": "", "ROCM_AUTOPATCH_CACHE": "on"}


def forks(python: Interpreter, directory: Path, program: Path, *arguments: str) -> Any:
    done = python.run(
        program,
        str(directory),
        *arguments,
        env=environment(directory),
        timeout=900,
    )
    return json.loads(done.stdout)


def test_a_read_only_layer_and_another_home(torch_python: Interpreter, tmp_path: Path) -> None:
    # As another user it is tried in a container (tests/overlay), with a stand-in for torch.
    env = environment(tmp_path)
    cold = json.loads(torch_python.run("-c", PROGRAM, env=env).stdout)
    assert cold == [56, 0, 1, ""]
    below, home = tmp_path / "below", tmp_path / "home"
    os.rename(tmp_path / ".cache" / "rocm-autopatch", below)
    for path in (below, *below.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    home.mkdir()
    script = (
        f"mount -t tmpfs none /usr/local/share && mkdir -p {caches.LAYER} && "
        f"mount --bind {below} {caches.LAYER} && mount -o remount,ro,bind {caches.LAYER}"
    )
    env = {**torch_python.environment(env), "HOME": str(home), "USER": "nobody"}
    done = run_mounted(script, torch_python.path, "-c", PROGRAM, env=env, cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [56, 1, 0, ""]
    (place,) = (home / ".cache" / "rocm-autopatch").iterdir()
    assert any(path.is_symlink() for path in (place / "inductor").rglob("*"))


def test_many_at_once(torch_python: Interpreter, tmp_path: Path) -> None:
    found = forks(torch_python, tmp_path, TOGETHER, str(MANY))
    assert [row[0] for row in found] == [84] * (MANY + 1)
    # Each found the graph or compiled it; the last one found it.
    assert all(row[1] + row[2] == 1 for row in found)
    assert found[-1] == [84, 1, 0]


def test_killed_at_any_moment(torch_python: Interpreter, tmp_path: Path) -> None:
    """Whatever a process leaves that is killed while it compiles, what comes later is right."""
    for number, said in forks(torch_python, tmp_path, KILLED, str(MANY), "1"):
        assert said is not None, f"graph {number}: two processes after the killed one failed"
        assert said[0] == 28 * number
        assert said[1] + said[2] == 1


def test_a_kernel_that_is_cut_off(torch_python: Interpreter, tmp_path: Path) -> None:
    """It is removed. AOTAutograd's cache gives up at the error, and Inductor compiles it."""
    done = torch_python.run(CUT, tmp_path, env=environment(tmp_path), timeout=900)
    first, second, third = json.loads(done.stdout)
    assert first == [84, 0, 1]
    assert second == third == [84, 1, 0]
    said = [line for line in done.stderr.splitlines() if "can't be loaded and is removed" in line]
    assert len(said) == 1


def test_configs_are_kept_in_the_place(torch_python: Interpreter, tmp_path: Path) -> None:
    """Not where a graph was compiled, where this user may be able to do nothing."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    done = torch_python.run(CONFIGS, elsewhere, env=environment(tmp_path))
    place, brought, name, found, others = json.loads(done.stdout)
    assert (brought, found) == (f"{place}/inductor/ab/{name}", True)
    # Within the place, and where no cache is.
    assert [Path(one).parent for one in others] == [
        Path(place, "inductor/cd"),
        elsewhere / "kernels",
    ]


def test_configs_are_kept_where_the_user_has_caches(
    torch_python: Interpreter, tmp_path: Path
) -> None:
    """As vLLM does, which has Inductor's files in its own part of the place."""
    own = {**environment(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own")}
    done = torch_python.run(CONFIGS, tmp_path / "other", env=own)
    _, brought, name, found, _ = json.loads(done.stdout)
    assert (brought, found) == (f"{tmp_path}/own/ab/{name}", True)


def test_a_full_disk(torch_python: Interpreter, tmp_path: Path) -> None:
    """A root without room is not used, so the program does not fail for it."""
    root = tmp_path / "root"
    root.mkdir()
    script = f"mount -t tmpfs -o size=4m none {root} && chmod 700 {root}"
    env = {**torch_python.environment(environment(tmp_path)), "ROCM_AUTOPATCH_CACHE": str(root)}
    env["TMPDIR"] = str(tmp_path)
    done = run_mounted(script, torch_python.path, "-c", PROGRAM, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    value, hits, misses, reason = json.loads(done.stdout)
    assert (value, hits, misses) == (56, 0, 0)
    assert f"no cache is kept: {reason}" in done.stderr
    assert "has less than 128 MiB of room left" in reason
