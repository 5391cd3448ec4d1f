# mypy: disable-error-code="import-not-found, no-untyped-call"
"""Print as JSON what a process started in this environment sees, read from a worker thread.

The names are those of policies/safe.yaml. The values come from the operating system and from torch,
not from rocm_autopatch.
"""

from __future__ import annotations

import importlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

POLICY = Path(__file__).resolve().parents[1] / "policies" / "safe.yaml"
MODES = ("reduce-overhead", "max-autotune")


def seen() -> dict[str, Any]:
    """Variables, config values and modes, as the calling thread sees them."""
    import torch

    policy = yaml.safe_load(POLICY.read_text(encoding="utf-8"))
    return {
        "installed": find_spec("rocm_autopatch") is not None,
        "torch": torch.__version__,
        "hip": torch.version.hip,
        "gpu": torch.cuda.is_available(),
        "variables": {
            name: os.environ.get(name) for name, rule in policy["env"].items() if "delete" in rule
        },
        "config": {
            f"{module}.{key}": attrgetter(key)(importlib.import_module(module))
            for module, keys in policy["config"].items()
            for key in keys
        },
        "modes": {mode: _mode(mode) for mode in MODES},
    }


def _mode(mode: str) -> dict[str, Any]:
    """What Inductor reads while it compiles in *mode*, for each key that any mode changes."""
    import torch
    from torch._inductor import config, list_mode_options

    options = torch._TorchCompileInductorWrapper(mode, None, None).config
    # The compile_modes patch answers in torch's place: these are the keys of torch's own modes.
    torchs_own = getattr(list_mode_options, "__wrapped__", list_mode_options)
    keys = sorted({key for name in MODES for key in torchs_own(name)})
    # compile_fx() compiles under the same patch.
    with config.patch(options):
        return {"options": options, "effective": {key: attrgetter(key)(config) for key in keys}}


if __name__ == "__main__":
    with ThreadPoolExecutor(max_workers=1) as worker:
        print(json.dumps(worker.submit(seen).result()))
