"""Evidence files in /etc/rocm-autopatch/evidence: what they change, where, and what is said of it.

This machine has no GPU, so evidence for "no GPU" is for it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Interpreter, run_with_site
from tests.messages import Golden, line_on
from tests.running import QUIET, run_at_site

HERE = {
    "device": "no GPU",
    "driver": "none",
    "torch": "2.13.0+rocm7.0",
    "triton": "none",
    "runtime": "none",
}
THERE = {**HERE, "device": "gfx90a 0x7408 104 CUs", "driver": "6.12.12"}
# The trial that could have seen what the ledger has of ROCm 7.0.
MEMSET = [
    {"trial": "memset", "subject": subject, "start": "cold", "status": "ended", "wave": 1}
    for subject in ("graphs", "cudagraphs")
]
FILE = "/etc/rocm-autopatch/evidence/one.json"
GRAPHS = {"graphs": True}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site" / "evidence").mkdir(parents=True)
    return tmp_path / "site"


def put(
    site: Path,
    subjects: Mapping[str, bool | None],
    name: str = "one",
    made: str = "2026-11-22T18:40:00Z",
    gains: tuple[str, ...] = (),
    place: Mapping[str, str] = HERE,
    trials: Sequence[Any] = (),
    battery: str = "full",
) -> None:
    """An evidence file for this machine, but for what is given of its place."""
    document = {
        "version": 1,
        "made": made,
        "by": "0.5.0",
        "battery": battery,
        "place": dict(place),
        "subjects": {
            subject: {"sound": sound, "gains": (subject in gains) if sound is not None else None}
            for subject, sound in subjects.items()
        },
        "trials": list(trials),
    }
    (site / "evidence" / f"{name}.json").write_text(json.dumps(document))


def ours(
    python: Interpreter, site: Path, *arguments: str | Path, **env: str
) -> subprocess.CompletedProcess[str]:
    return run_with_site(site, python.path, "-m", "rocm_autopatch", *arguments, **env)


def report(python: Interpreter, site: Path, *flags: str, **env: str) -> dict[str, Any]:
    done = ours(python, site, "status", "--json", "--no-torch", *flags, **env)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == bool(found["errors"])
    return found


def modes(report: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["wanted"] for row in report["compile_modes"]}


SAFE = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def test_what_is_proven_is_allowed(python: Interpreter, site: Path) -> None:
    put(site, {"graphs": True, "freezing": False, "multi_kernel": None}, gains=("graphs",))
    found = report(python, site)
    assert modes(found) == {**SAFE, "reduce-overhead": "graphs"}
    fact = {"value": "graphs", "source": FILE, "kind": "clue"}
    assert (found["facts"]["proven"], found["facts"]["gains"]) == (fact, fact)
    assert found["evidence"] == {
        "applied": "no GPU 2026-11-22",
        "files": [
            {
                "file": FILE,
                "made": "2026-11-22T18:40:00Z",
                "by": "0.5.0",
                "battery": "full",
                "device": "no GPU",
                "status": "used",
                "reason": "",
            }
        ],
    }
    assert (found["notes"], found["errors"]) == ([], [])


# By what is proven: the modes, and the values of the keys that safe pins otherwise.
SAFE_KEYS = {
    "max_autotune_gemm_backends": ("pin", "ATEN"),
    "triton.cudagraphs": ("pin", False),
    "triton.cudagraph_trees": ("pin", False),
}
CAPTURE = {
    "triton.cudagraphs": ("default", False),
    "triton.cudagraph_trees": ("default", True),
}
ALLOWED: dict[str, tuple[list[str], list[str], dict[str, str], dict[str, Any]]] = {
    "nothing that safe asks for": (["default", "autotune"], [], {}, {}),
    "our graphs": (["graphs"], [], {"reduce-overhead": "graphs"}, {}),
    "Inductor's": (["cudagraphs"], [], {"reduce-overhead": "reduce-overhead"}, CAPTURE),
    "both": (["graphs", "cudagraphs"], [], {"reduce-overhead": "graphs"}, CAPTURE),
    "a search": (["autotune-graphs"], [], {"max-autotune": "graphs"}, {}),
    "torch's own search": (["max-autotune"], [], {"max-autotune": "max-autotune"}, CAPTURE),
    "both searches": (
        *(["max-autotune", "autotune-graphs"], [], {"max-autotune": "graphs"}, CAPTURE),
    ),
    "templates that gain nothing": (["gemm-templates"], [], {}, {}),
    "templates that gain": (
        *(["gemm-templates"], ["gemm-templates"], {}),
        {"max_autotune_gemm_backends": ("default", "ATEN,TRITON,CPP")},
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_safe(name: str, python311: Interpreter, site: Path) -> None:
    proven, gains, changed_modes, keys = ALLOWED[name]
    put(site, dict.fromkeys(proven, True), gains=tuple(gains))
    found = report(python311, site)
    assert modes(found) == {**SAFE, **changed_modes}
    rows = {row["name"].split(".config.")[-1]: row for row in found["config"]}
    seen = {key: (rows[key]["strength"], rows[key]["wanted"]) for key in SAFE_KEYS}
    assert seen == {**SAFE_KEYS, **keys}
    assert bool(found["evidence"]["applied"]) == bool(changed_modes or keys)


@pytest.mark.parametrize("bound", HERE)
def test_stale(bound: str, python311: Interpreter, site: Path) -> None:
    put(site, GRAPHS, place={**HERE, bound: "another"})
    found = report(python311, site)
    assert modes(found) == SAFE
    why = f"made with {bound} another, here is {HERE[bound]}"
    assert found["notes"] == [f"evidence {FILE} is not used: it was {why}"]
    assert "proven" not in found["facts"]
    (row,) = found["evidence"]["files"]
    assert (row["status"], row["reason"]) == ("stale", why)
    assert found["evidence"]["applied"] == ""


def test_several_files(python311: Interpreter, site: Path) -> None:
    old, new = "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"
    both = {"graphs": True, "cudagraphs": True, "freezing": True}
    put(site, both, "b", old, gains=("graphs", "freezing"))
    # A newer false counts, and null is no verdict.
    put(site, {"cudagraphs": False, "graphs": None}, "a", new)
    put(site, {"freezing": False}, "c", "2026-11-22T00:00:00Z", place={**HERE, "driver": "another"})
    found = report(python311, site)
    directory = "/etc/rocm-autopatch/evidence"
    fact = {"value": "freezing graphs", "source": f"{directory}/b.json", "kind": "clue"}
    assert (found["facts"]["proven"], found["facts"]["gains"]) == (fact, fact)
    assert [(row["file"][-6], row["status"]) for row in found["evidence"]["files"]] == [
        ("b", "used"),
        ("a", "used"),
        ("c", "stale"),
    ]
    assert found["evidence"]["applied"] == "no GPU 2026-11-21"


OLD, NEW, NEWEST = (f"2026-11-2{day}T00:00:00Z" for day in range(3))
# Each file: made, battery, verdict on graphs; and whether they are proven.
FILES: dict[str, tuple[list[tuple[str, str, bool | None]], bool]] = {
    "the same second": ([(OLD, "full", False), (OLD, "full", True)], False),
    "the same second, the other way round": ([(OLD, "full", True), (OLD, "full", False)], False),
    "a newer full battery": ([(OLD, "full", False), (NEW, "full", True)], True),
    "a newer quick battery": ([(OLD, "full", False), (NEW, "quick", True)], False),
    "a newer partial battery": ([(OLD, "full", False), (NEW, "partial", True)], False),
    "an older full battery": ([(OLD, "full", True), (NEW, "quick", False)], False),
    "quick ones": ([(OLD, "quick", False), (NEW, "quick", True)], True),
    "quick, then partial": ([(OLD, "quick", False), (NEW, "partial", True)], True),
    "a quick one takes back only its own": (
        [(OLD, "full", False), (NEW, "quick", False), (NEWEST, "quick", True)],
        False,
    ),
    "no verdict takes nothing back": ([(OLD, "quick", False), (NEW, "full", None)], False),
    "fixed": (
        [(OLD, "quick", False), (NEW, "full", True), (NEWEST, "quick", True)],
        True,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_disagree(name: str, python311: Interpreter, site: Path) -> None:
    files, proven = FILES[name]
    for number, (made, battery, sound) in enumerate(files):
        gains = ("graphs",) if sound else ()
        put(site, {"graphs": sound}, str(number), made, gains, battery=battery)
    facts = report(python311, site)["facts"]
    assert ("proven" in facts, "gains" in facts) == (proven, proven)


def test_a_gain_is_lost_with_its_soundness(python311: Interpreter, site: Path) -> None:
    put(site, {"graphs": True}, "a", "2026-11-20T00:00:00Z", gains=("graphs",))
    put(site, {"graphs": False}, "b", "2026-11-21T00:00:00Z")
    assert {"proven", "gains"}.isdisjoint(report(python311, site)["facts"])


def test_a_wrong_file_is_an_error_and_the_policy_applies_without_it(
    python311: Interpreter, site: Path
) -> None:
    put(site, GRAPHS)
    put(site, {"freezing": True}, "two")
    path = site / "evidence" / "one.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    found = report(python311, site)
    said = f"{FILE}: version: expected 1, the format that this release reads, found 2"
    assert found["errors"] == [f"evidence is not used: {said}"]
    assert (modes(found), found["policies"]) == (SAFE, ["safe"])
    assert found["facts"]["proven"]["value"] == "freezing"
    put(site, GRAPHS)
    path.chmod(0o666)
    found = report(python311, site)
    why = f"everybody may write it; run chmod go-w {FILE}"
    assert found["errors"] == [f"evidence is not used: {FILE}: {why}"]
    assert modes(found) == SAFE


LOADED = "import sys; print(sorted({n.split('.')[1] for n in sys.modules if 'autopatch.' in n}))"


def test_a_site_without_evidence_files_costs_no_yaml(python311: Interpreter, site: Path) -> None:
    (site / "evidence" / "notes.txt").touch()
    done = run_with_site(site, python311.path, "-c", LOADED, **QUIET)
    assert "'policy'" not in done.stdout
    put(site, GRAPHS)
    done = run_with_site(site, python311.path, "-c", LOADED, **QUIET)
    assert "'policy'" in done.stdout


def test_without_pyyaml(python311: Interpreter, site: Path, tmp_path: Path) -> None:
    put(site, GRAPHS)
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError('no yaml', name='yaml')\n")
    found = report(python311, site, PYTHONPATH=str(tmp_path))
    assert found["errors"] == [
        "evidence is not used: reading a policy needs PyYAML, which is not installed here"
    ]
    assert (found["policies"], modes(found)) == (["safe"], SAFE)


def test_a_policy_that_is_not_there(python311: Interpreter, site: Path) -> None:
    put(site, GRAPHS)
    found = report(python311, site, ROCM_AUTOPATCH_POLICY="saef")
    (error,) = found["errors"]
    assert error.startswith("ROCM_AUTOPATCH_POLICY=saef: no such policy (did you mean safe?)")
    assert (found["policies"], modes(found)["reduce-overhead"]) == (["safe"], "graphs")
    found = report(python311, site, ROCM_AUTOPATCH_POLICY="debug")
    assert (found["policies"], modes(found)["reduce-overhead"]) == (["safe", "debug"], "graphs")


def test_turned_off(python311: Interpreter, site: Path) -> None:
    put(site, GRAPHS)
    code = "import rocm_autopatch; print(rocm_autopatch.status()['evidence'])"
    done = run_with_site(site, python311.path, "-c", code, ROCM_AUTOPATCH="off")
    assert done.stdout == "{'applied': '', 'files': []}\n"


def test_assumed(python311: Interpreter, tmp_path: Path) -> None:
    """Without a site or a policy that is named: the plan in the wheel would not do."""
    done = python311.run(
        *("-m", "rocm_autopatch", "status", "--json", "--no-torch"),
        *("--assume", "proven=graphs max-autotune"),
    )
    found = json.loads(done.stdout)
    assert modes(found) == {"reduce-overhead": "graphs", "max-autotune": "max-autotune"}
    # An assumption is no evidence.
    assert found["evidence"] == {"applied": "", "files": []}
    show = ("-m", "rocm_autopatch", "policies", "show", "--assume", "proven=graphs")
    said = python311.run(*show).stdout
    assert "left out: max-autotune: use 'graphs'  [safe], because no evidence" in said
    assert "left out: reduce-overhead: use 'graphs'" not in said
    shown = python311.run(*show, "--json")
    ((entries,),) = [
        [rows for name, _, rows in json.loads(shown.stdout)["patches"] if name == "compile_modes"]
    ]
    assert ["reduce-overhead", "graphs"] in [entry[:2] for entry in entries]


def test_left_out_by_an_assumption(python311: Interpreter, site: Path) -> None:
    put(site, GRAPHS, gains=("graphs",))
    found = report(python311, site, ROCM_AUTOPATCH_ASSUME="proven=,gains=")
    assert (modes(found), found["evidence"]["applied"]) == (SAFE, "")


TEAM = """
version: 1
name: team
when: {proven: [graphs, freezing]}
env:
  TEAM:
    - {set: plain}
    - {set: proven, proven: freezing, why: It works here.}
    - {set: fast, gains: freezing, no_trial: A reason.}
