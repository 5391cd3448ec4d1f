"""The compile report: gathered from real compiles by the real torch 2.13.0, read, and shown.

Most programs compile with backend="eager", which is Dynamo without a backend: graph breaks and
recompiles are Dynamo's, and take no compiler.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.cli import main
from rocm_autopatch.compile_report import operations, page, summary
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.compile_report.generations import find_generation
from rocm_autopatch.compile_report.model import CompileReport, TracedProcess
from rocm_autopatch.compile_report.trace import TraceEvent, TraceFile
from tests.chromium import Browser, browser
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden
from tests.programs import program_file
from tests.running import run_command

BREAKS = program_file("report/breaks.py").read_text()

PROCESSES = program_file("report/processes.py").read_text()

# On a CPU, Inductor benchmarks ATen's and its own kernels for a GEMM with frozen weights.
TUNED = """
import torch, torch._inductor.config as config
config.freezing = True
config.max_autotune_gemm_backends = "CPP,ATEN"
model = torch.nn.Linear(64, 64).eval()
with torch.no_grad():
    torch.compile(model)(torch.ones(16, 64))
"""

KILLED = """
import os, signal, time, torch
def backend(module, inputs):
    time.sleep(1.2)
    os.kill(os.getpid(), signal.SIGKILL)
def hangs(x):
    return x + 1
def fine(x):
    return x - 1
torch.compile(fine, backend="eager")(torch.ones(2))
torch.compile(hangs, backend=backend)(torch.ones(2))
"""

LIMIT = program_file("report/limit.py").read_text()

OTHER = """
import torch
def fine(x):
    return x + 1
torch.compile(fine, backend="eager")(torch.ones(2))
raise KeyError("token hf_" + "A" * 34)
"""

EAGER = """
import torch
def small(x):
    return x + 1
