"""What ``prove --record`` writes into an images file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch.policy import PolicyError, load
from rocm_autopatch.probe import images

IMAGE = "rocm/sgl-dev:v9-rocm720-mi35x-20270101"


def evidence(**more: Any) -> dict[str, Any]:
    fault = {"trial": "threads", "start": "warm", "status": "hung"}
    place = {"device": "gfx942 0x74a1 304 CUs", "driver": "6.12", "torch": "2.11.0+rocm7.2"}
    return {
        "made": "2026-11-22T18:40:00Z",
        "place": {**place, "triton": "3.6.0", "image": IMAGE, **more},
        "subjects": {
            "default": {"sound": True, "gains": False, "faults": []},
            "graphs": {"sound": True, "gains": True, "faults": []},
            "cudagraphs": {"sound": False, "gains": False, "faults": [fault]},
            "freezing": {"sound": None, "gains": None, "faults": []},
        },
    }


SENTENCE = (
    "Proven 2026-11-22 on gfx942 0x74a1 304 CUs, driver 6.12, torch 2.11.0+rocm7.2, triton 3.6.0: "
    "default, graphs."
)
FAULT = (
    "cudagraphs in threads: hung (warm start, gfx942 0x74a1 304 CUs, driver 6.12, torch "
    "2.11.0+rocm7.2)"
)


def test_a_new_row(tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    assert images.record_proof(file, evidence()).endswith("added")
    (row,) = yaml.safe_load(file.read_text())["images"]
    issue = {"issue": FAULT, "source": "rocm-autopatch prove"}
    assert row == {"image": IMAGE, "description": SENTENCE, "known_issues": [issue]}
    load.images(file)
    before = file.read_bytes()
    assert images.record_proof(file, evidence()).endswith("is up to date")
    assert file.read_bytes() == before


@pytest.mark.parametrize("probed", ["", " Probed 2026-01-02 with torch 2.9.1 and Python 3.12.3."])
def test_a_row_that_is_there(tmp_path: Path, probed: str) -> None:
    file = tmp_path / "images.yaml"
    said = f"Ours. Proven 2025-01-01 on a, driver 1.2, torch 2.9.0, triton 3.0: nothing.{probed}"
    row = f"- image: {IMAGE}\n  description: '{said}'\n  policy: safe\n  sets: {{A_B: '1'}}\n"
    file.write_text(f"version: 1\nimages:\n{row}  # a comment\n- image: other/one:1\n")
    assert images.record_proof(file, evidence()).endswith("updated")
    found = yaml.safe_load(file.read_text())["images"]
    assert found[0]["description"] == f"Ours. {SENTENCE}{probed}"
    assert (found[0]["policy"], found[0]["sets"]) == ("safe", {"A_B": "1"})
    assert [issue["issue"] for issue in found[0]["known_issues"]] == [FAULT]
    assert found[1] == {"image": "other/one:1"}


def test_an_image_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="the image's name is unknown"):
        images.record_proof(tmp_path / "images.yaml", evidence(image=""))
    assert not list(tmp_path.iterdir())