"""


def test_a_policy_of_ones_own(python311: Interpreter, site: Path) -> None:
    (site / "team.yaml").write_text(TEAM)

    def env() -> dict[str, str]:
        return {row["name"]: row["wanted"] for row in report(python311, site)["env"]}

    put(site, {"freezing": True})
    assert "TEAM" not in env()
    put(site, {"freezing": True, "graphs": True})
    assert env()["TEAM"] == "proven"
    put(site, {"freezing": True, "graphs": True}, gains=("freezing",))
    assert env()["TEAM"] == "fast"


def test_explain(python311: Interpreter, site: Path, golden: Golden) -> None:
    put(site, {"cudagraphs": True})
    (site / "team.yaml").write_text(TEAM.replace("when: {proven: [graphs, freezing]}\n", ""))
    for name in ("reduce-overhead", "TEAM"):
        done = ours(python311, site, "explain", "--no-torch", name)
        assert done.returncode == 0, done.stderr
        golden(done.stdout, name)


def test_status_text(python311: Interpreter, site: Path, golden: Golden) -> None:
    put(site, GRAPHS)
    put(site, GRAPHS, "two", place={**HERE, "driver": "1.2"})
    shown = ours(python311, site, "status", "--no-torch", "--all").stdout.splitlines()
    golden("\n".join(line for line in shown if "evidence" in line))


# With torch

PROGRAM = """
import json, torch, rocm_autopatch
import torch._inductor.config as config
report = rocm_autopatch.status()
rows = {row["name"]: row["after"] for row in report["compile_modes"]}
options = torch._inductor.list_mode_options("reduce-overhead")
print(json.dumps([rows, options, config.triton.cudagraph_trees, report["evidence"]["applied"],
                  report["notes"], report["errors"]]))
