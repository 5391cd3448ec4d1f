"""The ledger: public defects of graphs on AMD GPUs, and what evidence proves in spite of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import _HERE, _RECORD, startup
from rocm_autopatch.evidence import SUBJECTS, defects, ledger, match
from rocm_autopatch.evidence.defects import CAPTURING, GRAPHS, INDUCTOR, NOTHING, OF_INDUCTOR, RANKS
from rocm_autopatch.evidence.file import EvidenceFile
from rocm_autopatch.image import facts as image_facts
from rocm_autopatch.measure.prove import ENDED
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.policy import builtin, lower, select
from rocm_autopatch.policy.document import data, read
from rocm_autopatch.startup import from_yaml
from tests.conftest import ROOT

RECORDS = {one.name: one for one in defects.read_ledger()}
ON_ROCM = {"accelerator": "rocm", "torch": "2.13.0"}
# Of each record: a place that has the defect, and the same with another version or GPU.
HAS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "replays differ by process on gfx942": (
        {"gfx": "gfx942", "rocm": "7.2.0"},
        {"gfx": "gfx942", "rocm": "7.1.1"},
    ),
    "replays differ by run on gfx1100": (
        {"gfx": "gfx1100", "rocm": "7.2.0"},
        {"gfx": "gfx1100", "rocm": "7.13"},
    ),
    "captured memset": (
        {"gfx": "gfx950", "rocm": "7.0.0"},
        {"gfx": "gfx950", "rocm": "7.1.0"},
    ),
    "copy before a replay on gfx950": (
        {"gfx": "gfx950", "rocm": "7.2.4"},
        {"gfx": "gfx942", "rocm": "7.13.0"},
    ),
    "many nodes on gfx1201": (
        {"gfx": "gfx1201", "rocm": "7.2.1"},
        {"gfx": "gfx1201", "rocm": "7.1.1"},
    ),
    "graphs of several threads": (
        {"gfx": "gfx90a", "rocm": "7.2.4"},
        {"gfx": "gfx90a", "rocm": "7.2.3"},
    ),
    "topk": ({"gfx": "gfx90a", "rocm": "7.1.1"}, {"accelerator": "cuda"}),
    "aiter's MXFP4 experts on gfx950": (
        {"gfx": "gfx950", "rocm": "7.1.1"},
        {"gfx": "gfx942", "rocm": "7.1.1"},
    ),
    "addresses of captured memory on gfx942": (
        {"gfx": "gfx942", "rocm": "7.0.2"},
        {"gfx": "gfx942", "rocm": "7.1.0"},
    ),
    "the watchdog of a process group": (
        {"gfx": "gfx942", "rocm": "7.1.1", "torch": "2.10.0", "ranks": "8"},
        {"gfx": "gfx942", "rocm": "7.1.1", "torch": "2.12.0", "ranks": "8"},
    ),
    "attention of Triton on RDNA": (
        {"gfx": "gfx1101", "rocm": "7.1.1"},
        {"gfx": "gfx90a", "rocm": "7.1.1"},
    ),
    "the end of a process on gfx1031": (
        {"gfx": "gfx1031", "rocm": "7.1.1"},
        {"gfx": "gfx1030", "rocm": "7.1.1"},
    ),
    "no memory left on gfx1100": (
        {"gfx": "gfx1100", "rocm": "7.2.3"},
        {"gfx": "gfx1100", "rocm": "7.2.2"},
    ),
    "memory of each graph on gfx942": (
        {"gfx": "gfx942", "rocm": "6.3.0"},
        {"gfx": "gfx90a", "rocm": "6.3.0"},
    ),
}


def row(trial: str, subject: str, status: str = ENDED) -> dict[str, Any]:
    return {"trial": trial, "subject": subject, "start": "cold", "status": status, "wave": 1}


def proof(
    gfx: str, trials: Sequence[str] = (), starts: int = 0, runtime: str = "7.2 9 bytes"
) -> EvidenceFile:
    """EvidenceFile that all that captures is sound and gains, in these trials."""
    place = {"device": f"{gfx} 0x74a1 304 CUs", "driver": "6", "triton": "3", "torch": "2.13.0"}
    said = {"sound": True, "gains": True, "fresh_starts": starts}
    rows = [row(trial, subject) for trial in trials for subject in CAPTURING]
    subjects = dict.fromkeys((*CAPTURING, "freezing"), said)
    if runtime:
        place["runtime"] = runtime
    made = "2026-11-22T18:40:00Z"
    return EvidenceFile("/one.json", made, "0.5.0", "full", place, subjects, rows)


# All trials that records name: what is left is what no trial can see.
ALL_TRIALS = tuple({one.trial for one in RECORDS.values() if one.trial})


def proven(evidence: EvidenceFile, place: Mapping[str, str]) -> set[str]:
    found = match.FoundEvidence((evidence,)).obey_ledger({**ON_ROCM, **place})
    return {*dict(found.facts())["proven"].value.split()}


def without(name: str) -> tuple[str, ...]:
    """All trials but that of a record."""
    return tuple(trial for trial in ALL_TRIALS if trial != RECORDS[name].trial)


def mode(facts: Mapping[str, str]) -> str:
    """What performance makes of reduce-overhead."""
    chosen = select.select(facts, "performance", at=())
    plan = lower.lower(chosen.layers, facts, chosen.policy)
    rows = next(rows for name, _, rows in plan["patches"] if name == "compile_modes")
    (use,) = (one[1] for one in rows if one[0] == "reduce-overhead")
    return str(use)


def test_every_record_is_tried() -> None:
    assert [*HAS] == [*RECORDS]


def test_the_file() -> None:
    problems: Any = None
    root = read(Path(defects.SOURCE), problems, "")
    assert root
    document = data(root)
    assert [*document] == ["version", "defects"]
    assert document["version"] == 1
    for said, one in zip(document["defects"], defects.read_ledger()):
        assert one.forbids in defects.FORBIDS, one.name
        assert bool(one.op) == (one.forbids == defects.OP), one.name
        assert {*one.when} <= {*defects.WORDS, *defects.RANGES}, one.name
        for name, wanted in one.when.items():
            if name in defects.RANGES:
                ends = [f"{sign}{version}" for sign, version in defects._BOUND.findall(wanted)]
                assert ",".join(ends) == wanted, one.name
            else:
                assert all(gfx.startswith("gfx") for gfx in wanted), one.name
        assert all("#" in source and "/" in source for source in one.source), one.name
        assert one.defect.endswith("."), one.name
        assert (one.starts > 0) <= bool(one.trial), one.name
        assert {*said} <= {"name", "when", "defect", "source", "forbids", "trial", "starts"}
    assert {*CAPTURING} <= {*SUBJECTS}


@pytest.mark.parametrize("name", HAS)
def test_a_record_and_its_neighbour(name: str) -> None:
    """Where a defect may be, evidence that could not have seen it allows no graph."""
    record = RECORDS[name]
    place, neighbour = HAS[name]
    blind = proof(place["gfx"], without(name), 21)
    lost = {GRAPHS: {*CAPTURING}, RANKS: {*CAPTURING}, INDUCTOR: {*OF_INDUCTOR}}
    held = {*CAPTURING, "freezing"} - lost.get(record.forbids, set())
    assert proven(blind, place) == held
    assert record.may_hold({**ON_ROCM, **place}, doubt=False)
    assert not record.may_hold({**ON_ROCM, **neighbour}) or neighbour == {"accelerator": "cuda"}
    assert record not in [*defects.find_defects({**ON_ROCM, **neighbour}, doubt=True)]
    if "gfx" in neighbour and record.forbids == GRAPHS:
        # Other records may hold there; this one's trial is the one that nobody ran.
        found = proven(proof(neighbour["gfx"], ALL_TRIALS, 21), neighbour)
        assert "graphs" in found
        left = match.FoundEvidence((proof(neighbour["gfx"], without(name), 21),))
        reasons = left.obey_ledger({**ON_ROCM, **neighbour}).withheld
        assert record.sentence not in reasons.values()


@pytest.mark.parametrize("name", [name for name, one in RECORDS.items() if one.trial])
def test_evidence_that_could_have_seen_it_counts(name: str) -> None:
    record = RECORDS[name]
    place, _ = HAS[name]
    assert "graphs" in proven(proof(place["gfx"], ALL_TRIALS, 21), place)
    if record.starts and record.forbids == GRAPHS:
        seldom = match.FoundEvidence((proof(place["gfx"], ALL_TRIALS, record.starts - 1),))
        assert "graphs" in seldom.obey_ledger({**ON_ROCM, **place}).withheld
    # A trial that was not possible there has seen nothing.
    absent = replace(
        proof(place["gfx"], without(name), 21),
        trials=[row(trial, subject) for trial in without(name) for subject in CAPTURING]
        + [row(record.trial, subject, "not here") for subject in CAPTURING],
    )
    assert not any(record.seen_by(absent, subject) for subject in CAPTURING)


@pytest.mark.parametrize(
    "place",
    [
        {"gfx": "gfx942", "rocm": "7.2.0"},
        {"gfx": "gfx942", "image": "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"},
        {"gfx": "gfx950", "image": "rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260210"},
        {"gfx": "gfx1100", "rocm": "7.1.1"},
        {"gfx": "gfx1201", "rocm": "7.2.1"},
        {"gfx": "gfx942", "rocm": "7.1.1", "ranks": "8", "torch": "2.10.0"},
    ],
)
def test_performance_captures_nothing_there(place: dict[str, str]) -> None:
    """Without evidence, and with evidence that could not have seen what is known of the place."""
    known = {name: (value, "ROCM_AUTOPATCH_ASSUME") for name, value in place.items()}
    facts = {**ON_ROCM, **image_facts.gather_facts(known, ()).values()}
    assert mode(facts) == "default"
    evidence = match.FoundEvidence((proof(place["gfx"], ("convolution",)),)).obey_ledger(facts)
    assert mode({**facts, **{name: fact.value for name, fact in evidence.facts()}}) == "default"
    objection = defects.find_objection("graphs", facts)
    assert objection
    assert objection.sentence == evidence.withheld["graphs"]


def test_performance_where_all_was_tried() -> None:
    facts = {**ON_ROCM, "gfx": "gfx942", "rocm": "7.2.0"}
    found = match.FoundEvidence((proof("gfx942", ALL_TRIALS, 21),)).obey_ledger(facts)
    assert mode({**facts, **{name: fact.value for name, fact in found.facts()}}) == (
        compile_modes.TRAINING_GRAPHS
    )


def test_what_is_not_known_rules_nothing_out() -> None:
    record = RECORDS["replays differ by process on gfx942"]
    assert record.may_hold({"gfx": "gfx942"})
    assert not record.may_hold({"gfx": "gfx942"}, doubt=False)
    # torch's name of its ROCm has two numbers: 7.2 may be 7.2.4, and 7 any of them.
    assert record.may_hold({"gfx": "gfx942", "rocm": "7"}, doubt=False)
    threads = RECORDS["graphs of several threads"]
    assert threads.may_hold({"rocm": "7.2"}, doubt=False)
    assert not threads.may_hold({"rocm": "7.2.0"})
    assert not threads.may_hold({"rocm": "7.1"})
    # Nobody has counted the ranks of most processes.
    group = RECORDS["the watchdog of a process group"]
    assert not group.may_hold({"rocm": "7.1.1", "torch": "2.10.0"})
    assert not group.may_hold({"rocm": "7.1.1", "torch": "2.10.0", "ranks": "1"})


def test_evidence_without_a_runtime_proves_no_graph() -> None:
    place = {"gfx": "gfx90a", "rocm": "6.4.1"}
    assert proven(proof("gfx90a", ALL_TRIALS, 21), place) == {*CAPTURING, "freezing"}
    older = proof("gfx90a", ALL_TRIALS, 21, runtime="")
    assert proven(older, place) == {"freezing"}
    found = match.FoundEvidence((older,)).obey_ledger(place)
    assert found.exceptions == [
        "evidence does not count for graphs, training-graphs, autotune-graphs, cudagraphs, "
        "max-autotune (the file does not say with which HIP runtime it was made)"
    ]


def test_evidence_of_another_runtime_is_stale(tmp_path: Path) -> None:
    one = proof("gfx90a", ALL_TRIALS, 21)
    path = tmp_path / "one.json"
    subjects = dict(one.subjects)
    document = {"version": 1, "made": one.made, "by": one.by, "battery": one.battery}
    document |= {"place": one.place, "subjects": subjects, "trials": one.trials}
    path.write_text(json.dumps(document))
    here = {name: value for name, value in one.place.items() if name != "torch"}
    assert match.look_for_evidence(here, "2.13.0", [path]).used
    ((_, why),) = match.look_for_evidence(
        {**here, "runtime": "7.2 8 bytes"}, "2.13.0", [path]
    ).stale
    assert why == "runtime 7.2 9 bytes, here is 7.2 8 bytes"


def test_other_devices_are_not_touched() -> None:
    """The ledger is about AMD's GPUs, also where a user assumes that torch is for ROCm."""
    nvidia = proof("NVIDIA H200", runtime="")
    assert proven(nvidia, {}) == {*CAPTURING, "freezing"}


