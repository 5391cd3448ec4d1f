"""Who wrote to a pinned value, and the current values in a report, on the real torch 2.13.0.

All versions of torch by all ways of writing are in experiments/matrix/config_versions.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import program_file

HEAD = """
import json, os, sys, threading, torch
import torch._inductor.config as c, torch._dynamo.config as d
import rocm_autopatch
def report(): return rocm_autopatch.status()
x = torch.ones(4, 4)
"""
POLICY = """
version: 1
extends: []
name: team
config:
  torch._inductor.config:
    triton.cudagraphs: {pin: false}
    max_autotune_gemm_backends: {pin: ATEN}
    max_autotune: {pin: false}
    max_fusion_size: {default: 100}
    epilogue_fusion: {set: false}
"""
ACTIVE = "rocm_autopatch: policy team applies (image: not named): 4 config values; "


@dataclass
class Run:
    """A program that ran, and what it printed at its end."""

    path: Path
    shown: Any
    said: list[str]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of the config values, if the program printed its report."""
        return {row["name"].split(".config.")[1]: row for row in self.shown["config"]}

    def lines(self, mark: str) -> list[int]:
        """The lines that end in ``#: mark``."""
        lines = enumerate(self.path.read_text().splitlines(), 1)
        return [number for number, line in lines if line.endswith(f"#: {mark}")]

    def refused(self, key: str) -> list[tuple[str, str, int, int]]:
        """Who wrote to a key: file name, value, line, and how often."""
        return [
            (Path(one["file"]).name, one["value"], one["line"], one["count"])
            for one in self.rows[key]["refused"]
        ]


@dataclass
class Programs:
    """Runs programs: files, or texts that go on after HEAD, in a directory of their own."""

    python: Interpreter
    directory: Path
    # The same for all tests, so that their programs begin in the same process.
    env: dict[str, str]

    def run_program(
        self, source: str | Path, later: Mapping[str, str] | None = None, /, **env: str
    ) -> Run:
        """Run with *env* beside what all have; *later* may be set after the imports."""
        if isinstance(source, Path):
            path = source
        else:
            path = self.directory / "program.py"
            path.write_text(HEAD + source)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.directory / "cache")}
        later = {**cache, **(later or {})}
        if env in ({}, {"ROCM_AUTOPATCH": "off"}):
            env = {**self.env, **env}
            done = forked.run(self.python, HEAD, source, env=env, later=later, file=path)
        else:
            done = self.python.run(path, env={**self.env, **later, **env})
        said = [line for line in done.stderr.splitlines() if line.startswith("rocm_autopatch")]
        return Run(path, json.loads(done.stdout.splitlines()[-1]), said)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("team")
    (place / "team.yaml").write_text(POLICY)
    return {
        "ROCM_AUTOPATCH_POLICY": str(place / "team.yaml"),
        "HOME": str(place),
        "TORCH_LOGS": "-all",
        "PYTHONWARNINGS": "ignore",
        "PYTHONHASHSEED": "0",
    }


@pytest.fixture
def programs(torch_python: Interpreter, env: dict[str, str], tmp_path: Path) -> Programs:
    return Programs(torch_python, tmp_path, env)


