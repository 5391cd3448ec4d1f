"""rocm-autopatch prove: faults are found, whatever they do, and nothing else is called a fault."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.evidence import file, machine
from rocm_autopatch.measure.prove import (
    COLD,
    CRASHED,
    ENDED,
    HUNG,
    LEAKS,
    NOT_HERE,
    WARM,
    WRONG,
    battery,
    verdicts,
)
from rocm_autopatch.measure.prove.rows import TrialRow
from tests import planted, test_documents
from tests.conftest import Interpreter
from tests.messages import Golden


def left_of(mark: Path) -> list[str]:
    """The command lines of processes that have a directory in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.fsencode(mark) in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                pass
    return found


def environment(directory: Path) -> dict[str, str]:
    """All that a run writes is in *directory*, and is gone afterwards."""
    (directory / "tmp").mkdir(exist_ok=True)
    return {
        "HOME": str(directory),
        "TMPDIR": str(directory / "tmp"),
        "ROCM_AUTOPATCH_LOG": "quiet",
        # A compile worker of the test machine's own would only cost time.
        "OMP_NUM_THREADS": "1",
    }


def nothing_is_left(directory: Path) -> None:
    assert left_of(directory / "tmp") == []
    left = os.listdir(directory / "tmp")
    # Torch itself keeps precompiled headers there, wherever its caches are.
    assert [name for name in left if not name.startswith("torchinductor_")] == []


@pytest.fixture
def faulty(torch_python: Interpreter) -> Iterator[Interpreter]:
    """The real torch, with a trial for each fault of tests/planted.py."""
    directory = torch_python.site_packages / "rocm_autopatch" / "measure" / "prove" / "trials"
    made = [directory / f"{name}.py" for name in planted.FAULTS]
    try:
        for path in made:
            assert not path.exists()
            shutil.copy(planted.__file__, path)
        yield torch_python
    finally:
        for path in made:
            path.unlink(missing_ok=True)


# Puts the faults in the place of the trials, and has limits of seconds.
FAULTY = """
import json, os, sys
asked = json.loads(sys.argv[1])
from rocm_autopatch import fresh_interpreter
from rocm_autopatch.measure.prove import battery, trials, verdicts
from rocm_autopatch.measure.prove.supervisor import StartSupervisor
trials.NAMES = tuple(asked["trials"])
how = battery.BatteryThoroughness(
    "full", asked.get("seconds", 400), 100, 20, 0.1, 1, 1, asked["limit"], 1,
    tuple(asked["subjects"]), trials.NAMES)
os.cpu_count = lambda: asked["cores"]
"""
DIRECTLY = """
supervisor = StartSupervisor({**fresh_interpreter.environment(), **asked.get("environ", {})}, "cpu",
    assume=asked.get("assume", True))
work = battery.TrialBattery(supervisor, how, (), (), lambda: None, lambda row: None)
work.run()
found = verdicts.subject_verdicts(work.rows, work.units())
rows = [row.document() for row in work.rows]
found = {name: said.document() for name, said in found.items()}
print(json.dumps({"rows": rows, "subjects": found}))
"""
BY_COMMAND = """
from rocm_autopatch.cli import main
from rocm_autopatch.measure.prove import document, proof
document.FULL = proof.FULL = how
sys.exit(main(["prove", *asked["arguments"]]))
"""


def directly(python: Interpreter, directory: Path, **asked: Any) -> dict[str, Any]:
    """The rows and the verdicts of a battery of faults."""
    # A busy machine needs seconds for what takes milliseconds here.
    asked = {"cores": 2, "limit": 20, **asked}
    done = python.run(
        *("-c", FAULTY + DIRECTLY, json.dumps(asked)), env=environment(directory), timeout=580
    )
    nothing_is_left(directory)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_unit(rows: Sequence[Mapping[str, Any]], subject: str, kind: str) -> dict[str, Any]:
    """By trial, the row of a start."""
    own = [row for row in rows if (row["subject"], row["start"]) == (subject, kind)]
    assert len({row["trial"] for row in own}) == len(own)
    return {row["trial"]: row for row in own}