"""
PROVEN = [
    *({**SAFE, "reduce-overhead": "reduce-overhead"}, {"triton.cudagraphs": True}, True),
]
UNPROVEN = [SAFE, {}, False]


def seen_at_site(python: Interpreter, site: Path, **env: str) -> tuple[list[Any], list[str], str]:
    """What the program sees, its notes, and what it says on stderr."""
    out, said = run_at_site(python, site, PROGRAM, **env)
    *seen, applied, notes, errors = json.loads(out)
    assert errors == []
    return [*seen, applied], notes, "\n".join(said)


def test_at_the_import_of_torch(torch_python: Interpreter, site: Path, golden: Golden) -> None:
    put(site, {"cudagraphs": True})
    seen, notes, said = seen_at_site(torch_python, site)
    assert (seen, notes) == ([*PROVEN, "no GPU 2026-11-22"], [])
    golden(line_on(said, "applies"))
    seen, *_ = seen_at_site(torch_python, site, ROCM_AUTOPATCH="observe")
    assert seen[1:3] == [{"triton.cudagraphs": True}, True]
    seen, *_ = seen_at_site(torch_python, site, ROCM_AUTOPATCH_KEEP="reduce-overhead")
    assert seen[0]["reduce-overhead"] == "reduce-overhead"
    put(site, {"cudagraphs": False})
    seen, notes, said = seen_at_site(torch_python, site)
    assert (seen, notes) == ([*UNPROVEN, ""], [])
    golden(line_on(said, "applies"), "without evidence")


def bake(
    python: Interpreter, site: Path, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Bake in a site of its own; the plan is the environment's until the next one."""
    done = ours(python, site, "bake", *arguments)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def baked(torch_python: Interpreter) -> Any:
    yield torch_python
    (torch_python.site_packages / "rocm_autopatch" / "baked.plan").unlink()