class TestWriters:
    def test_every_route(self, programs: Programs) -> None:
        ran = programs.run_program(program_file("refused_writes/every_route.py"))
        # Inductor applies its config_patches twice in a compile.
        want = {
            ("every_route.py", "True", line, count)
            for count, mark in enumerate(("once", "twice", "three times"), 1)
            for line in ran.lines(mark)
        }
        found = ran.refused("triton.cudagraphs")
        assert set(found) == want
        assert len(found) == len(want) == 15
        assert ran.refused("max_autotune_gemm_backends") == []
        assert {row["status"] for row in ran.rows.values()} == {"applied"}
        assert ran.shown["errors"] == []

    def test_a_mode(self, programs: Programs) -> None:
        ran = programs.run_program("""
f = torch.compile(lambda x: x + 1, mode="max-autotune-no-cudagraphs")  #: once
f(x)
print(json.dumps(report()))
""")
        # The line that asks for the mode: what compiles with it writes the pinned value.
        (asks,) = ran.lines("once")
        assert ran.refused("max_autotune") == [("program.py", "True", asks, 1)]
        assert [row["reason"] for row in ran.rows.values()] == [""] * 5

    def test_a_thread_without_a_frame_of_the_program(self, programs: Programs) -> None:
        ran = programs.run_program("""
g = torch.compile(lambda x: x + 1, options={"triton.cudagraphs": True})  #: asks
thread = threading.Thread(target=g, args=(x,))
thread.start(); thread.join()
print(json.dumps([report(), torch.__file__]))
""")
        ran.shown, torch = ran.shown
        asked, *compiled = ran.rows["triton.cudagraphs"]["refused"]
        assert [asked["line"]] == ran.lines("asks")
        files = {str(Path(one["file"]).relative_to(Path(torch).parent)) for one in compiled}
        assert files == {"_inductor/compile_fx.py"}
        assert all(one["line"] > 0 for one in compiled)

    @pytest.mark.parametrize("space", ["{'c': c}", "globals()", "{'c': c, '__name__': 'made'}"])
    def test_code_from_a_string(self, programs: Programs, space: str) -> None:
        ran = programs.run_program(f"""
def configure():
    exec("c.triton.cudagraphs = True", {space})  #: execs
configure()
print(json.dumps(report()))
""")
        (line,) = ran.lines("execs")
        assert ran.refused("triton.cudagraphs") == [("program.py", "True", line, 1)]
        assert f"{ran.path}:{line} tried to set " in ran.said[1]

    def test_a_program_without_a_file(self, programs: Programs) -> None:
        source = HEAD + "c.triton.cudagraphs = True\nprint(json.dumps(report()))\n"
        done = programs.python.run("-c", source, env=programs.env)
        assert "rocm_autopatch: <string>:7 tried to set triton.cudagraphs = True" in done.stderr

    def test_code_that_the_standard_library_runs_for_a_user(self, programs: Programs) -> None:
        ran = programs.run_program("""
import doctest
def documented():
    '>>> c.triton.cudagraphs = True'
doctest.testmod()
print(json.dumps(report()))
""")
        ((file, *_),) = ran.refused("triton.cudagraphs")
        assert file == "<doctest __main__.documented[0]>"

    def test_said_once_in_a_process_tree(self, programs: Programs, golden: Golden) -> None:
        source = """
c.triton.cudagraphs = True  #: says
c.max_autotune = True
if not sys.argv[1:]:
    import subprocess
    subprocess.run([sys.executable, __file__, "child"], check=True)
    if not os.fork():
        c.triton.cudagraphs = True
        os._exit(0)
    os.wait()
print(json.dumps(report()))
"""
        ran = programs.run_program(source)
        (line,) = ran.lines("says")
        active, refused, other = ran.said
        assert "tried to set max_autotune = True" in other
        assert active.startswith(ACTIVE)
        golden(refused, WRITER=f"{ran.path}:{line}")
        # A fork has its own record.
        assert ran.refused("triton.cudagraphs") == [("program.py", "True", line, 1)]
        assert programs.run_program(source, ROCM_AUTOPATCH_LOG="quiet").said == []

    def test_each_key_is_said_once(self, programs: Programs, golden: Golden) -> None:
        keys = ["max_fusion_size", "max_autotune", "epilogue_fusion", "shape_padding"]
        keys += ["pattern_matcher", "memory_planning", "reorder_for_locality"]
        values = {key: False if key != "max_fusion_size" else 3 for key in keys}
        policy = programs.directory / "many.yaml"
        pins = json.dumps({key: {"pin": value} for key, value in values.items()})
        policy.write_text(f"version: 1\nextends: []\nconfig: {{torch._inductor.config: {pins}}}\n")
        ran = programs.run_program(
            f"""
for key in {keys}:
    setattr(c, key, 1)
    setattr(c, key, 2)
print(json.dumps(report()))
""",
            ROCM_AUTOPATCH_POLICY=str(policy),
        )
        assert len(ran.said) == 6
        golden("\n".join(ran.said[1:]), WRITER=ran.path)
        assert all(len(row["refused"]) == 2 for row in ran.rows.values())

    def test_nobody_writes(self, programs: Programs) -> None:
        ran = programs.run_program("""
c.triton.cudagraphs = False
with c.patch({"max_autotune_gemm_backends": "ATEN"}): pass
c.max_fusion_size = 3
torch.compile(lambda x: x + 1)(x)
print(json.dumps(report()))
""")
        assert [row.get("refused") for row in ran.rows.values()] == [[], [], [], None, None]
        assert len(ran.said) == 1

    def test_keep_and_observe(self, programs: Programs) -> None:
        source = """
c.triton.cudagraphs = True
print(json.dumps([report(), c.triton.cudagraphs]))
"""
        for env in ({"ROCM_AUTOPATCH_KEEP": "cudagraphs"}, {"ROCM_AUTOPATCH": "observe"}):
            ran = programs.run_program(source, **env)
            assert not [line for line in ran.said if "wrote" in line]
            ran.shown, value = ran.shown
            assert value is True
            assert "refused" not in ran.rows["triton.cudagraphs"]

    def test_many_writers_and_values(self, programs: Programs) -> None:
        ran = programs.run_program("""
for number in range(30):
    code = chr(10) * number + "c.max_autotune_gemm_backends = value * 200"
    exec(compile(code, "many.py", "exec"), {"c": c, "value": chr(65 + number)})
threads = [threading.Thread(target=lambda: [c.load_config({"max_autotune": True}) for _ in "1234"])
           for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(report()))
""")
        row = ran.rows["max_autotune_gemm_backends"]
        assert [one["line"] for one in row["refused"]] == list(range(1, 21))
        assert {len(one["value"]) for one in row["refused"]} == {100}
        assert row["refused_more"] == 10
        ((_, _, _, count),) = ran.refused("max_autotune")
        assert 16 <= count <= 64

    def test_noticing_that_fails(self, programs: Programs) -> None:
        ran = programs.run_program(program_file("refused_writes/noticing_that_fails.py"))
        ran.shown, seen = ran.shown
        assert seen == [False, False]
        assert ran.rows["triton.cudagraphs"]["status"] == "applied"
        assert len(ran.said) == 1