def test_a_gpu_that_is_not_there(torch_python: Interpreter, tmp_path: Path, golden: Golden) -> None:
    """Nothing is tried: each trial would fail, and no mode would be sound here."""
    out = tmp_path / "evidence.json"
    arguments = ("prove", "--quick", "--device", "cuda", "--out", out)
    done = torch_python.run("-m", "rocm_autopatch", *arguments, check=False)
    assert (done.returncode, done.stdout, out.exists()) == (1, "", False)
    golden(done.stderr)


class TestPolicy:
    """A subject is tried under its policy, or not at all."""

    def test_the_hook_is_turned_off(self, faulty: Interpreter, tmp_path: Path) -> None:
        """It is on for the trials."""
        asked = {"trials": ["good"], "subjects": ["default", "freezing"]}
        found = directly(faulty, tmp_path, environ={"ROCM_AUTOPATCH": "off"}, **asked)
        assert {row["status"] for row in found["rows"]} == {ENDED}

    def test_the_policy_is_not_applied(self, faulty: Interpreter, tmp_path: Path) -> None:
        """A machine without ROCm, and nothing says that it has it: torch alone would be tried."""
        asked = {"trials": ["good"], "subjects": ["default", "freezing"], "assume": False}
        assumed = {"ROCM_AUTOPATCH_ASSUME": "accelerator=cpu"}
        rows = directly(faulty, tmp_path, environ=assumed, **asked)["rows"]
        assert rows
        for row in rows:
            assert row["status"] == NOT_HERE
            assert row["reason"].startswith("the subject's policy is not applied: torch 2.")


# What becomes of a planted fault in its first start.
ONE_OF_EACH_KIND = {"good": ENDED, "wrong": WRONG, "aborts": CRASHED}
OTHERS_OF_THE_KINDS = {
    "grows": LEAKS,
    "second_start": ENDED,
    "slow": ENDED,
    "grows_once": ENDED,
    "nan": WRONG,
    "quits": CRASHED,
    "raises": CRASHED,
    "stubborn": HUNG,
    "at_exit": HUNG,
}


