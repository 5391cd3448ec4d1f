"""One machine of many: ``status --line`` and ``--textfile``."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.record import metrics
from tests.conftest import ROOT, Interpreter

REPORT = {
    "active": True,
    "facts": {"image": {"value": 'a"b\\c\nd'}, "torch": {"value": "2.13.0+rocm7.0"}},
    "policies": ["safe", "team"],
    "digest": "0123456789abcdef",
    "errors": ["one"],
}
METRIC = re.compile(r'rocm_autopatch_(\w+)(\{(?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\d+)')


def line(python: Interpreter, **env: str) -> dict[str, Any]:
    done = python.run("-m", "rocm_autopatch", "status", "--no-torch", "--line", env=env)
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_machines_that_compile_alike_have_one_digest(python311: Interpreter) -> None:
    first = line(python311)
    assert (first["active"], first["policy"], first["errors"]) == (True, "safe", 0)
    assert first["torch"]
    assert re.fullmatch("[0-9a-f]{16}", first["digest"])
    assert line(python311, HOME="/elsewhere", HIP_VISIBLE_DEVICES="3") == first
    for env in (
        {"MIOPEN_FIND_MODE": "1"},
        {"ROCM_AUTOPATCH_POLICY": "debug"},
        {"ROCM_AUTOPATCH_KEEP": "triton.cudagraphs"},
        {"ROCM_AUTOPATCH": "observe"},
    ):
        assert line(python311, **env)["digest"] != first["digest"]
    # Under safe it is deleted, so nobody compiles under it.
    assert line(python311, TORCHINDUCTOR_MAX_AUTOTUNE="1")["digest"] == first["digest"]


def test_without_a_policy(python311: Interpreter) -> None:
    found = line(python311, ROCM_AUTOPATCH="off")
    assert (found["active"], found["policy"], found["digest"]) == (False, "", "")


def test_errors_are_in_the_line_and_not_in_the_status(
    python311: Interpreter, tmp_path: Path
) -> None:
    """mpirun ends all workers of a job when one ends with another status than 0."""
    found = line(python311, ROCM_AUTOPATCH="perhaps")
    assert (found["active"], found["errors"]) == (True, 1)
    # An interpreter that gives no report at all.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'safe_path.py' in open('/proc/self/cmdline').read():\n    os._exit(3)\n"
    )
    found = line(python311, PYTHONPATH=str(tmp_path))
    assert (found["active"], found["torch"], found["errors"]) == (False, "", 1)


def test_metrics(python311: Interpreter, tmp_path: Path) -> None:
    file = tmp_path / "rocm_autopatch.prom"
    command = ("-m", "rocm_autopatch", "status", "--no-torch", "--textfile", file)
    assert python311.run(*command).stdout == ""
    text = file.read_text()
    found = {one[1]: (one[2], int(one[3])) for one in METRIC.finditer(text)}
    # Each has two lines of comment.
    assert len(text.splitlines()) == 3 * len(found)
    named = f'{{file="{file.name}"}}'
    assert found["active"] == (named, 1)
    assert found["errors"] == (named, 0)
    assert abs(found["checked_timestamp_seconds"][1] - time.time()) < 300
    assert f'digest="{line(python311)["digest"]}"' in found["info"][0]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_a_label_can_not_hold() -> None:
    lines = [*metrics.node_exporter_lines(REPORT, "a.prom")]
    (info,) = [line for line in lines if line.startswith("rocm_autopatch_info")]
    assert METRIC.fullmatch(info)
    assert r'image="a\"b\\c\nd"' in info
    assert 'policy="safe < team"' in info
    assert 'rocm=""' in info
    assert 'rocm_autopatch_errors{file="a.prom"} 1' in [
        *metrics.node_exporter_lines(REPORT, "a.prom")
    ]


def test_alerts_are_on_metrics_that_there_are() -> None:
    """promtool tests what they say: ``make live``."""
    rules = (ROOT / "deploy" / "prometheus" / "rocm_autopatch.rules.yml").read_text()
    written = {
        line.split()[2] for line in metrics.node_exporter_lines(REPORT, "a.prom") if "TYPE" in line
    }
    assert set(re.findall(r"rocm_autopatch_\w+\b(?!\.)", rules.split("groups:")[1])) == written
    assert '"rocm-autopatch diff A.json B.json"' in " ".join(rules.split())
    labels = set(re.findall(r'(\w+)="', "".join(metrics.node_exporter_lines(REPORT, "a.prom"))))
    used = ",".join(re.findall(r"(?:by|on) \(([^()]+)\)", rules)).replace(" ", "").split(",")
    # Prometheus itself adds the instance.
    assert set(used) <= labels | {"instance"}


def test_bytes_that_are_no_text(python311: Interpreter, tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    command = ("-m", "rocm_autopatch", "status", "--no-torch", "--textfile", file)
    python311.run(*command, env={"ROCM_AUTOPATCH_IMAGE": "a\udcff", "LC_ALL": "C.UTF-8"})
    assert 'image="a?"' in file.read_text("utf-8")


def test_a_file_that_can_not_be_written(python311: Interpreter, tmp_path: Path) -> None:
    command = ("-m", "rocm_autopatch", "status", "--no-torch")
    done = python311.run(*command, "--textfile", tmp_path / "no" / "file.prom", check=False)
    assert done.returncode == 1
    said = f"rocm-autopatch status: {tmp_path}/no/file.prom can't be written: No such file"
    assert done.stderr.splitlines()[-1].startswith(said)


def test_a_name_that_the_collector_does_not_read(python311: Interpreter, tmp_path: Path) -> None:
    file = tmp_path / "status.txt"
    done = python311.run("-m", "rocm_autopatch", "status", "--textfile", file, check=False)
    assert done.returncode == 2
    assert "the collector reads files named *.prom only" in done.stderr.splitlines()[-1]
    assert not file.exists()


@pytest.mark.parametrize("pair", [("--line", "--json"), ("--json", "--textfile=x.prom")])
def test_one_form_at_a_time(python311: Interpreter, pair: tuple[str, str]) -> None:
    done = python311.run("-m", "rocm_autopatch", "status", *pair, check=False)
    assert done.returncode == 2