def test_a_ledger_that_can_not_be_read_withholds(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'yaml'")

    monkeypatch.setattr(defects, "read_ledger", broken)
    found = match.FoundEvidence((proof("gfx90a"),)).obey_ledger({})
    assert {*found.withheld} == {*CAPTURING}
    assert "the ledger can't be read: ModuleNotFoundError" in found.withheld["graphs"]
    monkeypatch.setitem(_RECORD, "errors", [])
    monkeypatch.setattr(startup, "say", lambda kind, text: None)
    monkeypatch.setitem(_RECORD, "facts", {"accelerator": ("rocm", "")})
    assert ledger.restrictions_here() == ledger.CaptureRestrictions()
    (error,) = _RECORD["errors"]
    assert error.startswith("the ledger is not obeyed: ModuleNotFoundError")


def test_restrictions() -> None:
    facts = {**ON_ROCM, "gfx": "gfx942", "rocm": "7.2.4", "torch": "2.10.0"}
    found = ledger.find_restrictions(facts)
    assert found.ops == {"aten::topk": "pytorch/pytorch#184265"}
    assert found.graphs.startswith("ROCm/clr#279: ")
    assert found.threads.startswith("ROCm/rocm-systems#6888: ")
    assert found.ranks == ""
    # Whether there are several ranks is the caller's to know.
    assert ledger.find_restrictions({**facts, "rocm": "7.1.1"}).ranks.startswith("sgl-project/")
    assert (
        ledger.find_restrictions({**facts, "accelerator": "cuda"}) == ledger.CaptureRestrictions()
    )
    mxfp4 = ledger.find_restrictions({**facts, "gfx": "gfx950"}).ops["vllm::rocm_aiter_fused_moe"]
    assert mxfp4 == "ROCm/aiter#3632"


def test_evidence_lifts_restrictions() -> None:
    facts = {**ON_ROCM, "gfx": "gfx942", "rocm": "7.2.4"}
    assert ledger.find_restrictions(facts, (proof("gfx942", ALL_TRIALS, 21),)) == (
        ledger.CaptureRestrictions()
    )
    blind = ledger.find_restrictions(facts, (proof("gfx942", ALL_TRIALS, 21, runtime=""),))
    assert blind == ledger.find_restrictions(facts)


def test_restrictions_of_a_process_that_has_no_start() -> None:
    """What is asked there is the loaded torch."""
    code = (
        "import sys, types\n"
        "torch = types.ModuleType('torch')\n"
        "torch.version = types.ModuleType('torch.version')\n"
        "torch.version.__version__, torch.version.hip = '2.10.0+rocm7.0.2', '7.0.51831'\n"
        "sys.modules['torch'] = torch\n"
        "from rocm_autopatch.evidence import ledger\n"
        "found = ledger.restrictions_here()\n"
        "print(found.graphs.split(':')[0], found.ranks.split(':')[0], *found.ops)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROCM_AUTOPATCH": "off"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    graphs, ranks, *ops = done.stdout.split()
    # Without a GPU all records may hold that ROCm 7.0 does not rule out.
    assert (graphs, ranks) == ("pytorch/pytorch#197377", "sgl-project/sglang#29235")
    assert "aten::topk" in ops


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"])
def test_the_number_of_ranks(variable: str, tmp_path: Path) -> None:
    from rocm_autopatch.image import clues

    for said, ranks in (("8", "8"), ("", None), ("many", None), ("9" * 99, None)):
        found = dict(clues.gather_clues({variable: said}, tmp_path, ()))
        assert (found["ranks"].value if "ranks" in found else None) == ranks


def test_the_wheel_has_it() -> None:
    packed = dict(builtin.files())[defects.INDEX]
    assert packed.startswith(startup.MAGIC)
    assert "ledger.yaml" not in (ROOT / "setup.cfg").read_text()  # Nothing reads it there.
    assert defects.SOURCE.startswith(_HERE)


def test_the_wheel_needs_no_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / defects.INDEX).write_bytes(dict(builtin.files())[defects.INDEX])
    monkeypatch.setattr(defects, "_HERE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert defects.read_ledger.__wrapped__() == tuple(RECORDS.values())


def test_nothing_is_only_told() -> None:
    told = [one for one in RECORDS.values() if one.forbids == NOTHING]
    assert told
    assert not any(one.forbids_subject(subject) for one in told for subject in CAPTURING)


def test_a_start_says_what_was_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, also where nothing else is left of the evidence."""
    facts = {**ON_ROCM, "gfx": "gfx942", "rocm": "7.2.0"}
    found = match.FoundEvidence((proof("gfx942", ALL_TRIALS, 3),)).obey_ledger(facts)
    assert found.label == (
        "gfx942 0x74a1 304 CUs 2026-11-22; not for graphs, training-graphs, autotune-graphs, "
        "cudagraphs, max-autotune (ROCm/clr#279: In about one of five fresh processes, replayed "
        "graphs give wrong results, without an error)"
    )
    plan: Any = {}
    chosen = select.Selection("safe", (), ())
    lowered = select.Lowered(plan, plan, chosen, facts, found)
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(select, "lowered", lambda facts, policy: lowered)
    monkeypatch.setattr(startup, "say", lambda *line: said.append(line))
    monkeypatch.setitem(_RECORD, "evidence", "")
    assert from_yaml.lower("") is plan
    ((kind, text),) = said
    assert kind == "ledger"
    assert text.startswith("evidence does not count for graphs, ")
    assert "ROCm/clr#279" in text
    assert [*found.notes] == [text]


@pytest.mark.parametrize(("known", "threads"), [("", True), ("proven=graphs", False)])
def test_probe_names_the_record(known: str, threads: bool) -> None:
    place = ("accelerator=rocm", "torch=2.10.0", "rocm=7.2.0", "gfx=gfx942", known)
    flags = [part for one in place if one for part in ("--assume", one)]
    done = subprocess.run(
        [sys.executable, "-m", "rocm_autopatch", "probe", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("\ngraphs are not proven here: ROCm/clr#279: " in done.stdout) == threads


def explain(*assumed: str) -> list[str]:
    flags = [part for one in assumed for part in ("--assume", one)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rocm_autopatch", "explain", "reduce-overhead"),
            *("--no-torch", "--assume", "accelerator=rocm", *flags),
        ],
        env={**os.environ, "ROCM_AUTOPATCH_POLICY": "performance", "COLUMNS": "100"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_status_lists_what_is_known() -> None:
    code = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
    env = {"ROCM_AUTOPATCH": "on", "ROCM_AUTOPATCH_LOG": "quiet"}
    env["ROCM_AUTOPATCH_ASSUME"] = "accelerator=rocm,torch=2.10.0,rocm=7.2.0,gfx=gfx942"
    done = subprocess.run(
        [sys.executable, "-c", f"import rocm_autopatch; rocm_autopatch.start(); {code}"],
        env={**os.environ, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    issues = {one["record"]: one for one in json.loads(done.stdout)["known_issues"]}
    issue = issues["replays differ by process on gfx942"]
    assert issue["source"] == "ROCm/clr#279, vllm-project/vllm#46386"
    assert issue["text"].startswith("Graphs: In about one of five fresh processes, ")
    assert "captured memset" not in issues


@pytest.mark.parametrize(
    ("assumed", "thread"),
    [
        (("rocm=7.2.0", "gfx=gfx942"), "ROCm/clr#279"),
        (("rocm=7.0.0", "gfx=gfx950"), "pytorch/pytorch#197377"),
        (("rocm=7.1.1", "gfx=gfx1100"), "vllm-project/vllm#35485"),
        (("rocm=7.2.1", "gfx=gfx1201"), "ROCm/hip#3887"),
        (("rocm=7.1.1", "torch=2.10.0", "ranks=8"), "sgl-project/sglang#29235"),
    ],
)
def test_explain_says_why_in_one_line(assumed: tuple[str, ...], thread: str) -> None:
    first, *lines = explain(*assumed)
    assert first.startswith("reduce-overhead: will become 'default'")
    (line,) = (one for one in lines if one.startswith("  performance: use 'graphs'"))
    assert "does not hold: no evidence here proves graphs; " + thread in line