class TestFaults:
    """Each fault is found where it is, and the subjects without it are sound in the same run."""

    def test_one_of_each_kind(self, faulty: Interpreter, tmp_path: Path, golden: Golden) -> None:
        self.each_is_found(ONE_OF_EACH_KIND, faulty, tmp_path, golden)

    def test_others_of_the_kinds(self, faulty: Interpreter, tmp_path: Path, golden: Golden) -> None:
        self.each_is_found(OTHERS_OF_THE_KINDS, faulty, tmp_path, golden)

    def each_is_found(
        self, some: dict[str, str], faulty: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        tried = tuple(some)
        found = directly(faulty, tmp_path, trials=tried, subjects=("default", "freezing"))
        rows, said = found["rows"], found["subjects"]

        cold, warm = by_unit(rows, "freezing", COLD), by_unit(rows, "freezing", WARM)
        assert {name: row["status"] for name, row in cold.items()} == some
        # A trial with a fault is not started again with warm caches.
        assert {name: row["status"] for name, row in warm.items()} == {
            name: CRASHED if name == "second_start" else ENDED
            for name, status in some.items()
            if status == ENDED
        }
        for name in tried:
            for row in (cold[name], warm.get(name, {})):
                # How many bytes a process has in all is not known to the last one.
                if "reason" in row and name != "grows":
                    golden(row["reason"], f"{name}, {row['start']}")
        for name, row, text in (
            ("grows", cold, "MiB more are in use"),
            ("aborts", cold, "about to abort"),
            ("second_start", warm, "about to abort"),
            ("raises", cold, "HIP error"),
        ):
            if name in some:
                assert text in str((row[name].get("reason"), row[name].get("last_lines")))

        assert said["freezing"]["sound"] is False
        assert said["freezing"]["gains"] is False
        faults = {(one["trial"], one["start"]) for one in said["freezing"]["faults"]}
        wanted = {(name, COLD) for name, status in some.items() if status != ENDED}
        assert faults == wanted | {(name, WARM) for name in some if name == "second_start"}
        assert said["freezing"]["missing"] == []

        assert (said["default"]["sound"], said["default"]["faults"]) == (True, [])
        assert {*by_unit(rows, "default", WARM)} == {*tried}

    def test_others(self, faulty: Interpreter, tmp_path: Path, golden: Golden) -> None:
        """Faults that act under another subject, and what is slow."""
        tried = ("good", "slow", "at_exit")
        names = ("default", "memory_planning", "aggressive_fusion")
        found = directly(faulty, tmp_path, trials=tried, subjects=names)
        rows, said = found["rows"], found["subjects"]
        # Its only fault is the exit after the last trial.
        own = [row for row in rows if row["subject"] == "aggressive_fusion"]
        fault = {"trial": "at_exit", "start": COLD, "status": CRASHED}
        assert said["aggressive_fusion"]["faults"] == [fault], own
        golden(by_unit(rows, "aggressive_fusion", COLD)["at_exit"]["reason"], "exit status")
        for name in ("default", "memory_planning"):
            assert (said[name]["sound"], said[name]["faults"]) == (True, [])
            assert {*by_unit(rows, name, WARM)} == {*tried}
        # What is slow is not wrong, and one start is no proof that anything is faster.
        assert said["memory_planning"]["gains"] is not True
        low, _, _ = said["memory_planning"]["trials"]["slow"]["steady"]
        assert low > 2

    def test_want_of_memory_beside_others_is_repeated_alone(
        self, faulty: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        names = ("default", "freezing")
        tried = ("good", "first_time", "aborts")
        # So many cores are enough for two starts at once.
        found = directly(faulty, tmp_path, trials=tried, subjects=names, cores=4)
        cold = by_unit(found["rows"], "freezing", COLD)
        assert cold["first_time"]["status"] == ENDED
        golden(cold["first_time"]["beside_others"])
        # No other start crashed in the same seconds, so this one is nobody else's fault.
        assert cold["aborts"]["status"] == CRASHED
        assert "beside_others" not in cold["aborts"]
        assert by_unit(found["rows"], "freezing", WARM)["first_time"]["status"] == ENDED

    def test_imports(self, faulty: Interpreter, tmp_path: Path, golden: Golden) -> None:
        """They have a limit of their own, and one that dies is not blamed on another trial."""
        modules = {
            "imports_slowly": "import time; time.sleep(12)\n",
            "dies_at_import": "import os; os.abort()\n",
        }
        made = [faulty.site_packages / f"{name}.py" for name in modules]
        try:
            for path, text in zip(made, modules.values()):
                path.write_text(text)
            tried = ("imports_slowly", "dies_at_import", "good")
            asked = {"trials": tried, "subjects": ("default", "freezing"), "limit": 10, "cores": 8}
            cold = by_unit(directly(faulty, tmp_path, **asked)["rows"], "default", COLD)
        finally:
            for path in made:
                path.unlink()
        statuses = {name: row["status"] for name, row in cold.items()}
        assert statuses == dict(zip(tried, (ENDED, CRASHED, ENDED)))
        golden(cold["dies_at_import"]["reason"])

    def test_out_of_time(self, faulty: Interpreter, tmp_path: Path) -> None:
        # The limit would let it hang for longer.
        asked = {"trials": ("stubborn",), "subjects": ("default", "freezing"), "limit": 300}
        found = directly(faulty, tmp_path, seconds=15, **asked)
        # What was tried in the time is kept. Nothing says that the other one is at fault.
        assert {(row["subject"], row["start"]) for row in found["rows"]} <= {("default", COLD)}
        for said in found["subjects"].values():
            assert (said["sound"], said["gains"], said["missing"]) == (None, None, ["stubborn"])


class TestInterrupted:
    def test_goes_on(self, faulty: Interpreter, tmp_path: Path, golden: Golden) -> None:
        out, pid = tmp_path / "evidence.json", tmp_path / "pid"
        asked = {
            "trials": ("good", "stubborn_later"),
            "subjects": ("default", "freezing"),
            "cores": 2,
            "limit": 300,
            "arguments": ["--out", str(out)],
        }
        command: list[str | Path] = [faulty.path, "-c", FAULTY + BY_COMMAND, json.dumps(asked)]
        env = {"PATH": os.environ["PATH"], **environment(tmp_path)}
        process = subprocess.Popen(
            command,
            env={**env, "PLANTED_PID": str(pid)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        patience = time.monotonic() + 200
        while not pid.exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.05)
        # As a job scheduler does it. SIGINT takes the same way (tests/test_ab.py).
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
        assert (process.returncode, stdout) == (130, "")
        golden(stderr.splitlines()[-1], FILE=out)
        nothing_is_left(tmp_path)
        first = file.read_evidence(out)
        assert first.battery == "partial"
        done = {(row["subject"], row["start"]) for row in first.trials}
        assert done == {("default", COLD), ("default", WARM), ("freezing", COLD)}
        verdict = {name: said["sound"] for name, said in first.subjects.items()}
        # With empty caches it worked. That is not enough.
        assert verdict == {"default": True, "freezing": None}

        again = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        second = file.read_evidence(out)
        assert second.battery == "full"
        assert {name: said["sound"] for name, said in second.subjects.items()} == {
            "default": True,
            "freezing": True,
        }
        # The base is made again for the ratios, beside what it has already.
        base = [row for row in first.trials if row["subject"] == "default"]
        assert [row for row in second.trials if row["wave"] == 1] == base
        nothing_is_left(tmp_path)


class TestCompiles:
    def test_real(self, torch_python: Interpreter, tmp_path: Path) -> None:
        out = tmp_path / "evidence.json"
        arguments = ("-m", "rocm_autopatch", "prove", "--only", "mlp,freezing", "--out", out)
        compiler, asked = tmp_path / "g++", tmp_path / "asked"
        compiler.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec g++ "$@"\n')
        compiler.chmod(0o755)
        env = {**environment(tmp_path), "CXX": str(compiler)}
        done = torch_python.run(*arguments, "--json", env=env, timeout=580)
        nothing_is_left(tmp_path)
        found = file.read_evidence(out)
        written = json.loads(out.read_text())
        printed = json.loads(done.stdout)
        assert printed["trials"] == written["trials"]
        test_documents.hold_printed("prove", printed, torch_python, tmp_path)
        assert found.battery == "partial"
        assert found.place["device"] == machine.NO_GPU
        assert found.place["torch"] == "2.13.0+rocm7.0"
        # It was tried in one program only, which says that it works there.
        assert found.subjects["freezing"]["sound"] is None
        assert "convolution" in found.subjects["freezing"]["missing"]
        units = [("mlp", "default"), ("mlp", "freezing")]
        rows = [TrialRow.read(row) for row in found.trials]
        for said in verdicts.subject_verdicts(rows, units).values():
            assert (said.sound, said.faults) == (True, ())
        starts = [(row["trial"], row["subject"], row["start"]) for row in found.trials]
        # If freezing seems to gain after two warm starts, there are five.
        warm_starts = starts.count(("mlp", "freezing", WARM))
        assert warm_starts in (battery.FULL.warm, battery.FULL.settle)
        cold_starts = 1 if warm_starts == battery.FULL.warm else 2
        kinds = (*[COLD] * cold_starts, *[WARM] * warm_starts)
        assert sorted(starts) == sorted(
            ("mlp", name, kind) for name in ("default", "freezing") for kind in kinds
        )
        for name in ("default", "freezing"):
            cold = [row for row in found.trials if row["start"] == COLD and row["subject"] == name]
            warm = [row for row in found.trials if row["start"] == WARM and row["subject"] == name]
            # As many as there is time for, on a machine that may be busy.
            assert 20 <= cold[0]["calls"] <= battery.FULL.calls
            assert all(min(row["samples"]) > 0 for row in warm)
        assert len(done.stderr.splitlines()) == len(starts)
        # What was compiled is used again: no start compiles what is there.
        made = re.findall(r" -o (\S+\.so)\b", asked.read_text())
        assert made
        assert len({*made}) == len(made)

        asked.unlink()
        again = torch_python.run(*arguments, env=env)
        assert again.stderr == ""
        assert not asked.exists()
        assert json.loads(out.read_text())["trials"] == written["trials"]
        lines = again.stdout.splitlines()
        assert lines[0].startswith("no GPU, driver none, torch 2.13.0+rocm7.0, ")
        verdict = [line.split()[:2] for line in lines[3:5]]
        assert verdict == [["default", "?"], ["freezing", "?"]]
