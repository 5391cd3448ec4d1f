"""The result of a search as a policy file, with a reason for each entry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.measure.ab.toggles import CONFIG, MODE
from rocm_autopatch.measure.tune.candidates import SwitchCandidate
from rocm_autopatch.policy import lint, load, lower
from rocm_autopatch.policy.problem import ERROR, PolicyError
from rocm_autopatch.trust import is_path


def policy_text(
    here: ProgramPlace,
    name: str,
    description: str,
    entries: Sequence[tuple[SwitchCandidate, str]],
) -> str:
    """A policy with *entries*, each with its why, on top of what applies here.

    It does what the arms of the search did: values are pinned, and variables are set whatever their
    value is.
    """
    document: dict[str, object] = {"version": 1, "name": name, "description": description}
    if not here.is_rocm:
        document["extends"] = []  # No policy applies here, so it has nothing to stand on.
    elif here.named:
        base = here.named
        if is_path(base):
            base = str(Path(base).resolve())
        document["extends"] = base
    # By section of the policy its entries, the sections in the order of their first entries.
    sections: dict[str, dict[str, object]] = {}
    modules: dict[str, dict[str, object]] = {}
    for one, why in entries:
        toggle, value = one.toggle, one.value
        if toggle.kind == CONFIG:
            module, _, key = toggle.name.partition(".config.")
            keys = modules.setdefault(f"{module}.config", {})
            keys[lower.current(key)] = {"pin": value, "insist": True, "why": why}
            sections.setdefault("config", {}).update(modules)
        elif toggle.kind == MODE:
            sections.setdefault("compile_modes", {})[toggle.name] = {"use": value, "why": why}
        else:
            action = {"delete": True} if value is None else {"set": value}
            rule = {**action, "insist": True, "why": why}
            sections.setdefault("env", {})[toggle.name] = rule
    document.update(sections)
    written: str = yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)
    return written


def check_policy_file(path: Path, torch: str) -> None:
    """Raise PolicyError if ``check`` would find an error in the policy at *path*."""
    policy = load.top(str(path))
    layers = load.layers(policy)
    versions = [v for v in lint.known_versions() if f"{torch}.".startswith(f"{v}.")]
    if not versions:
        return
    below = [layer for layer in layers if layer.file != policy.file]
    wrong = [one for one in lint.lint(policy, versions, below) if one.severity == ERROR]
    if wrong:
        raise PolicyError(wrong)
