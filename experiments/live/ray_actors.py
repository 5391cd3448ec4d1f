# mypy: disable-error-code="import-not-found, no-any-return"
"""Which variables and config values Ray's tasks and actors see in their own threads.

    python ray_actors.py

It needs an interpreter with Ray, our wheel and a torch with a HIP label. It prints ``ok``, or what
differs. Threaded and async actors run methods in other threads than the one that made them. From
torch 2.12 on (pytorch#118387), these threads don't see what a program wrote in that one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MAX = "TORCHINDUCTOR_MAX_AUTOTUNE"
KEYS: tuple[str, ...] = (
    "max_autotune",
    "max_fusion_size",
    "epilogue_fusion",
    "max_autotune_gemm_backends",
)
KEYS += ("triton.cudagraphs", "triton.cudagraph_trees")
TEAM = """
version: 1
name: team
extends: []
env:
  TORCHINDUCTOR_MAX_AUTOTUNE: {delete: true}
  HIP_LAUNCH_BLOCKING: {set: "0"}
config:
  torch._inductor.config:
    max_fusion_size: {default: 100}
    epilogue_fusion: {set: false}
    max_autotune_gemm_backends: {pin: ATEN}
    triton.cudagraphs: {pin: false}
    triton.cudagraph_trees: {pin: false}
  torch._dynamo.config:
    recompile_limit: {default: 77}
"""
# By policy: the values of KEYS, recompile_limit, and HIP_LAUNCH_BLOCKING, given as 1.
WANTED: dict[str, list[Any]] = {
    "safe": [False, 64, True, "ATEN", False, False, 128, "1"],
    "team": [False, 100, False, "ATEN", False, False, 77, "0"],
}


def driver() -> Any:
    """Ask a task and both kinds of actor, twice at once, as a serving program does."""
    import ray

    def look() -> dict[str, Any]:
        import threading

        import torch._dynamo.config as d
        import torch._inductor.config as c

        from rocm_autopatch import status

        def read() -> list[Any]:
            values = [getattr(c, key) for key in KEYS]
            return [*values, d.recompile_limit, os.environ.get("HIP_LAUNCH_BLOCKING")]

        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(read()))
        thread.start()
        thread.join()
        found: Any = status()
        return {
            "pid": os.getpid(),
            "main thread": threading.current_thread() is threading.main_thread(),
            "variable": os.environ.get(MAX),
            "at its start": [row["before"] for row in found["env"] if row["name"] == MAX],
            "here": read(),
            "elsewhere": elsewhere[0],
            "report": [found["active"], found["policy"], found["errors"]],
            "refused": sorted(
                [row["name"].rpartition(".")[2], Path(one["file"]).name, one["value"]]
                for row in found["config"]
                for one in row.get("refused", ())
            ),
        }

    def write() -> None:
        import torch._inductor.config as c

        c.triton.cudagraphs = True
        c.load_config({"max_autotune_gemm_backends": "TRITON"})

    class Threaded:
        def __init__(self) -> None:
            write()

        def look(self) -> dict[str, Any]:
            return look()

    class Async:
        def __init__(self) -> None:
            write()

        async def look(self) -> dict[str, Any]:
            import asyncio

            await asyncio.sleep(0)
            return look()

    with tempfile.TemporaryDirectory() as directory:
        # The variable, once more: Ray hands it to its workers, past what our start removed here.
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100_000_000,
            _temp_dir=directory,
            runtime_env={"env_vars": {MAX: "1", "HIP_LAUNCH_BLOCKING": "1"}},
        )
        try:
            task = ray.remote(look)
            seen = {"task": ray.get([task.remote(), task.remote()])}
            for name, actor in (
                ("threaded actor", ray.remote(Threaded).options(max_concurrency=2).remote()),
                ("async actor", ray.remote(Async).remote()),
            ):
                seen[name] = ray.get([actor.look.remote(), actor.look.remote()])
                ray.kill(actor)
        finally:
            ray.shutdown()
    return {"driver": [look()], **seen}


def differences(policy: str, env: dict[str, str]) -> list[str]:
    """What differs in a driver, and in what it started, from what a policy says."""
    given = {MAX: "1", "HIP_LAUNCH_BLOCKING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, __file__, "--driver"],
        env={**os.environ, **given, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [f"{policy}: status {done.returncode}", *done.stderr.splitlines()[-12:]]
    seen = json.loads(done.stdout.splitlines()[-1])
    found: list[str] = []

    def expect(what: str, got: object, want: object) -> None:
        if got != want:
            found.append(f"{policy}, {what}: {got!r}, not {want!r}")

    wrote = [
        ["cudagraphs", "ray_actors.py", "True"],
        ["max_autotune_gemm_backends", "ray_actors.py", "'TRITON'"],
    ]
    for who, looks in seen.items():
        for one in looks:
            expect(f"{who}: variable", one["variable"], None)
            expect(f"{who}: variable at its start", one["at its start"], ["1"])
            expect(f"{who}: values", one["here"], WANTED[policy])
            expect(f"{who}: values elsewhere", one["elsewhere"], WANTED[policy])
            expect(f"{who}: report", one["report"], [True, policy, []])
            expect(f"{who}: refused", one["refused"], wrote if "actor" in who else [])
            expect(f"{who}: in the main thread", one["main thread"], "actor" not in who)
            expect(f"{who}: in a process of its own", one["pid"] != seen["driver"][0]["pid"],
                   who != "driver")  # fmt: skip
    expect("who looked", [len(looks) for looks in seen.values()], [1, 2, 2, 2])
    return found


def main() -> int:
    """Run a driver under each policy, and print what differs."""
    if sys.argv[1:] == ["--driver"]:
        print(json.dumps(driver()))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        team = Path(directory, "team.yaml")
        team.write_text(TEAM, encoding="utf-8")
        found = differences("safe", {})
        found += differences("team", {"ROCM_AUTOPATCH_POLICY": str(team)})
    print("\n".join(found) or "ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