def test_baked(baked: Interpreter, site: Path, golden: Golden) -> None:
    put(site, {"cudagraphs": True})
    done = bake(baked, site)
    golden(done.stdout.partition("  evidence")[2])
    done = run_with_site(site, baked.path, "-c", LOADED, **QUIET)
    assert done.stdout == "['startup']\n"
    seen, notes, said = seen_at_site(baked, site)
    assert (seen, notes) == ([*PROVEN, "no GPU 2026-11-22"], [])
    golden(line_on(said, "applies"), "the line")
    # The report of a process that has not imported torch has what will be applied.
    found = report(baked, site)
    assert (found["baked"] != "", modes(found)) == (True, PROVEN[0])
    # The evidence is among the sources of the plan.
    put(site, {"cudagraphs": True}, made="2026-11-23T00:00:00Z")
    found = report(baked, site)
    assert found["baked"] == ""
    assert found["notes"] == [f"the baked plan is not used: {FILE} has changed"]
    assert found["evidence"]["applied"] == "no GPU 2026-11-23"


def test_baked_for_another_machine(baked: Interpreter, site: Path, golden: Golden) -> None:
    """As in the build of an image: no GPU there, and another one where it runs."""
    put(site, {"cudagraphs": True}, place=THERE, trials=MEMSET)
    done = json.loads(bake(baked, site, "--json").stdout)
    machine = {name: THERE[name] for name in THERE if name != "torch"}
    assert done["evidence"] == {"machine": machine, "files": [FILE], "unused": ""}
    seen, notes, said = seen_at_site(baked, site)
    assert seen == [*UNPROVEN, ""]
    golden(notes[0], "note")
    golden(line_on(said, "evidence"), "line")
    # Once in a process tree
    code = f"import subprocess, sys, torch; subprocess.call([sys.executable, '-c', {PROGRAM!r}])"
    done_twice = run_with_site(site, baked.path, "-c", code)
    assert done_twice.stderr.count("evidence is not used") == 1
    # Two machines, of which none is this one
    another = {**THERE, "device": "gfx950 0x75a0 256 CUs"}
    put(site, {"cudagraphs": True}, "two", place=another, trials=MEMSET)
    golden(bake(baked, site).stdout.partition("  evidence")[2], "two machines")
    assert seen_at_site(baked, site)[0] == [*UNPROVEN, ""]