class TestFrameworks:
    def test_what_they_write(self, programs: Programs) -> None:
        frameworks = program_file("refused_writes/frameworks.py")
        ran = programs.run_program(frameworks, ROCM_AUTOPATCH_POLICY="safe")
        ran.shown, same, (before, inside), reads = ran.shown
        assert same is True
        assert before == [False, "ATEN"]
        assert inside == [True, "ATEN", False, True]
        assert reads == [True, False, 1024, 1]
        assert ran.shown["errors"] == []
        rows = ran.rows
        # A default yields. From torch 2.12 on, only the writing thread sees a program's write.
        for key, after, here in (
            ("coordinate_descent_tuning", False, True),
            ("recompile_limit", 128, 1024),
        ):
            assert (rows[key]["status"], rows[key]["after"]) == ("applied", after)
            assert rows[key]["reason"] == f"the calling thread reads {here}"
        ran.path = program_file("refused_writes/vllm_stand_in.py")
        (line,) = ran.lines("writes")
        for key, value in (
            ("max_autotune_gemm_backends", "'TRITON'"),
            ("triton.cudagraphs", "True"),
        ):
            assert (rows[key]["status"], rows[key]["reason"]) == ("applied", "")
            (found,) = {one[:3] for one in ran.refused(key)}
            assert found == ("vllm_stand_in.py", value, line)
        assert rows["triton.cudagraph_trees"]["refused"] == []
        assert f"{ran.path}:{line} tried to set " in ran.said[1]
        assert len(ran.said) == 3


