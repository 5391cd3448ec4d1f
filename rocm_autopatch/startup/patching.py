"""What follows the import of torch: the patches of the plan, each to its module."""

import marshal
import os
import sys

from rocm_autopatch import _ASSUME, _RECORD, failure, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from rocm_autopatch.plan import PatchEntry, PatchRow, Plan
    from rocm_autopatch.record.shapes import PatchRecord


def imported(module: "ModuleType") -> None:
    """Apply what the plan has for a module of torch that has just been executed.

    Raises nothing but what is the program's own (``failure.programs_own``).
    """
    target = getattr(module, "__name__", "?")
    try:
        version = sys.modules.get("torch.version")
        if not getattr(version, "hip", None) and _RECORD["facts"]["accelerator"][1] != _ASSUME:
            note = "%s is not changed: it is not of the torch that the start found" % target
            _RECORD["notes"].append(note)
            return
        plan = _RECORD["plan"]
        assert plan is not None  # A start without a plan arms no hook.
        if plan.get("evidence"):
            from rocm_autopatch.startup import proofs

            proofs.settle(plan, startup.say)
        plan["patches"] = patches(plan)
        changed = [
            _patch(name, target, module, entries)
            for name, its, entries in plan["patches"]
            if its == target
        ]
        if any(changed):
            startup.announce(plan)
    except BaseException as error:
        # SystemExit too: this runs inside the program's import statement.
        if failure.programs_own(error):
            raise
        startup.fail(target, "%s is not changed: %s" % (target, failure.describe(error)))


def patches(plan: "Plan") -> "tuple[PatchRow, ...]":
    """The part of a plan that waits for torch. It is packed in a file: few processes need it."""
    packed: Any = plan["patches"]
    if isinstance(packed, bytes):
        packed = marshal.loads(packed)
    rows: tuple[PatchRow, ...] = packed
    if "ROCM_AUTOPATCH_WATCHDOG" in os.environ:
        from rocm_autopatch.startup import watchdog_variable

        rows = watchdog_variable.add(rows)
    return rows


def _patch(name: str, target: str, module: "ModuleType", entries: "tuple[PatchEntry, ...]") -> bool:
    """Apply one patch to its target and record it. Returns whether anything was changed."""
    row: PatchRecord = {"status": "failed", "reason": "", "entries": []}
    _RECORD["patches"][name, target] = row
    keep = _RECORD["keep"]
    if name in keep:
        row["status"], row["reason"] = "kept", "ROCM_AUTOPATCH_KEEP"
        return False
    try:
        # Each patch has its own file, loaded with its target: most processes never load one.
        from rocm_autopatch import patches as all_patches

        patch = all_patches.load(name)
        wanted = startup.for_this_torch(entries)
        row["entries"] = patch.apply(module, wanted, keep, _RECORD["observe"])
        row["status"] = "observed" if _RECORD["observe"] else "applied"
    except BaseException as error:
        if failure.programs_own(error):
            raise
        row["reason"] = failure.describe(error)
        startup.fail(target, "patch %s of %s skipped: %s" % (name, target, row["reason"]))
    for entry in row["entries"]:
        if entry["status"] == "failed":
            startup.fail(target, "%s.%s: %s" % (target, entry["name"], entry["reason"]))
    if os.environ.get("ROCM_AUTOPATCH_LOG") == "debug":
        from rocm_autopatch.startup import rows

        for line in rows.lines(row["entries"]):
            startup.write(line)
    return any(entry["status"] == "applied" for entry in row["entries"])
