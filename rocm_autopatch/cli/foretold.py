"""What config keys have in the torch that is here, told from a table of all torches.

To import torch takes seconds, and a start does not say what it would have had. The table is
``policy/torch_keys.json``; torch's version comes from its ``version.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocm_autopatch import startup
from rocm_autopatch.patches import config


def foretell_values(report: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The report with what torch's own table says of the config keys that wait for torch.

    Their rows get ``own``, torch's own value, where nothing in *environ* speaks for the key. A key
    that this torch has not is skipped, as it will be. Nothing is added of a torch that the table
    has not, or where the table can't be read: an overlay installs the wheel alone, and PyYAML or
    packaging may be missing or broken.
    """
    if not any(row["status"] == "waiting" for row in report["config"]):
        return report
    torch = report["facts"].get("torch", {}).get("value", "")
    version = ".".join(map(str, startup.release(torch)[:2]))
    try:
        from rocm_autopatch.policy import lint

        known = lint.keys_of(version) if version in lint.known_versions() else {}
    except Exception:
        return report
    if not known:
        return report
    present = {*environ}
    for row in report["env"]:
        present.discard(row["name"])
        present.update({row["name"]} if row["after"] is not None else ())

    def tell(row: dict[str, Any]) -> dict[str, Any]:
        if row["status"] != "waiting":
            return row
        module, key = _split_name(row["name"])
        there = [f"{module}.{name}" for name in (key, *config.names(key))]
        record = next((known[name][1] for name in there if name in known), None)
        if record is None:
            return {**row, "status": "skipped", "reason": config.NO_SUCH_KEY}
        speaks = {*record.env, *record.env_default, *record.env_force}
        if not record.has_default or record.implied or not speaks.isdisjoint(present):
            return row
        return {**row, "own": record.default}

    return {**report, "config": [*map(tell, report["config"])]}


def _split_name(name: str) -> tuple[str, str]:
    """The module and the key of a config entry's name."""
    module = next(one for one in config.TARGETS if name.startswith(one + "."))
    return module, name[len(module) + 1 :]