class TestCopies:
    STATE = """
import copy, pickle
def state():
    saved, copied = pickle.loads(c.save_config()), pickle.loads(pickle.dumps(c.get_config_copy()))
    return [c.get_hash().hex(), c.codegen_config(), repr(sorted(saved.items())),
            repr(sorted(c.save_config_portable().items())), repr(sorted(copied.items())),
            repr(sorted(copy.deepcopy(c.get_serializable_config_copy()).items()))]
def write():
    c.triton.cudagraphs = True
    c.load_config({"max_autotune": True})
    c._make_closure_patcher(max_autotune_gemm_backends="TRITON")()()
"""

    def test_are_those_of_the_pins(self, programs: Programs) -> None:
        source = """
before = state()
write()
entry = copy.copy(c._config["triton.cudagraphs"])
errors = []
for way in (copy.deepcopy, pickle.dumps):
    try: way(c._config["triton.cudagraphs"])
    except TypeError as error: errors.append(str(error))
print(json.dumps([before, state(), type(c._config).__name__, type(entry).__name__, errors]))
"""
        ours = programs.run_program(self.STATE + source).shown
        before, after, *kinds = ours
        assert before == after
        off, _, *off_kinds = programs.run_program(self.STATE + source, ROCM_AUTOPATCH="off").shown
        assert kinds == off_kinds
        # Only the policy's values differ from torch's own.
        assert before[0] != off[0]
        assert set(before[1].splitlines()) - set(off[1].splitlines()) == {
            "torch._inductor.config.max_autotune_gemm_backends = 'ATEN'",
            "torch._inductor.config.epilogue_fusion = False",
        }

    def test_the_fx_graph_cache(self, programs: Programs) -> None:
        source = """
from torch._dynamo.utils import counters
change = {"triton.cudagraphs": True, "max_autotune_gemm_backends": "TRITON"}
torch.compile(lambda x: x @ x + 1, options=change if "write" in os.environ else None)(x)
print(json.dumps([counters["inductor"][f"fxgraph_cache_{n}"] for n in ("miss", "hit")]))
"""
        assert programs.run_program(source).shown == [1, 0]
        assert programs.run_program(source, {"write": "1"}).shown == [0, 1]  # the very same key
        assert programs.run_program(source, ROCM_AUTOPATCH="off").shown == [1, 0]

    def test_inductors_compile_workers(self, programs: Programs) -> None:
        (programs.directory / "job.py").write_text(
            "def job(saved):\n"
            "    import os, rocm_autopatch, torch._inductor.config as c\n"
            "    with c.patch(saved):\n"
            "        inside = c.triton.cudagraphs, c.max_autotune_gemm_backends\n"
            "    refused = [row['refused'] for row in rocm_autopatch.status()['config']\n"
            "               if row.get('refused')]\n"
            "    c.triton.cudagraphs = True\n"
            "    refused += [row['refused'] for row in rocm_autopatch.status()['config']\n"
            "                if row.get('refused')]\n"
            "    return os.getpid(), inside, c.triton.cudagraphs, refused\n"
        )
        ran = programs.run_program("""
import job
from torch._inductor.compile_worker.subproc_pool import SubprocPool
c.triton.cudagraphs = True
pool = SubprocPool(1)
pid, *seen = pool.submit(job.job, c.save_config_portable()).result()
pool.shutdown()
print(json.dumps([pid != os.getpid(), *seen]))
""")
        own, inside, value, (refused,) = ran.shown
        assert (own, inside, value) == (True, [False, "ATEN"], False)
        assert [(Path(one["file"]).name, one["line"]) for one in refused] == [("job.py", 7)]
        assert len(ran.said) == 2

    def test_a_compile_in_a_subprocess(self, programs: Programs) -> None:
        # Inductor sends the whole config to the subprocess, and patches it there.
        ran = programs.run_program(
            """
f = lambda x: (x @ x).relu() + 1
done = torch.compile(f, options={"triton.cudagraphs": True})(x)
from torch._dynamo.utils import counters
print(json.dumps([torch.equal(done, f(x)), report()["errors"], dict(counters["inductor"])]))
""",
            TORCHINDUCTOR_FX_COMPILE_MODE="SUBPROCESS",
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
        )
        same, errors, _ = ran.shown
        assert (same, errors) == (True, [])
        assert len(ran.said) == 2