print(float(torch.compile(small, backend="eager")(torch.ones(2))[0]))
"""


# Inductor compiles tests of the CPU, which would take as long as everything else here.
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
# No policy applies, as on a CUDA torch.
NO_POLICY = {"ROCM_AUTOPATCH_ASSUME": "accelerator=cuda"}


class Ran:
    """A command that was run under ``rocm-autopatch run``, and its report."""

    def __init__(
        self, python: Interpreter, place: Path, code: str, *options: str | Path, **env: str
    ) -> None:
        place.mkdir()
        self.place, self.directory = place, place / "report"
        self.program = place / "program.py"
        self.program.write_text(code)
        command = ("-m", "rocm_autopatch", "run", "--report", self.directory, *options, "--")
        self.done = python.run(
            *command,
            *(python.path, self.program, place),
            env={"HOME": str(place), "ROCM_AUTOPATCH_LOG": "quiet", **QUICK, **env},
            check=False,
            cwd=place,
        )
        self.text = self.done.stderr

    @property
    def report(self) -> CompileReport:
        return gather_report(self.directory)

    @property
    def data(self) -> dict[str, Any]:
        return summary.report_data(self.report)

    def line(self, words: str) -> int:
        """The number of the program's line with these words."""
        lines = self.program.read_text().splitlines()
        (found,) = (number for number, line in enumerate(lines, 1) if words in line)
        return found

    def advice(self) -> dict[str, dict[str, Any]]:
        return {one["kind"]: one for one in self.data["advice"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def breaks(torch_python: Interpreter, place: Path) -> Ran:
    # There is no policy, because safe raises the recompile limit.
    return Ran(torch_python, place / "breaks", BREAKS, **NO_POLICY)


@pytest.fixture(scope="module")
def processes(torch_python: Interpreter, place: Path) -> Ran:
    return Ran(torch_python, place / "processes", PROCESSES)


@pytest.fixture(scope="module")
def tuned(torch_python: Interpreter, place: Path) -> Ran:
    policy = place / "none.yaml"
    policy.write_text("version: 1\nextends: []\n")
    return Ran(
        torch_python,
        place / "tuned",
        TUNED,
        "--trace",
        place / "tuned.json",
        ROCM_AUTOPATCH_POLICY=str(policy),
        TORCHINDUCTOR_MAX_AUTOTUNE="1",
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )


@pytest.fixture(scope="module")
def killed(torch_python: Interpreter, place: Path) -> Ran:
    return Ran(torch_python, place / "killed", KILLED, "--trace", place / "killed.json")


def test_breaks_are_named_with_place_and_reason(breaks: Ran) -> None:
    assert breaks.done.returncode == 0, breaks.text
    assert breaks.done.stdout == "value\n"
    found = {(one["line"], one["function"]): one for one in breaks.data["breaks"]}
    expected = {
        (breaks.line(".item()"), "scale"): "item",
        (breaks.line("print("), "speak"): "print",
        (breaks.line("vendor(x.exp())"), "wrapped"): "disable",
        (breaks.line("if x.sum()"), "branches"): "branching",
        (breaks.line("_struct.calcsize"), "native"): "marked as skipped",
    }
    assert {one["file"] for one in found.values()} == {str(breaks.program)}
    for key, word in expected.items():
        assert word in found[key]["reason"] + found[key]["explanation"], found[key]
        assert found[key]["count"] == 1
        assert f"program.py:{key[0]} in {key[1]}" in breaks.text
    assert len(found) == len(expected)


def test_recompiles_are_named_with_guard_and_limit(breaks: Ran) -> None:
    found = {one["function"]: one for one in breaks.data["recompiles"]}
    sizes = found["sizes"]
    assert (sizes["count"], sizes["limit"]) == (7, 1)
    assert sizes["line"] == breaks.line("def sizes")
    assert sizes["guard"] == "tensor 'x' size mismatch at index 0"
    assert found["numbers"]["count"] == 2
    assert found["numbers"]["guard"] == "n == …"
    assert "dtype mismatch" in found["types"]["guard"]
    assert f"program.py:{sizes['line']} sizes" in breaks.text
    assert "recompile limit reached" in breaks.text


def test_graphs_have_what_the_trace_tells(breaks: Ran) -> None:
    data = breaks.data
    assert data["torch"] == ["2.13.0+rocm7.0"]
    graphs = {(one["function"], one["resumed"]): one for one in data["graphs"]}
    resumed = graphs["speak", breaks.line("print(")]
    assert resumed["operations"] == {"relu": 1}
    assert graphs["speak", 0]["seconds"] > 0
    assert graphs["speak", 0]["operations"] == {"mul": 1}
    assert graphs["sizes", 0]["operations"] == {"matmul": 1}
    # With backend="eager" there is nothing from Inductor.
    assert resumed["kernels"] is None
    assert resumed["cache"] == ""
    assert all(one["finished"] for one in data["graphs"])
    assert data["notes"] == []


def test_each_process_and_the_cache(processes: Ran) -> None:
    assert processes.data["modes"] == ["default"]
    assert "modes    default (as asked)\n" in processes.text
    assert processes.done.returncode == 0, processes.text
    data = processes.data
    # The parent never imports torch.
    assert len(data["processes"]) == len(data["graphs"]) == 3
    assert sorted(one["cache"] for one in data["graphs"]) == ["hit", "miss", "miss"]
    missed = [one for one in data["graphs"] if one["cache"] == "miss"]
    (hit,) = (one for one in data["graphs"] if one["cache"] == "hit")
    for one in missed:
        assert one["phases"]["Inductor"] > hit["phases"]["Inductor"]
        assert one["phases"]["backward"] > 0
        assert sum(one["phases"].values()) == pytest.approx(one["seconds"], rel=0.01)
    for one in data["graphs"]:
        # One is the forward, one the backward.
        assert one["operations"]["aten.mm"] == 2, one
        assert one["kernels"] >= 2
        assert one["library"]["mm"] == 2
        assert not one["autotuned"]
    assert data["kinds"]["matrix product"] == 6
    assert data["kinds"]["reduction"] > 0
    assert "3 processes" in processes.text
    assert "2 compiled anew" in processes.text
    commands = {tuple(one["command"][:2]) for one in data["processes"]}
    assert len(commands) == 1


def test_autotuning_and_disabled_caches(tuned: Ran) -> None:
    assert tuned.done.returncode == 0, tuned.text
    (graph,) = tuned.data["graphs"]
    assert graph["autotuned"]
    assert 0 < graph["phases"]["autotuning"] < graph["seconds"]
    assert graph["settings"]["max_autotune"] is True
    assert graph["settings"]["force_disable_caches"] is True


def test_each_advice_has_its_cause(breaks: Ran, processes: Ran, tuned: Ran, killed: Ran) -> None:
    of_breaks = {"item", "branch", "print", "disabled", "skipped"}
    of_recompiles = {"size", "number", "dtype"}
    assert set(breaks.advice()) == {
        *(f"graph break: {kind}" for kind in of_breaks),
        *(f"recompile: {kind}" for kind in of_recompiles),
        "recompile limit",
    }
    assert set(processes.advice()) == {"compiled twice"}
    twice = processes.advice()["compiled twice"]
    lost = re.search(r"([\d.]+) s of compiling", twice["seen"])
    assert lost
    missed = [one["seconds"] for one in processes.data["graphs"] if one["cache"] == "miss"]
    assert float(lost[1]) == pytest.approx(min(missed), abs=0.06)
    assert set(killed.advice()) == {"unfinished"}
    assert set(tuned.advice()) == {"autotuning", "caches off"}
    advice = tuned.advice()
    share = re.search(r"took (\d+)% of the compile time", advice["autotuning"]["seen"])
    assert share
    assert int(share[1]) >= 20
    assert "unset TORCHINDUCTOR_MAX_AUTOTUNE" in advice["autotuning"]["do"]
    assert "rocm-autopatch explain max_autotune" in advice["autotuning"]["do"]
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES" in advice["caches off"]["do"]
    item = breaks.advice()["graph break: item"]
    assert item["places"] == [f"{breaks.program}:{breaks.line('.item()')}"]


@pytest.fixture(scope="module")
def limit(torch_python: Interpreter, place: Path) -> Ran:
    return Ran(torch_python, place / "limit", LIMIT, **NO_POLICY)


def test_the_recompile_limit_ends_the_program(limit: Ran) -> None:
    """As fullgraph=True makes it an error. The report begins with it."""
    reason = "FailOnRecompileLimitHit: Hard failure due to fullgraph=True"
    line = limit.line("compiled(x, n)")
    shown = limit.text[limit.text.index("What ended the program") :]
    assert shown.index("What ended the program") < shown.index("compile report: ")
    begin = shown[: shown.index("compile report: ")].splitlines()
    assert re.fullmatch(rf"  program\.py \(\d+\): {reason}", begin[1])
    assert begin[2] == f"      at program.py:{line} steps"
    said = " ".join(" ".join(begin[3:]).split())
    where = f"program.py:{limit.line('def scale')} scale"
    assert said.startswith(f"with fullgraph=True the recompile limit is an error: {where} reached")
    assert "the guard that failed: n == " in said
    assert said.endswith("the command ended with status 1")
    data = limit.data
    (end,) = data["ends"]
    assert (end["error"], end["line"], data["status"]) == (reason, line, 1)
    # It is not among the slowest, and shown.
    assert "Compiles that failed (1)" in shown
    (failure,) = data["failures"]
    assert (failure["reason"], failure["function"]) == (reason, "scale")
    page = (limit.directory / "report.html").read_text()
    assert "<h2>What ended the program</h2><pre>\n  program.py (" in page


def test_a_limit_that_is_an_error_is_told_from_one_that_is_none(limit: Ran) -> None:
    rows = {row["function"]: (row["limit"], row["raised"]) for row in limit.data["recompiles"]}
    assert rows == {"shift": (1, 0), "scale": (1, 1)}
    assert "recompile limit reached: other inputs run uncompiled" in limit.text
    assert "recompile limit reached: with fullgraph=True this is an error" in limit.text
    advice = [one for one in limit.data["advice"] if one["kind"] == "recompile limit"]
    assert "leave out fullgraph=True" in advice[0]["do"]


def test_what_else_ends_a_program(torch_python: Interpreter, tmp_path: Path) -> None:
    """Also where nothing of a compile failed. Secrets are masked."""
    ran = Ran(torch_python, tmp_path / "other", OTHER, **NO_POLICY)
    begin = ran.text[ran.text.index("What ended the program") :].splitlines()
    assert begin[1].endswith("): KeyError: 'token (masked)'")
    assert begin[2] == f"      at program.py:{ran.line('raise KeyError')} <module>"
    assert (ran.data["failures"], ran.data["recompiles"]) == ([], [])


def test_what_a_program_catches_is_no_end(torch_python: Interpreter, tmp_path: Path) -> None:
    caught = "try:\n    steps(scale, True)\nexcept Exception: raise SystemExit(3)"
    code = LIMIT.replace("steps(scale, True)", caught)
    ran = Ran(torch_python, tmp_path / "caught", code, **NO_POLICY)
    assert (ran.done.returncode, ran.data["ends"], ran.data["status"]) == (3, [], 3)
    begin = ran.text[ran.text.index("What ended the program") :].splitlines()
    assert begin[1] == "  the command ended with status 3"
    assert begin[2].startswith("  no process told of an exception; the compiles that failed are ")
    assert len(ran.data["failures"]) == 1


def test_a_program_that_ends_well_has_no_end(breaks: Ran) -> None:
    assert "What ended the program" not in breaks.text
    assert (breaks.data["ends"], breaks.data["status"]) == ([], 0)


def test_a_killed_process(killed: Ran) -> None:
    assert killed.done.returncode == 128 + signal.SIGKILL
    begin = killed.text[killed.text.index("What ended the program") :].splitlines()
    assert begin[1] == "  the command ended with status 137, as SIGKILL ends it"
    graphs = {one["function"]: one for one in killed.data["graphs"]}
    assert graphs["fine"]["finished"]
    assert not graphs["hangs"]["finished"]
    assert graphs["hangs"]["last"] == "backend_compile"
    assert graphs["hangs"]["line"] == killed.line("def hangs")
    assert "did not finish" in killed.text
    assert "killed.json was not written: its process ended by a signal or os._exit" in killed.text
    assert not list(killed.place.parent.glob("*killed.json"))


def test_a_profile(tuned: Ran) -> None:
    path = tuned.place.parent / "tuned.json"
    assert f"profile: {path}" in tuned.text
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"aten::ones", "CompiledFxGraph"} & {str(name).split(" ")[0] for name in names}


def test_the_text_fits(breaks: Ran, processes: Ran, tuned: Ran, killed: Ran) -> None:
    for ran in (breaks, processes, tuned, killed):
        lines = ran.text[ran.text.index("compile report:") :].splitlines()
        assert max(map(len, lines)) <= 100, lines


def test_profiles_of_each_process(torch_python: Interpreter, tmp_path: Path) -> None:
    # This is an installed script, and python -m. For python FILE there is test_a_profile.
    (tmp_path / "mod.py").write_text("import torch\ntorch.ones(2).add(1)\n")
    script = tmp_path / "entry"
    script.write_text(f"#!{torch_python.path}\nimport mod\n")
    script.chmod(0o755)
    command = ["sh", "-c", f"{script}; {torch_python.path} -m mod"]
    trace = tmp_path / "trace-%p.json.gz"
    done = torch_python.run(
        *("-m", "rocm_autopatch", "run", "--trace", str(trace), "--", *command),
        env={"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"},
        cwd=tmp_path,
    )
    written = sorted(tmp_path.glob("trace*"))
    assert len(written) == 2, done.stderr
    for path in written:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert "aten::add" in {event.get("name") for event in events}
        assert f"profile: {path}" in done.stderr


def test_the_programs_own_profiler_comes_first(torch_python: Interpreter, tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "torch.ones(2).mul(3)\n"
        "with torch.profiler.profile() as own:\n"
        "    torch.ones(2).add(1)\n"
        "assert 'aten::add' in {e.name for e in own.events()}\n"
    )
    trace = tmp_path / "trace.json"
    torch_python.run(
        *("-m", "rocm_autopatch", "run", "--trace", trace, "--", torch_python.path, "-c", code)
    )
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::mul" in names
    assert "aten::add" not in names


def test_by_a_variable_where_no_policy_applies(torch_python: Interpreter, tmp_path: Path) -> None:
    # The path is relative, and the program changes its directory before it imports torch.
    code = "import os; os.chdir('/')\n" + EAGER
    env = {**NO_POLICY, "ROCM_AUTOPATCH_REPORT": "here"}
    done = torch_python.run("-c", code, env=env, cwd=tmp_path)
    assert (done.stdout, said(done)) == ("2.0\n", [])
    report = gather_report(tmp_path / "here")
    assert [graph.place.function for graph in report.graphs] == ["small"]
    assert report.processes[0].name.startswith("-c import os; os.chdir")


def test_a_mode_that_is_left_out(torch_python: Interpreter, tmp_path: Path) -> None:
    """torch's own error: three arguments are missing, and not two."""
    code = """
import torch
for given in ({}, {"options": None, "dynamic": None}):
    try:
        torch._TorchCompileInductorWrapper(**given)
    except TypeError as error:
        print(error)
"""
    env = {**NO_POLICY, "ROCM_AUTOPATCH_REPORT": str(tmp_path / "report")}
    said = [torch_python.run("-c", code, env=one).stdout for one in (env, NO_POLICY)]
    assert said[0] == said[1]
    assert "mode" in said[0]


def test_the_programs_own_trace_is_used(torch_python: Interpreter, tmp_path: Path) -> None:
    own, directory = tmp_path / "own", tmp_path / "report"
    own.mkdir()
    old = own / "dedicated_log_torch_trace_old.log"
    shutil.copy(ROOT / "tests" / "data" / "traces" / "2.6.0.log", old)
    os.utime(old, (0, 0))
    env = {**NO_POLICY, "ROCM_AUTOPATCH_REPORT": str(directory), "TORCH_TRACE": str(own)}
    code = EAGER + "import rocm_autopatch; print(*rocm_autopatch.status()['notes'])"
    done = torch_python.run("-c", code, env=env)
    assert f"reads the trace of TORCH_TRACE={own}, which the program has set" in done.stdout
    report = gather_report(directory)
    # Older traces in the directory are not read.
    assert [graph.place.function for graph in report.graphs] == ["small"]
    assert any(str(own) in note for note in report.notes)
    assert not (directory / "trace").exists()


@pytest.mark.parametrize("way", ["no directory", "full"])
def test_what_cant_be_written(torch_python: Interpreter, tmp_path: Path, way: str) -> None:
    (tmp_path / "file").write_text("")
    directory = tmp_path / ("file/report" if way == "no directory" else "report")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
    code = (limit if way == "full" else "") + EAGER.replace(
        "print",
        "for _ in range(3): torch._dynamo.reset(); torch.compile(small)(torch.ones(2))\nprint",
    ).replace("torch.compile(small)", 'torch.compile(small, backend="eager")')
    env = {**NO_POLICY, "ROCM_AUTOPATCH_REPORT": str(directory)}
    done = torch_python.run("-c", code, env=env)
    assert done.stdout == "2.0\n"
    (line,) = said(done)
    if way == "full":
        assert "the compile report of this process ends early: File too large" in line
        report = gather_report(directory)
        assert [graph.place.function for graph in report.graphs] == ["small"]
        # Unless a line ends at that very byte, which depends on the paths in it.
        (trace,) = directory.rglob("dedicated_log_torch_trace_*.log")
        cut = not trace.read_bytes().endswith(b"\n")
        assert any("middle of a line" in note for note in report.notes) == cut
    else:
        assert line.startswith("rocm_autopatch: this process writes no compile report: /")


def test_nothing_imports_torch(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    command = ("-m", "rocm_autopatch", "run", "--report", tmp_path / "report")
    done = python311.run(*command, "--", "true", env={"ROCM_AUTOPATCH_LOG": "quiet"})
    assert done.stdout == ""
    # When and where differ.
    kept = [x for x in done.stderr.splitlines() if not re.match("(began|host|versions) ", x)]
    golden("\n".join(kept))


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that we wrote, without those of torch."""
    return [line for line in done.stderr.splitlines() if line.startswith("rocm_autopatch")]


def test_the_commands_status_streams_and_signals(python311: Interpreter, tmp_path: Path) -> None:
    report = ("run", "--report")
    shell = ("--", "sh", "-c")
    done = run_command(python311, *report, tmp_path / "a", *shell, "cat; exit 7", input="through")
    assert (done.returncode, done.stdout) == (7, "through")
    assert run_command(python311, *report, tmp_path / "b", *shell, "kill -9 $$").returncode == 137
    assert run_command(python311, *report, tmp_path / "c", "--", "no-such").returncode == 127
    assert run_command(python311, *report, tmp_path / "d", "--", "/").returncode == 126
    e = str(tmp_path / "e")
    command = [str(python311.path), "-m", "rocm_autopatch", *report, e, *shell]
    script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([*command, script], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
        assert started.stdout.read() == "told\n"
    assert started.returncode == 3


def test_wrong_usage(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").write_text("")
    wanted = tmp_path / "report"
    assert run_command(python311, "run", "--report", wanted, "--", "true").returncode == 0
    (wanted / "trace" / "dedicated_log_torch_trace_x.log").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("")
    for name, arguments, status in (
        ("not empty", ("--report", wanted, "--", "true"), 1),
        ("other files", ("--report", tmp_path / "mine", "--", "true"), 1),
        ("no name", ("--report", "", "--", "true"), 2),
        ("below a file", ("--report", tmp_path / "file/x", "--", "true"), 1),
        ("no directory", ("--trace", tmp_path / "none/x", "--", "true"), 1),
        ("no command", ("--report", tmp_path / "new"), 2),
    ):
        done = run_command(python311, "run", *arguments)
        assert done.returncode == status
        golden(done.stderr.splitlines()[-1 if status == 2 else 0], name)
    assert [*(tmp_path / "mine").iterdir()] == [tmp_path / "mine/notes"]
    # A new file system is empty, too.
    (tmp_path / "volume/lost+found").mkdir(parents=True)
    assert run_command(python311, "run", "--report", tmp_path / "volume", "true").returncode == 0
    done = run_command(python311, "report", tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr, "report")


@pytest.mark.parametrize("name", ["processes.jsonl", "trace/dedicated_log_torch_trace_y.log"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory"])
def test_what_is_no_file(python311: Interpreter, tmp_path: Path, name: str, kind: str) -> None:
    """Others may have written the directory. No command waits for it, or reads on for ever."""
    path = tmp_path / name
    (tmp_path / "trace").mkdir()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    done = run_command(python311, "report", tmp_path, timeout=60)
    assert done.returncode == 0
    assert f"{path.name} can't be read: " in done.stdout


def test_a_directory_of_its_own(python311: Interpreter, tmp_path: Path) -> None:
    """Without --report DIR, and nothing of it is left where the command can't be run."""
    env = {"TMPDIR": str(tmp_path)}
    done = run_command(python311, "run", "--", "sh", "-c", "exit 3", env=env)
    assert done.returncode == 3
    (made,) = tmp_path.iterdir()
    said = f"rocm-autopatch run: the report will be in {made}\n"
    assert done.stderr.startswith(said)
    assert (made / "processes.jsonl").exists()
    assert run_command(python311, "report", made).returncode == 0
    done = run_command(python311, "run", "--", "no-such-command", env=env)
    assert done.returncode == 127
    assert [*tmp_path.iterdir()] == [made]
    # A profile alone needs none.
    trace = tmp_path / "trace.json"
    done = run_command(python311, "run", "--trace", trace, "--", "true", env=env)
    assert done.returncode == 0
    assert [*tmp_path.iterdir()] == [made]


def test_a_start_without_the_variable_loads_nothing_more(python311: Interpreter) -> None:
    show = "import sys; print(*[n for n in sys.modules if n.startswith('rocm_autopatch')])"
    assert "_report" not in python311.value(show, env={"ROCM_AUTOPATCH_LOG": "quiet"})
    asked = {"ROCM_AUTOPATCH_LOG": "quiet", "ROCM_AUTOPATCH_REPORT": "/nowhere"}
    assert "rocm_autopatch.compile_report.collect" in python311.value(show, env=asked)


def test_a_corrupt_trace(breaks: Ran, tmp_path: Path) -> None:
    (whole,) = (breaks.directory / "trace").iterdir()
    lines = whole.read_bytes().split(b"\n")
    heads = [number for number, line in enumerate(lines) if b'"compilation_metrics"' in line]
    lines[heads[0]] = lines[heads[0]][:200]
    lines[heads[1]] = lines[heads[1]].replace(b'"co_filename": "', b'"co_filename": ["')
    lines.insert(heads[2], b"\xff\xfe not a line of a trace \x00")
    damaged = tmp_path / whole.name
    damaged.write_bytes(b"\n".join(lines)[:-400])
    report = gather_report(tmp_path)
    sound = breaks.report
    # The two graphs with damaged heads are there, as unfinished. The end is cut.
    assert len(report.graphs) == len(sound.graphs)
    assert sum(not graph.finished for graph in report.graphs) >= 2
    assert len(report.breaks) == len(sound.breaks)
    assert f"{whole.name}: left out 3 lines that can't be read" in report.notes
    assert any("ends in the middle of a line" in note for note in report.notes)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert gather_report(empty).graphs == []


@pytest.mark.parametrize("version", ["2.6.0", "2.14.1"])
def test_what_other_torches_write(version: str, tmp_path: Path) -> None:
    # Real traces of one program like those above, shortened (tests/data/traces).
    source = ROOT / "tests" / "data" / "traces" / f"{version}.log"
    shutil.copy(source, tmp_path / "dedicated_log_torch_trace_a.log")
    report = gather_report(tmp_path)
    assert report.notes == []
    places = {(one.place.line, one.place.function) for one in report.breaks}
    assert places == {(5, "scale"), (12, "speak"), (21, "calls"), (28, "datadep")}
    words = {
        "2.6.0": ["Tensor.item", "builtin: print", "_dynamo.disable()", "Data-dependent jump"],
        "2.14.1": ["Tensor.item()", "builtin", "compiler.disable()", "Data-dependent branching"],
    }[version]
    for word in words:
        assert any(word in one.reason for one in report.breaks), (word, report.breaks)
    (one,) = (one for one in report.recompiles if one.place.line == 39)
    assert one.guard.endswith("size mismatch at index 0")
    assert one.limit == 1
    scale = next(graph for graph in report.graphs if graph.place.function == "scale")
    assert (scale.cache, scale.nodes, scale.kernels) == ("miss", 5, 1)
    assert scale.operations == {"aten.sin": 1, "aten.mul": 1, "aten.sum": 1}
    assert scale.phases["Inductor"] > 1
    trained = next(graph for graph in report.graphs if graph.place.line == 44)
    assert trained.phases["backward"] > 0.5
    assert trained.operations["aten.mm"] == 1


def test_a_graph_that_is_partly_in_the_cache(tmp_path: Path) -> None:
    """Its forward was found and its backward not, or the other way round."""
    text = (ROOT / "tests" / "data" / "traces" / "2.14.1.log").read_text()
    # One graph's miss is followed by a hit.
    event = r"^V.*\"fx_graph_cache_miss\".*\"frame_id\": 0,.*\n(\t.*\n)+"
    found = re.search(event, text, re.MULTILINE)
    assert found
    hit = found[0].replace("fx_graph_cache_miss", "fx_graph_cache_hit")
    (tmp_path / "dedicated_log_torch_trace_a.log").write_text(
        text[: found.end()] + hit + text[found.end() :]
    )
    report = gather_report(tmp_path)
    (part,) = (graph for graph in report.graphs if graph.cache == "part")
    assert part.place.function == "scale"
    others = sum(graph.cache == "miss" for graph in report.graphs)
    assert others == len(report.graphs) - 1
    assert f"{others} compiled anew, 1 partly from the cache" in summary.cache_sentence(report)


def test_what_torch_2_4_does_not_tell(tmp_path: Path) -> None:
    # torch 2.4 and 2.5 do not record the break's line, and 2.4 does not record the guard.
    told: dict[str, Any] = {"co_name": "scale", "co_filename": "/p.py", "co_firstlineno": 3}
    told.update(start_time=1.0, entire_frame_compile_time_s=2.0, restart_reasons=["Tensor.item"])
    ids = {"frame_id": 0, "frame_compile_id": 0}
    line = json.dumps({"compilation_metrics": told, **ids})
    (tmp_path / "dedicated_log_torch_trace_a.log").write_text(
        f"V0101 00:00:00.000000 7 torch/_dynamo/utils.py:1] {line}\n"
    )
    report = gather_report(tmp_path)
    (one,) = report.breaks
    assert (str(one.place), one.reason) == ("/p.py:3", "Tensor.item")
    assert report.versions == ["2.4 or 2.5"]
    notes = [note for note in report.notes if note.startswith("torch 2.4 or 2.5 does not record")]
    assert len(notes) == 5


def multiplied(source: Path, target: Path, times: int) -> None:
    """The trace of *source*, as a process that compiled *times* as much would have written it."""
    text = source.read_text()
    count = 1 + max(int(found) for found in re.findall(r'"frame_id": (\d+)', text))
    with open(target, "w") as stream:
        parts = re.split(r'(?<="frame_id": )(\d+)', text)
        for number in range(times):
            parts[1::2] = [str(int(part) % count + number * count) for part in parts[1::2]]
            stream.write("".join(parts))


def test_a_page_of_a_thousand_graphs_in_a_browser(breaks: Ran, tmp_path: Path) -> None:
    (trace,) = (breaks.directory / "trace").iterdir()
    hostile = "</title></script><script>alert(1)</script><img src=http://x.invalid/a.png>"
    data = trace.read_text().replace("speak", "speak" + hostile)
    (tmp_path / "one.log").write_text(data)
    many = tmp_path / "many"
    many.mkdir()
    multiplied(tmp_path / "one.log", many / "dedicated_log_torch_trace_a.log", 60)
    report = gather_report(many)
    assert 1000 < len(report.graphs) < 2000
    html = tmp_path / "page.html"
    html.write_text(page.html_page(report, {}), encoding="utf-8")
    text = html.read_text()
    assert "<img" not in text
    assert "http://" not in text.replace("http://x.invalid", "")
    with browser() as page_of:
        check_page(page_of, html, len(report.graphs))


def check_page(page_of: Browser, html: Path, graphs: int) -> None:
    began = time.monotonic()
    page_of.open(html.as_uri())
    assert time.monotonic() - began < 20
    rows = "document.querySelectorAll('#graphs tbody tr')"
    assert page_of.run_script(f"return {rows}.length") == graphs
    assert page_of.run_script("return document.querySelectorAll('svg rect').length") > graphs
    # A plot needs room.
    assert page_of.run_script("return document.querySelector('.plot svg').clientHeight") > 20
    first = f"return Number({rows}[0].cells[2].textContent)"
    dearest = page_of.run_script(first)
    head = "document.querySelectorAll('#graphs thead button')[2].click();"
    page_of.run_script(head)
    assert page_of.run_script(first) == dearest
    page_of.run_script(head)
    assert page_of.run_script(first) < dearest
    assert (
        page_of.run_script(
            "return document.querySelectorAll('#graphs th')[2].getAttribute('aria-sort')"
        )
        == "ascending"
    )
    page_of.run_script(
        "const f = document.querySelector('input.filter'); f.value = 'branches';"
        "f.dispatchEvent(new Event('input'))"
    )
    shown = page_of.run_script(f"return Array.from({rows}).filter(row => !row.hidden).length")
    assert 0 < shown < graphs
    assert (
        page_of.run_script("return document.documentElement.innerHTML.includes('onerror')") is False
    )
    light = page_of.run_script("return getComputedStyle(document.body).backgroundColor")
    page_of.dark()
    assert page_of.run_script("return getComputedStyle(document.body).backgroundColor") != light
    assert page_of.complaints() == []
    assert page_of.requests(html.as_uri()) == [html.as_uri()]


def test_the_report_command(
    breaks: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    html = tmp_path / "page.html"
    assert main(["report", str(breaks.directory), "--json", "--html", str(html)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["graphs"]) == len(breaks.report.graphs)
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(breaks.directory), "--html", str(tmp_path / "no" / "x.html")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert main(["report", str(breaks.directory), "--tlparse"]) == 1
    captured = capsys.readouterr()
    assert "pip install tlparse" in captured.err
    assert "Graph breaks" in captured.out


def test_tlparse_renders_each_trace(breaks: Ran, tmp_path: Path) -> None:
    copy = tmp_path / "report"
    shutil.copytree(breaks.directory, copy)
    html = tmp_path / "page.html"
    assert main(["report", str(copy), "--tlparse", "--html", str(html)]) == 0
    (index,) = copy.glob("tlparse/*/index.html")
    assert f'href="report/tlparse/{index.parent.name}/index.html"' in html.read_text()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten.addmm", "matrix product"),
        ("aten._scaled_dot_product_flash_attention", "attention"),
        ("aten.convolution", "convolution"),
        ("aten.convolution_backward", "convolution"),
        ("aten.native_layer_norm", "reduction"),
        ("aten._softmax", "reduction"),
        ("aten.sum", "reduction"),
        ("aten.permute", "shape and copy"),
        ("prims.convert_element_type", "shape and copy"),
        ("aten.full", "making a tensor"),
        ("aten.mul", "elementwise and other"),
        ("aten.relu", "elementwise and other"),
        ("_c10d_functional.all_reduce", "communication"),
        ("aiter.mha_fwd", "custom"),
        ("torch._C._nn.linear", "matrix product"),
        ("matmul", "matrix product"),
    ],
)
def test_kinds_of_operations(name: str, kind: str) -> None:
    assert operations.kind_of_operation(name) == kind


def test_kernels_of_triton_code() -> None:
    code = (
        "# torch.ops.aten.mm.default(a)\n"
        "triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''\n"
        "def triton_poi_fused_add_0(): pass\n''')\n"
        "def call(args):\n"
        "    extern_kernels.mm(arg0_1, arg1_1, out=buf0)\n"
        "    triton_poi_fused_add_0.run(buf0)\n"
        "    buf1 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf0)\n"
    )
    count, library = operations.count_kernels(code)
    assert count == 1
    assert library == {
        "mm": 1,
        "torch.ops.aten._scaled_dot_product_flash_attention.default": 1,
    }


def test_lines_are_read_one_by_one(breaks: Ran, tmp_path: Path) -> None:
    (trace,) = (breaks.directory / "trace").iterdir()
    events = TraceFile(trace).events()
    first = next(events)
    assert first.name == "torch_version"
    events.close()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python /srv/serve.py --port 1", "serve.py (7)"),
        ("python -u -X dev train.py", "train.py (7)"),
        ("python -m pkg.main -c x", "-m pkg.main (7)"),
        ("python", "main.py (7)"),
        ("ray::MapWorker.__init__", "ray::MapWorker.__init__ (7)"),
    ],
)
def test_names_of_processes(command: str, name: str) -> None:
    process = TracedProcess(7, 0, command=tuple(command.split()), program="/srv/main.py")
    assert process.name == name
    assert TracedProcess(7, 0, command=("python",)).name == "? (7)"


