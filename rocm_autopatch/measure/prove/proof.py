"""A proof from the request to the evidence file."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.evidence import file, machine
from rocm_autopatch.measure.prove import FAULTS, ProofRefused, document, place
from rocm_autopatch.measure.prove.battery import FULL, QUICK, TrialBattery
from rocm_autopatch.measure.prove.rows import TrialRow
from rocm_autopatch.measure.prove.supervisor import StartSupervisor
from rocm_autopatch.policy import load
from rocm_autopatch.policy.model import DELETE_EMPTY
from rocm_autopatch.support.text import duration


@dataclass(frozen=True)
class ProofRequest:
    """What to prove, and where: the options of ``rocm-autopatch prove``.

    ``only`` are names of trials and subjects. ``out`` is the evidence file, None for one that is
    named for this machine. ``device`` is "cuda", "cpu", or None for the GPU if torch finds one.
    ``assume`` are facts, NAME=VALUE.
    """

    quick: bool
    only: Sequence[str]
    out: Path | None
    again: bool
    device: str | None
    assume: Sequence[str]


@dataclass
class ProofRun:
    """A request that can be met here: its battery, its place, and the file for its evidence."""

    battery: TrialBattery
    place: Mapping[str, str]
    out: Path

    def document(self) -> document.EvidenceDocument:
        """The evidence file as it stands."""
        return document.make_document(self.battery, self.place)


def prepare_proof(request: ProofRequest, says: Callable[[str], None]) -> ProofRun:
    """Do all checks that are possible before the first trial; *says* gets a line for each result.

    Raises Refused, and EvidenceError for a file that is there already and is not evidence.
    """
    environ = _programs_environment(request.assume)
    _check_writable(request.out or file.SITE / "evidence.json")
    found = place.find_machine(environ)
    device = request.device or ("cuda" if found["gpu"] else "cpu")
    if device == "cuda" and not found["gpu"]:
        raise ProofRefused(
            "torch finds no GPU here; without --device cuda, it tries what a CPU can have"
        )
    if device == "cpu":
        # What a CPU shows is no evidence for programs on the GPU.
        found.update(gpu="", device=machine.NO_GPU, driver=machine.NONE)
    out = request.out or file.SITE / f"{_file_name(found)}.json"
    kept = () if request.again else document.kept_rows(out, found)
    supervisor = StartSupervisor(environ, device, assume=found["accelerator"] != "rocm")
    began = time.monotonic()

    def keep() -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        file.write_evidence(out, proof.document())

    def tell(row: TrialRow) -> None:
        spent = duration(time.monotonic() - began)
        said = f"{spent} {row.trial} {row.subject} {row.start}: {row.status}"
        if row.right is not None:
            said += f": {row.right} of {row.starts} processes were right"
        says(said + (f": {row.reason}" if row.status in FAULTS else ""))

    how = QUICK if request.quick else FULL
    proof = ProofRun(TrialBattery(supervisor, how, request.only, kept, keep, tell), found, out)
    if not proof.battery.units() and not proof.battery.fresh_subjects():
        names = ",".join(request.only)
        raise ProofRefused(f"there is no trial for --only {names} on the device {device}")
    return proof


def _programs_environment(assume: Sequence[str]) -> dict[str, str]:
    """What programs get here, without the variables that the policy safe deletes."""
    environ = fresh_interpreter.environment(assume)
    for rule in load.top(load.DEFAULT).env:
        if rule.action == "delete" or (
            rule.action == DELETE_EMPTY and environ.get(rule.name) == ""
        ):
            environ.pop(rule.name, None)
    return environ


def _check_writable(out: Path) -> None:
    """Raise ProofRefused if the evidence could not be written. Nothing was run yet."""
    above = out.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    try:
        if out.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        # What access() says is not enough: root may write in /proc, and no file can be made there.
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise ProofRefused(
            f"{out} can't be written: {error.strerror}; give another file by --out"
        ) from None


def _file_name(found: Mapping[str, str]) -> str:
    """A file name for a place: its device, torch and Triton."""
    text = f"{found['device']} torch {found['torch']} triton {found['triton']}"
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-").lower()