def test_what_the_ledger_withholds_is_not_baked(baked: Interpreter, site: Path) -> None:
    """Evidence of the same machine that could not have seen what is known of its ROCm."""
    put(site, {"cudagraphs": True}, place=THERE)
    done = json.loads(bake(baked, site, "--json").stdout)
    assert done["evidence"]["machine"] == {}
    assert done["evidence"]["unused"].startswith(
        "evidence does not count for cudagraphs (pytorch/pytorch#197377: "
    )
    assert seen_at_site(baked, site)[0] == [*UNPROVEN, ""]


def test_baked_for_another_runtime(baked: Interpreter, site: Path) -> None:
    put(site, {"cudagraphs": True}, place={**THERE, "runtime": "7.2 9 bytes"}, trials=MEMSET)
    unused = json.loads(bake(baked, site, "--json").stdout)["evidence"]["unused"]
    assert "runtime 7.2 9 bytes, here is none" in unused


def test_baked_and_stale(baked: Interpreter, site: Path, golden: Golden) -> None:
    put(site, {"cudagraphs": True}, place={**HERE, "torch": "2.12.0"})
    golden(bake(baked, site).stdout.partition("  evidence")[2])
    assert seen_at_site(baked, site)[0] == [*UNPROVEN, ""]


def test_a_wrong_file_is_not_baked(python311: Interpreter, site: Path) -> None:
    (site / "evidence" / "one.json").write_text("{")
    done = ours(python311, site, "bake")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"evidence is not used: {FILE}:1:2: not JSON" in done.stderr


ENV = "version: 1\nenv: {TEAM: [{set: plain}, {set: proven, proven: freezing}]}\n"


@pytest.mark.parametrize(("place", "value"), [(HERE, "proven"), (THERE, "plain")])
def test_a_baked_variable(
    place: dict[str, str], value: str, baked: Interpreter, site: Path
) -> None:
    """It depends on the machine, so the start looks at it."""
    (site / "team.yaml").write_text(ENV)
    put(site, {"freezing": True}, place=place)
    bake(baked, site)
    code = "import os, rocm_autopatch; r = rocm_autopatch.status(); print(os.environ['TEAM'], "
    code += "bool(r['baked']), len(r['notes']), r['errors'])"
    done = run_with_site(site, baked.path, "-c", code)
    assert done.stdout == f"{value} True {2 * (place is THERE)} []\n"