def test_a_fork_in_the_same_file(tmp_path: Path) -> None:
    # Up to torch 2.11 a fork writes to the file of its parent.
    text = (ROOT / "tests" / "data" / "traces" / "2.6.0.log").read_text()
    (pid,) = set(re.findall(r"^V\d{4} \S+ (\d+) ", text, re.MULTILINE))
    fork = re.sub(rf"^(V\d{{4}} \S+) {pid} ", r"\1 77777 ", text, flags=re.MULTILINE)
    (tmp_path / "dedicated_log_torch_trace_a.log").write_text(text + fork)
    report = gather_report(tmp_path)
    assert [process.pid for process in report.processes] == [int(pid), 77777]
    assert len({(graph.process, graph.id) for graph in report.graphs}) == len(report.graphs)
    assert len([graph for graph in report.graphs if graph.process == 1]) * 2 == len(report.graphs)
    assert {one.count for one in report.breaks} == {2}


@pytest.mark.parametrize(
    ("version", "event", "generation"),
    [
        ("2.4.1+rocm6.1", "fx_graph_cache_hit", (2, 4)),
        ("2.5.1", "compilation_metrics", (2, 4)),
        ("2.6.0", "chromium_event", (2, 6)),
        ("2.7.0a0+git1", "chromium_event", (2, 7)),
        ("2.14.1", "fx_graph_cache_hash_1", (2, 7)),
        ("", "fx_graph_cache_hash_1", (2, 4)),
        ("", "fx_graph_cache_miss", (2, 7)),
        ("", "compilation_metrics", (2, 4)),
        ("", "compilation_metrics duration_us", (2, 7)),
        ("", "bwd_compilation_metrics is_runtime", (2, 7)),
        ("main", "compilation_metrics", (2, 4)),
    ],
)
def test_generations_of_traces(version: str, event: str, generation: tuple[int, int]) -> None:
    name, _, told = event.partition(" ")
    found = find_generation(version, TraceEvent(name, {told: 1}, "", 1, 0.0, "", None))
    assert found.since == generation
    assert found.times_tuning_by_events == (generation < (2, 7))
    both = {"restart_reasons": ["Tensor.item"]}
    assert found.restart_reasons(both) == (["Tensor.item"] if generation == (2, 4) else [])
    text = '{"cache_state": "miss", "key": "k"}'
    read = found.read_cache(TraceEvent("fx_graph_cache_hit", {}, text, 1, 0.0, "", None))
    assert read == ("miss" if generation == (2, 4) else "hit", "k")
    assert found.read_cache(TraceEvent("fx_graph_cache_bypass", {}, "", 1, 0.0, "", None))[1] == ""
