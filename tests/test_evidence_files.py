"""Evidence files, and what they are bound to: reading, refusing, writing, the machine."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.evidence import SUBJECTS, file, machine
from tests.conftest import ROOT
from tests.test_facts import NODES, install, make

SAMPLE: dict[str, Any] = {
    "version": 1,
    "made": "2026-11-22T18:40:00Z",
    "by": "0.5.0",
    "battery": "full",
    "place": {
        "device": "gfx942 0x74a1 304 CUs",
        "driver": "6.12.12",
        "torch": "2.11.0+rocm7.2",
        "triton": "3.6.0",
        "python": "3.12.3",
    },
    "subjects": {
        "graphs": {"sound": True, "gains": True, "gain": 1.21, "fresh_starts": 21},
        "freezing": {"sound": False, "gains": False},
        "max-autotune": {"sound": None, "gains": None},
    },
    "trials": [
        {"trial": "mlp", "subject": "graphs", "start": "cold", "status": "ended", "wave": 1},
        {
            "trial": "mlp",
            "subject": "graphs",
            "start": "warm",
            "status": "ended",
            "wave": 1,
            "first": 2,
            "seconds": 2.5,
            "samples": [0.5, 1],
            "peak": 0,
            "new": None,
        },
    ],
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The sample with another value at a path; without the field if the value is ``...``."""
    document: dict[str, Any] = copy.deepcopy(SAMPLE)
    *way, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    inner: Any = document
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return document


WRONG = {
    "version: expected 1, the format that this release reads, found 2": ("version", 2),
    "version: expected 1, the format that this release reads, found true": ("version", True),
    "version is missing": ("version", ...),
    "made is missing": ("made", ...),
    "made: expected a text, found 1": ("made", 1),
    "made: expected a time such as '2026-11-22T18:40:00Z', found \"2026-11-22\"": (
        *("made", "2026-11-22"),
    ),
    "made: expected a time such as '2026-11-22T18:40:00Z', found \"2026-02-30T00:00:00Z\"": (
        *("made", "2026-02-30T00:00:00Z"),
    ),
    'made: expected a time that is not in the future, found "9999-12-31T00:00:00Z"': (
        *("made", "9999-12-31T00:00:00Z"),
    ),
    'battery: expected one of full, quick, partial, found "half"': ("battery", "half"),
    'subjects: expected a name without blanks, found "graphs multi_kernel"': (
        *("subjects", {"graphs multi_kernel": {"sound": True, "gains": None}}),
    ),
    "place: expected an object, found a list": ("place", []),
    "place.driver is missing": ("place.driver", ...),
    "place.python: expected a text, found 3.12": ("place.python", 3.12),
    "subjects: expected an object, found null": ("subjects", None),
    "subjects.graphs: expected an object, found true": ("subjects.graphs", True),
    "subjects.graphs.gains is missing": ("subjects.graphs.gains", ...),
    'subjects.graphs.sound: expected true, false or null, found "yes"': (
        *("subjects.graphs.sound", "yes"),
    ),
    "subjects.graphs.fresh_starts: expected a whole number, 0 or more, found -1": (
        *("subjects.graphs.fresh_starts", -1),
    ),
    'subjects.graphs.fresh_starts: expected a whole number, 0 or more, found "21"': (
        *("subjects.graphs.fresh_starts", "21"),
    ),
    "subjects.freezing.gains: only what is sound can gain": ("subjects.freezing.gains", True),
    "trials: expected a list, found an object": ("trials", {}),
    'trials.0: expected an object, found "mlp"': ("trials.0", "mlp"),
    "trials.1.status is missing": ("trials.1.status", ...),
    "trials.0.trial: expected a text, found null": ("trials.0.trial", None),
    "trials.0.wave: expected a whole number, found true": ("trials.0.wave", True),
    "trials.1.first: expected a number, found an object": ("trials.1.first", {}),
    "trials.1.samples: expected a list, found 1": ("trials.1.samples", 1),
    'trials.1.samples: expected numbers, found "1"': ("trials.1.samples", [1, "1"]),
}
NOT_JSON = {
    b"": ":1:1: not JSON: Expecting value",
    b'{"version": 1,\n "made": }': ":2:10: not JSON: Expecting value",
    b'{"version": 1, "version": 1}': ": 'version' is given twice",
    b'{"version": NaN}': ": NaN is not a number that JSON has",
    b"\xff": ": not UTF-8: invalid start byte at byte 0",
    b"[" * 100_000: ": nested too deeply",
    b"[]": ": expected an object, found a list",
}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    file.write_evidence(path, SAMPLE)
    first = path.read_bytes()
    found = file.read_evidence(path)
    assert found.file == str(path)
    assert found.label == "gfx942 0x74a1 304 CUs 2026-11-22"
    for field in ("made", "by", "battery", "place", "subjects", "trials"):
        assert getattr(found, field) == SAMPLE[field]
    file.write_evidence(path, dict(reversed(SAMPLE.items())))
    assert path.read_bytes() == first


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_named(said: str, tmp_path: Path) -> None:
    document = changed(*WRONG[said])
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(file.EvidenceError) as caught:
        file.read_evidence(path)
    assert str(caught.value) == f"{path}: {said}"
    path.unlink()
    with pytest.raises(file.EvidenceError):
        file.write_evidence(path, document)
    assert not path.exists()