class TestReport:
    def test_says_what_is(self, programs: Programs) -> None:
        ran = programs.run_program(program_file("refused_writes/says_what_is.py"))
        first, here, elsewhere, changed = ran.shown
        assert first == elsewhere
        rows = []
        for ran.shown in (first, here, changed):
            one, other = ran.rows["max_fusion_size"], ran.rows["epilogue_fusion"]
            rows.append([(row["status"], row["after"], row["reason"]) for row in (one, other)])
        wrote = ("applied", False, "the calling thread reads True")
        assert rows == [
            [("applied", 100, ""), ("applied", False, "")],
            [("applied", 100, "the calling thread reads 3"), wrote],
            [("applied", 7, "the calling thread reads 7"), wrote],
        ]

    def test_a_pin_that_no_longer_holds(self, programs: Programs, golden: Golden) -> None:
        ran = programs.run_program("""
from torch.utils._config_module import _Config, _ConfigEntry
c._config["triton.cudagraphs"].env_value_force = True
c._config["max_autotune"] = _ConfigEntry(_Config(default=True), "max_autotune")
c._config["max_autotune_gemm_backends"] = _ConfigEntry(_Config(default=print), "x")
print(json.dumps([report(), report()]))
""")
        ran.shown, again = ran.shown
        assert ran.shown == again
        broken = [row for row in ran.rows.values() if row["status"] == "failed"]
        assert [row["after"] for row in broken] == [True, "<built-in function print>", True]
        golden(ran.rows["triton.cudagraphs"]["reason"], "reason")
        golden("\n".join(sorted(ran.shown["errors"])), "errors")
        assert len(ran.said) == 1

    def test_reads_in_a_thread_only_when_asked(self, programs: Programs) -> None:
        # During an import, a thread that needs the import's lock would never end.
        reads = program_file("refused_writes/reads_in_a_thread.py")
        done = programs.python.run(reads, env=programs.env)
        assert done.stdout.splitlines() == ["0 1", "True True []"]

    def test_leaves_torchs_warnings_alone(self, programs: Programs) -> None:
        policy = programs.directory / "policy.yaml"
        policy.write_text(
            "version: 1\nextends: []\nconfig:\n  torch._dynamo.config:\n"
            "    inline_inbuilt_nn_modules: {default: true}\n"
        )
        ran = programs.run_program(
            """
import warnings
with warnings.catch_warnings(record=True) as ours:
    warnings.simplefilter("always")
    report()
with warnings.catch_warnings(record=True) as theirs:
    warnings.simplefilter("always")
    d.inline_inbuilt_nn_modules
print(json.dumps([len(ours), len(theirs)]))
""",
            ROCM_AUTOPATCH_POLICY=str(policy),
        )
        assert ran.shown == [0, 1]


class TestImpliedKeys:
    def test_a_pin_refuses_what_implies_another_value(self, programs: Programs) -> None:
        ran = programs.run_program(program_file("refused_writes/implied_value.py"))
        row, read, more = ran.shown
        assert (row["status"], read) == ("applied", [True, False, 7, False, False])
        assert [(one["value"], one["line"]) for one in row["refused"]] == [
            ("compile_threads = 77", *ran.lines("direct")),
            ("realize_reads_threshold = 79", *ran.lines("by another")),
            ("max_fusion_size = 78", *ran.lines("in a patch")),
        ]
        assert (
            more
            == [["failed", "78 implies another emulate_precision_casts, which policy layer pins"]]
            * 3
        )
        assert (
            "which implies another emulate_precision_casts, but policy layer pins" in ran.said[-1]
        )

    def test_what_was_written_before(self, programs: Programs) -> None:
        """In this thread or in another one: it is not read under a pin."""
        ran = programs.run_program(program_file("refused_writes/implied_before.py"))
        assert ran.shown == [True, False, False]

    def test_a_pin_that_cannot_hold_is_refused(self, programs: Programs) -> None:
        ran = programs.run_program(program_file("refused_writes/implied_pins.py"))
        pinned = "which implies another value for this key: pin max_fusion_size as well"
        why = "realize_reads_threshold is 79, which implies 78 for this key"
        assert ran.shown == [
            ["failed", f"max_fusion_size is 78, {pinned}", True],
            ["applied", "", True],
            ["skipped", why, 78],
            ["failed", why, 78],
        ]
