"""Ways to run a model, side by side: one process each, what it prints, and the GPU's memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def apply(use: str, small: bool) -> None:
    """Have ``reduce-overhead`` stand for our graphs. On a CPU, the stand-in takes them."""
    import torch

    from rocm_autopatch.patches import compile_modes

    if small:
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "graphs"))
        import stand_in

        stand_in.install()
    compile_modes.apply(torch, [("reduce-overhead", use, "benchmark", "")], (), False)


def graphs() -> list[dict[str, Any]]:
    """What the record says of this process, without each graph."""
    from rocm_autopatch.graphs import record

    keys = ("name", "calls", "replays", "plain", "refused")
    rows = [{**row} for row in record.render_rows()]
    return [{key: row[key] for key in keys} for row in rows]


def started(script: str, arguments: Sequence[str], label: str) -> dict[str, Any] | None:
    """What a process of a script says in its last line; None if it fails, which is told."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, "ROCM_AUTOPATCH": "off"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(f"{label}: {_ended(done.returncode)}{_last(done.stderr)}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ended(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _last(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
