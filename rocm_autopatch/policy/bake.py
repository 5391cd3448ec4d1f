"""A plan that is resolved once, so that starts need not.

A start uses it until something changes that it was resolved from (``plan.BakedPlan``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rocm_autopatch import _ASSUME, _HERE, fresh_interpreter, patches, policy_dirs, startup
from rocm_autopatch.evidence import file, machine, match
from rocm_autopatch.plan import ENV_FIELDS, BakedPlan, Plan, named_fields
from rocm_autopatch.policy import load, plan_file, select
from rocm_autopatch.startup.misnamed import INSTEAD
from rocm_autopatch.startup.unbaked import BAKED_IMAGE
from rocm_autopatch.support import files
from rocm_autopatch.trust import is_path

# Run in a fresh interpreter: what a start decides here, whatever is baked.
_DECISION = """
import json
from rocm_autopatch.image import start_facts
print(json.dumps(start_facts.decision()))
"""
# The torch that a start found, before site had read all .pth files.
_TORCH_OF_START = """
import json
from rocm_autopatch.image import start_facts
print(json.dumps(start_facts.torch_of_start()))
"""


# For a variable that is not to be set. One object, so that a plan file has it once.
_NO = (b"",)
# The parts of a plan that a start carries out before torch is imported.
_AT_START = ("env", "empty", "insist", "image_only", "caches")


class NotBaked(fresh_interpreter.NoReport):
    """Nothing was written; the text says why."""


@dataclass(frozen=True)
class Baked:
    """A baked plan; the facts that it fixes, by name; the files that it was made from; and the
    variables that a user may still set.

    ``machine`` is the one on which evidence changes the plan, {} if there is none. ``evidence`` are
    the files, ``unused`` is why none of those that are there was used.
    """

    plan: BakedPlan
    fixed: dict[str, str]
    sources: list[str]
    variables: list[str]
    machine: dict[str, str]
    evidence: list[str]
    unused: str


def resolve(image: str, policy: str) -> Baked:
    """The plan of this place, where *image* and *policy* are named, "" where they are not.

    Raises PolicyError and NotBaked.
    """
    package = Path(_HERE, "plans", "id")
    if not package.is_file():
        raise NotBaked(
            "a checkout or an editable install can't be baked: its files may change at any time"
        )
    named = os.environ.get("ROCM_AUTOPATCH_POLICY", "").strip()
    if not policy and is_path(named) and not os.path.isabs(named):
        raise NotBaked(f"ROCM_AUTOPATCH_POLICY={named} is a relative path; give an absolute one")
    start = _start_here(image)
    known = {name: (value, source) for name, (value, source) in start["facts"].items()}
    accelerator, _ = known.get("accelerator", ("", ""))
    if accelerator != "rocm":
        raise NotBaked(start["reason"])
    if is_path(policy):
        policy = os.path.abspath(policy)
    torch, _ = known.get("torch", ("", ""))
    place, unused = _machine(torch)
    found = select.lowered(known, policy or named, place)
    chosen = found.chosen
    lowered, proven = _for_torch(found.without, known), _for_torch(found.plan, known)
    changes = {key: value for key, value in proven.items() if value != lowered.get(key)}
    # A start waits for the modules of both.
    lowered["targets"] = tuple(dict.fromkeys((*lowered["targets"], *proven["targets"])))
    _, torch_file = known["torch"]
    layers = {Path(layer.file).resolve() for layer in chosen.layers}
    own = load.BUILTIN.resolve()
    sources = [Path(torch_file), package]
    sources += sorted(path for path in layers if own not in path.parents)
    there = [(site, sorted(os.listdir(site)) if site.is_dir() else []) for site in select.sites()]
    here = [site / name for site, names in there for name in names]
    sources += [path for path in here if path not in sources and not path.is_dir()]
    sources += file.site_paths()
    # Includes records that don't hold here: the machine that bakes an image may have no GPU.
    rows = [row for row in select.images() if row.changes or row.base]
    asked = {name for policy in (*chosen.layers, *rows) for name in policy.when}
    named_image, _ = known.get("image", ("", ""))
    at = os.environ.get(policy_dirs.VARIABLE, "").strip()
    plan: BakedPlan = {
        **lowered,
        "wishes": (
            (_ASSUME.encode(), _NO),
            (b"ROCM_AUTOPATCH_POLICY", (os.fsencode(named),) if named and not policy else _NO),
            (b"ROCM_AUTOPATCH_IMAGE", (b"", os.fsencode(named_image)) if named_image else _NO),
            (policy_dirs.VARIABLE.encode(), (os.fsencode(at),) if at else _NO),
        ),
        "named": policy or named,
        "torch": torch_file,
        "sites": [(str(site), names) for site, names in there],
        "sources": [(str(path), startup.mark(str(path))) for path in sources],
        "gfx": found.facts.get("gfx", "") if "gfx" in asked else None,
        "evidence": plan_file.evidence(place, changes, found.evidence.label) if changes else b"",
        "prove_at_start": not changes.keys().isdisjoint(_AT_START),
        "facts": known,
        "reason": f"baked, ROCM_AUTOPATCH_POLICY={policy}"
        if policy
        else f"baked, {start['reason']}",
    }
    fixed = sorted({*known, *asked} - {"gfx"})
    return Baked(
        plan,
        {name: found.facts.get(name, "unknown") for name in fixed},
        [str(path) for path in sources],
        sorted({*_variables(lowered), *_variables(proven)}),
        place if changes else {},
        [one.file for one in found.evidence.used],
        unused or "; ".join(found.evidence.exceptions),
    )


def _for_torch(plan: Plan, known: dict[str, tuple[str, str]]) -> Plan:
    """The plan without rows for other torches, so that a start does not even read them."""
    made = plan.copy()
    made["env"] = tuple(startup.for_this_torch(plan["env"], known))
    made["overruled"] = tuple(startup.for_this_torch(plan["overruled"], known))
    made["empty"] = tuple(startup.for_this_torch(plan["empty"], known))
    made["caches"] = tuple(startup.for_this_torch(plan["caches"], known))
    made["patches"] = tuple(
        (name, target, tuple(startup.for_this_torch(entries, known)))
        for name, target, entries in plan["patches"]
    )
    return made


def _machine(torch: str) -> tuple[dict[str, str], str | None]:
    """The machine whose evidence counts, and why none does, None if some does or there is none.

    It is this one. If there is no evidence for it, it is the one that all evidence for this torch,
    Triton and HIP runtime names: an image is built where there is no GPU or another one.
    """
    here = machine.machine_here()
    found = match.look_for_evidence(here, torch)
    if found.wrong:
        raise NotBaked(found.wrong[0])
    if found.used or not found.stale:
        return here, None
    others = {
        (one.place["device"], one.place["driver"])
        for one, _ in found.stale
        if one.place["torch"] == torch
        and one.place["triton"] == here["triton"]
        and one.place.get("runtime", here["runtime"]) == here["runtime"]
    }
    if len(others) == 1:
        ((device, driver),) = others
        if device and driver:
            return {**here, "device": device, "driver": driver}, None
    if others:
        names = " or ".join(sorted(f"{device} with driver {driver}" for device, driver in others))
        return here, f"evidence is not used: it is for {names}, and none of them is this machine"
    return here, "; ".join(found.notes)


def _variables(plan: Plan) -> Iterator[str]:
    """The variables that change what a plan does, or that it leaves to a user."""
    for rule in plan["env"]:
        row = named_fields(ENV_FIELDS, rule)
        if row["action"] == "default":
            yield row["name"]
    for patch, _, entries in plan["patches"]:
        fields = patches.load(patch).FIELDS
        for entry in entries:
            row = named_fields(fields, entry)
            yield from filter(None, (row.get("yields_to"), row.get("switch")))


def _start_here(image: str) -> dict[str, Any]:
    start: dict[str, Any] = _ask(_DECISION, image, "off")
    if image:
        start["facts"]["image"] = (image, BAKED_IMAGE)
    if start["errors"]:
        raise NotBaked(start["errors"][0].removesuffix(INSTEAD))
    _, torch = start["facts"].get("torch", ("", ""))
    # Under observe, whatever is baked or named here changes nothing.
    found = _ask(_TORCH_OF_START, image, "observe")
    if found not in (None, torch):
        raise NotBaked(
            f"a start does not find {torch}{f', but {found}' if found else ''}: Python adds "
            f"{torch.removesuffix('/torch/version.py')} to sys.path after it has run "
            "rocm_autopatch.pth. Rename the .pth file that names this directory, so that it sorts "
            "before rocm_autopatch.pth"
        )
    return start


def _ask(code: str, image: str, switch: str) -> Any:
    """What *code* prints as JSON in a fresh interpreter with ROCM_AUTOPATCH=*switch*."""
    environment = fresh_interpreter.environment()
    for name in (_ASSUME, "ROCM_AUTOPATCH_REPORT"):
        environment.pop(name, None)
    environment.update({"ROCM_AUTOPATCH": switch, "ROCM_AUTOPATCH_LOG": "quiet"})
    if image:
        environment["ROCM_AUTOPATCH_IMAGE"] = image
    try:
        return fresh_interpreter.answer(code, environ=environment)
    except fresh_interpreter.NoReport as error:
        raise NotBaked(f"the interpreter that looks for torch: {error}") from None


def write(baked: Baked, out: Path, own: bool) -> None:
    """Put the plan at *out*, all of it or nothing. Raises NotBaked.

    If *own*, the file belongs to this installation, and ``pip uninstall`` removes it.
    """
    try:
        files.write(out, plan_file.seal(plan_file.content(baked.plan)))
    except OSError as error:
        raise NotBaked(f"{out} can't be written: {error.strerror}") from error
    if own:
        _own(out)


def _own(out: Path) -> None:
    """List the file among those that ``pip uninstall`` removes."""
    distribution = metadata.distribution("rocm_autopatch")
    entry = f"rocm_autopatch/{out.name}"
    record = next((file for file in distribution.files or () if file.name == "RECORD"), None)
    if record is None or any(str(file) == entry for file in distribution.files or ()):
        return
    path = Path(str(distribution.locate_file(record)))
    listed = path.read_bytes() + f"{entry},,\n".encode()
    files.write(path, listed, path.stat().st_mode & 0o777)