@pytest.mark.parametrize("data", NOT_JSON)
def test_what_is_no_json_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(data)
    with pytest.raises(file.EvidenceError) as caught:
        file.read_evidence(path)
    assert str(caught.value) == f"{path}{NOT_JSON[data]}"


def test_files_that_a_start_would_not_obey(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    file.write_evidence(path, SAMPLE)
    path.chmod(0o666)
    with pytest.raises(file.EvidenceError, match=r"json: everybody may write it; run chmod go-w"):
        file.read_evidence(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(file.EvidenceError, match="it is not a regular file"):
        file.read_evidence(path)
    path.unlink()
    with pytest.raises(file.EvidenceError, match="can't be read: No such file"):
        file.read_evidence(path)
    with path.open("wb") as stream:
        stream.truncate(file.MAX_BYTES + 1)
    with pytest.raises(file.EvidenceError, match="larger than 16777216 bytes"):
        file.read_evidence(path)


def test_a_figure_that_json_can_not_hold(tmp_path: Path) -> None:
    with pytest.raises(file.EvidenceError, match="not JSON compliant"):
        file.write_evidence(tmp_path / "one.json", changed("trials.1.samples", [float("nan")]))
    assert not list(tmp_path.iterdir())


def test_which_files_are_read(tmp_path: Path) -> None:
    assert file.evidence_paths(tmp_path / "missing") == []
    for name in ("b.json", "a.json", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in file.evidence_paths(tmp_path)] == ["a.json", "b.json"]


def check(*files: Path) -> tuple[int, list[str]]:
    command: list[str | Path] = [sys.executable, "-m", "rocm_autopatch", "check", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_command_check(tmp_path: Path) -> None:
    right, wrong, broken = (tmp_path / f"{name}.json" for name in ("right", "wrong", "broken"))
    file.write_evidence(right, SAMPLE)
    assert check(right) == (0, [])
    right.chmod(0o666)
    status, (said,) = check(right)
    remark = "remark: a start on this machine would not obey this file: everybody may write it"
    assert (status, said.partition(";")[0]) == (0, f"{right}: {remark}")
    wrong.write_text(json.dumps(changed("by", 5)))
    broken.write_text("{")
    said = "not JSON: Expecting property name enclosed in double quotes"
    assert check(wrong, broken) == (
        1,
        [f"{wrong}: by: expected a text, found 5", f"{broken}:1:2: {said}"],
    )


# The machine

MI300X = {
    "cpu_cores_count": 0,
    "simd_count": 1216,
    "simd_per_cu": 4,
    "gfx_target_version": 90402,
    "vendor_id": 4098,
    "device_id": 29857,
}
CPU = {"cpu_cores_count": 96, "simd_count": 0, "gfx_target_version": 0, "device_id": 0}
NVRM = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build"
    "  (dvs-builder@U22-I3)\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
OLDER_NVRM = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
)
H200 = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t GPU-1\n"


def nodes(*properties: Mapping[str, int]) -> dict[str, str]:
    return {
        f"{NODES}/{number}/properties": "".join(f"{k} {v}\n" for k, v in one.items())
        for number, one in enumerate(properties)
    }


def nvidia(*models: str, version: str = NVRM) -> dict[str, str]:
    gpus = {
        f"proc/driver/nvidia/gpus/0000:{number:02x}:00.0/information": text
        for number, text in enumerate(models)
    }
    return {"proc/driver/nvidia/version": version, **gpus}


AMDGPU = {"sys/module/amdgpu/version": "6.12.12\n"}
KERNEL = f"kernel {os.uname().release}"
PLACES: dict[str, tuple[dict[str, str], str, str]] = {
    "no GPU": ({}, "no GPU", "none"),
    "one": ({**nodes(CPU, MI300X), **AMDGPU}, "gfx942 0x74a1 304 CUs", "6.12.12"),
    "eight": ({**nodes(CPU, *[MI300X] * 8), **AMDGPU}, "gfx942 0x74a1 304 CUs", "6.12.12"),
    "driver of the kernel": (nodes(MI300X), "gfx942 0x74a1 304 CUs", KERNEL),
    "a partition": (*(nodes({**MI300X, "simd_count": 152}), "gfx942 0x74a1 38 CUs", KERNEL),),
    "two kinds": (nodes(MI300X, {**MI300X, "device_id": 29861}), "", ""),
    "CPUs alone": (nodes(CPU, CPU), "no GPU", "none"),
    "no properties of the units": (
        nodes({"gfx_target_version": 90402}),
        "gfx942 0x0000 0 CUs",
        KERNEL,
    ),
    "NVIDIA": (nvidia(H200, H200), "NVIDIA H200", "575.57.08"),
    "NVIDIA, older": (nvidia(H200, version=OLDER_NVRM), "NVIDIA H200", "535.183.01"),
    "both": ({**nodes(MI300X), **nvidia(H200)}, "", "575.57.08"),
    "a GPU that can't be told": ({"dev/nvidiactl": ""}, "", ""),
    "another GPU that can't be told": ({"dev/kfd": ""}, "", ""),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_machine(name: str, tmp_path: Path) -> None:
    files, device, driver = PLACES[name]
    found = machine.machine_here(make(tmp_path, files), [])
    runtime = "" if device.startswith("gfx") else "none"
    assert found == {"device": device, "driver": driver, "triton": "none", "runtime": runtime}


VERSIONS = "ROCM_RUNTIME_COMMIT: 6b0e43f341195e203754e08f850e437ff2fc09f9\n"
LIBRARY = "opt/rocm/lib/libamdhip64.so.7"


def test_the_hip_runtime(tmp_path: Path) -> None:
    root, path = tmp_path / "root", [str(tmp_path / "site")]
    make(root, {"opt/rocm/lib/libamdhip64.so.7.2.70203": "nine byte"})
    (root / LIBRARY).symlink_to("libamdhip64.so.7.2.70203")
    assert machine.machine_here(root, path)["runtime"] == "7.2.70203 9 bytes"
    make(root, {"app/versions.txt": VERSIONS})
    assert machine.machine_here(root, path)["runtime"] == "7.2.70203 9 bytes commit 6b0e43f34119"
    # A wheel of torch has a runtime of its own, which comes before the image's.
    make(tmp_path / "site", {"torch/lib/libamdhip64.so": "four"})
    assert machine.machine_here(root, path)["runtime"] == "4 bytes commit 6b0e43f34119"


def test_what_is_no_hip_runtime(tmp_path: Path) -> None:
    make(tmp_path, {"app/versions.txt": VERSIONS, "opt/rocm/lib/librccl.so": ""})
    # A link that leads nowhere, as to a library that another layer of the image has removed.
    (tmp_path / LIBRARY).symlink_to("libamdhip64.so.7.2.70203")
    assert machine.machine_here(tmp_path, ["", "no such directory"])["runtime"] == "none"


def test_triton(tmp_path: Path) -> None:
    path = [str(tmp_path)]
    install(tmp_path, "pytorch-triton-rocm", "3.4.0+gitf7888497")
    assert machine.machine_here(tmp_path, path)["triton"] == "3.4.0+gitf7888497"
    install(tmp_path, "triton", "3.6.0")
    assert machine.machine_here(tmp_path, path)["triton"] == "3.4.0+gitf7888497 3.6.0"
    install(tmp_path, "tritonclient", "9")
    assert machine.machine_here(tmp_path, path)["triton"] == "3.4.0+gitf7888497 3.6.0"


def test_the_machine_is_found_without_more_modules() -> None:
    """A program asks for it at the import of torch, which imports these by itself."""
    code = (
        "import sys, dataclasses, datetime, pathlib, platform, re, typing\n"
        "before = set(sys.modules)\n"
        "from rocm_autopatch.evidence import machine; machine.machine_here()\n"
        "print(*sorted(name for name in set(sys.modules) - before"
        " if 'rocm' not in name and name != '__future__'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_subjects_are_names_and_sentences() -> None:
    for name, sentence in SUBJECTS.items():
        assert name.replace("-", "").replace("_", "").isalnum()
        assert sentence.endswith(".")


def test_the_page() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    for name, sentence in SUBJECTS.items():
        assert f"\n- `{name}`: {sentence.rstrip('.')}\n" in page
    example = page.split("```json\n")[1].split("```")[0]
    assert file.parse_evidence(example.encode(), "the example").battery == "full"
