"""Ranks of one job compare what they compile under: real processes, real stores, the real torch.

The ranks of most tests are forks of one process that has imported torch. gloo connects them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import _RECORD
from rocm_autopatch.patches.ranks import content, told
from tests import forked
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import program_file

HEAD = "import torch, torch._dynamo, torch.distributed\n"
# safe compares ranks.
POLICY = "version: 1\nname: job\nextends: safe\n"
METHODS = ("env://", "tcp://127.0.0.1:{port}", "file://{directory}/store-{number}")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "job.yaml"
    path.write_text(POLICY)
    return path


class Job:
    """Runs a job: for each rank what it raised, what it has on the record, and what it said."""

    def __init__(self, python: Interpreter, policy: Path, directory: Path) -> None:
        self.python, self.policy, self.directory = python, policy, directory

    def run_ranks(
        self,
        size: int,
        of: Mapping[int, Mapping[str, str]] | None = None,
        method: str = METHODS[0],
        before: str = "",
        use: str = "say",
        **more: Any,
    ) -> tuple[list[str], list[str], list[str]]:
        asked = {
            "size": size,
            "of": {str(rank): dict(its) for rank, its in (of or {}).items()},
            "method": method,
            "before": before,
            "compiles": True,
            "directory": str(self.directory),
            **more,
        }
        env = {"ROCM_AUTOPATCH_POLICY": str(self.policy), "ROCM_AUTOPATCH_RANKS": use}
        forked.run(self.python, HEAD, program_file("ranks/job.py"), json.dumps(asked), env=env)
        raised, notes, lines = [], [], []
        for rank in range(size):
            file = self.directory / str(rank)
            error, its = json.loads(file.read_text()) if file.exists() else ("gone", [])
            raised.append(error)
            notes += its
            stderr = (self.directory / f"{rank}.stderr").read_text()
            lines += [line for line in stderr.splitlines() if "rocm_autopatch" in line]
        return raised, notes, [_anywhere(line) for line in lines]


def _anywhere(line: str) -> str:
    """A line without the name of this machine."""
    return re.sub(r"\((?!others)[^()]*\)", "(HOST)", line)


@pytest.fixture
def job(torch_python: Interpreter, policy: Path, tmp_path: Path) -> Job:
    return Job(torch_python, policy, tmp_path)


MAX = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE"


class TestJobs:
    @pytest.mark.parametrize("size", [2, 8])
    def test_equal_ranks_say_nothing(self, job: Job, size: int) -> None:
        # What differs between ranks that compile alike.
        of = {
            rank: {
                "HIP_VISIBLE_DEVICES": str(rank),
                "TORCHINDUCTOR_CACHE_DIR": f"/tmp/{rank}",
                "TORCHINDUCTOR_COMPILE_THREADS": str(rank + 1),
                "TORCH_LOGS": "+dynamo" if rank == 7 else "",
                "LOCAL_RANK": str(rank),
            }
            for rank in range(size)
        }
        assert job.run_ranks(size, of) == ([""] * size, [], [])

    @pytest.mark.parametrize("method", METHODS)
    def test_one_rank_differs(self, job: Job, method: str, golden: Golden) -> None:
        raised, notes, (line,) = job.run_ranks(4, {2: {MAX: "EXHAUSTIVE"}}, method)
        assert raised == [""] * 4
        golden(line, "line")
        # One rank has it, whichever that is.
        (note,) = notes
        assert line == "rocm_autopatch: " + _anywhere(note)

    def test_several_kinds(self, job: Job, golden: Golden) -> None:
        of = {
            0: {"ROCM_AUTOPATCH_RANKS": "say", "TRITON_DEFAULT_FP_FUSION": "0"},
            1: {MAX: "EXHAUSTIVE", "AITER_X": "a" * 500, "HSA_X": "1"},
            4: {f"MIOPEN_{letter}": "1" for letter in "ABCDEFGH"},
        }
        _, _, (line,) = job.run_ranks(6, of)
        golden(line)

    @pytest.mark.parametrize("name", ["AITER_API_KEY", "TRITON_AUTH_TOKEN", "TORCHINDUCTOR_TOKEN"])
    def test_secrets_are_masked(self, job: Job, tmp_path: Path, name: str) -> None:
        """Also in the store, which other machines read."""
        # gloo removes the file at its end.
        after = "with open(asked['directory'] + '/store-0', 'rb') as store:\n"
        after += "    open(f\"{asked['directory']}/{rank + 9}\", 'wb').write(store.read())\n"
        of = {1: {name: "correct-horse"}}
        raised, notes, (line,) = job.run_ranks(2, of, METHODS[2], after=after)
        assert name in line
        assert raised == ["", ""]
        stores = b"".join((tmp_path / str(rank + 9)).read_bytes() for rank in range(2))
        assert name.encode() in stores
        for text in (line, *notes, stores.decode("latin-1")):
            assert "correct-horse" not in text

    def test_ranks_that_differ_in_a_secret_compile_alike(self, job: Job) -> None:
        of = {rank: {"TRITON_AUTH_TOKEN": f"correct-horse-{rank}"} for rank in range(2)}
        assert job.run_ranks(2, of) == (["", ""], [], [])

    def test_values_that_are_no_utf8(self, job: Job) -> None:
        before = "os.environb[b'AITER_X'] = b'a\\xff%d' % rank\n"
        before += "if rank: os.environb[b'TRITON_\\xfe'] = b'1'\n"
        raised, (note,), (line,) = job.run_ranks(2, before=before)
        assert raised == ["", ""]
        for text in (note, line):
            assert r"AITER_X is a\udcff1 (others: a\udcff0)" in text
            assert r"TRITON_\udcfe is 1 (others: unset)" in text

    def test_nobody_speaks_if_the_log_is_quiet(self, job: Job) -> None:
        of = {rank: {"ROCM_AUTOPATCH_LOG": "quiet", MAX: str(rank)} for rank in range(2)}
        raised, notes, lines = job.run_ranks(2, of)
        assert (raised, len(notes), lines) == (["", ""], 1, [])

    def test_a_job_of_one(self, job: Job) -> None:
        assert job.run_ranks(1, {0: {"ROCM_AUTOPATCH_RANKS": "abort"}}) == ([""], [], [])

    @pytest.mark.parametrize("method", METHODS)
    def test_a_second_init(self, job: Job, method: str) -> None:
        """It is compared, too: settings may have changed."""
        raised, notes, lines = job.run_ranks(3, {1: {"AITER_X": "1"}}, method, times=2)
        assert raised == [""] * 3
        assert (len(lines), len(notes)) == (2, 2)

    def test_a_rank_that_is_off_is_named_once(self, job: Job, golden: Golden) -> None:
        before = "if rank in (1, 3): ranks._meet = lambda *_: None\n"
        raised, notes, (line,) = job.run_ranks(4, before=before, wait=1)
        assert raised == [""] * 4
        assert len(notes) == 1
        golden(line)

    def test_a_rank_of_another_release_is_named(self, job: Job) -> None:
        before = "if rank == 1: meeting.FORM = 2\n"
        raised, notes, lines = job.run_ranks(3, before=before, wait=1)
        assert raised == [""] * 3
        # The one of the other release sees nobody else.
        assert len(lines) == len(notes) == 2
        assert "rank 1 of 3 has not told before" in "".join(lines)

    def test_groups_within_a_job_are_not_compared(self, job: Job) -> None:
        before = "os.environ['AITER_X'] = '1'\n"
        after = (
            "os.environ['AITER_X'] = str(rank)\n"
            "distributed.all_reduce(torch.ones(1), group=distributed.new_group([0, 1]))\n"
        )
        assert job.run_ranks(2, before=before, after=after) == (["", ""], [], [])

    def test_a_word_that_is_none(self, torch_python: Interpreter, policy: Path) -> None:
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), "ROCM_AUTOPATCH_RANKS": "loud"}
        done = torch_python.run("-c", "import torch, torch.distributed", env=env)
        assert "ROCM_AUTOPATCH_RANKS=loud is not one of say, abort, off; say is used" in done.stderr

    def test_a_store_that_is_gone(self, job: Job) -> None:
        before = program_file("ranks/gone_store.py").read_text()
        raised, notes, lines = job.run_ranks(
            3, {1: {"AITER_X": "1"}}, before=before, compiles=False
        )
        assert (raised, lines) == (["gone", "", ""], [])
        assert [note.partition(": ")[0] for note in notes] == ["ranks were not compared"] * 2
        assert all("DistNetworkError" in note for note in notes)

    @pytest.mark.parametrize("store", ["torch.distributed.HashStore()", "fake.FakeStore()"])
    def test_a_dry_run(self, torch_python: Interpreter, policy: Path, store: str) -> None:
        """One process stands for all ranks, and no other one comes."""
        code = f"""
import torch.distributed, torch.testing._internal.distributed.fake_pg as fake, rocm_autopatch
torch.distributed.init_process_group("fake", store={store}, rank=0, world_size=2)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
print([note for note in rocm_autopatch.status()["notes"] if "rank" in note])
"""
        done = forked.run(torch_python, HEAD, code, env={"ROCM_AUTOPATCH_POLICY": str(policy)})
        assert done.stdout == "[]\n"
        assert "ranks" not in done.stderr


class TestAbort:
    def test_all_ranks_raise(self, job: Job, golden: Golden) -> None:
        raised, _, lines = job.run_ranks(4, {1: {MAX: "EXHAUSTIVE"}}, use="abort")
        (text,) = set(raised)
        golden(_anywhere(text))
        assert lines == []

    def test_equal_ranks_go_on(self, job: Job) -> None:
        assert job.run_ranks(3, use="abort") == ([""] * 3, [], [])

    def test_a_rank_without_us(self, job: Job, golden: Golden) -> None:
        before = "if rank == 2: ranks._meet = lambda *_: time.sleep(8)\n"
        raised, _, _ = job.run_ranks(3, before=before, use="abort", wait=2, compiles=False)
        assert raised[2] == ""
        assert raised[0] == raised[1]
        golden(raised[0])

    @pytest.mark.parametrize("differs", [False, True])
    @pytest.mark.parametrize(
        "fails",
        ["raises", "exits"],
    )
    def test_a_last_rank_without_a_verdict(self, job: Job, fails: str, differs: bool) -> None:
        """The others compare for themselves: none is ended because another one has failed."""
        before = program_file("ranks/last_without_a_verdict.py").read_text()
        of = {2: {"AITER_X": "1"}} if differs else {}
        raised, notes, lines = job.run_ranks(
            3, of, before=before, fails=fails, use="abort", wait=2, compiles=False
        )
        text = raised[0]
        assert raised == [text, "gone" if fails == "exits" else text, text]
        assert ("DifferentRanks: " in text and "on rank 2" in text) if differs else text == ""
        assert (notes, lines) == ([], [])

    def test_ranks_that_cannot_be_compared(self, job: Job) -> None:
        """The job goes on, and one line says that nothing will end it."""
        before = "def broken(*_): raise OSError('full')\nmeeting.RankMeeting._compare = broken\n"
        of = {0: {"AITER_X": "1"}}
        raised, notes, (line,) = job.run_ranks(
            2, of, METHODS[2], before, use="abort", wait=2, compiles=False
        )
        assert raised == ["", ""]
        assert notes == ["ranks were not compared: OSError: full"] * 2
        assert line == (
            "rocm_autopatch: nothing ends this job if its ranks compile differently: "
            "ranks were not compared: OSError: full"
        )

    def test_an_alarm_of_the_program_ends_the_wait(self, job: Job) -> None:
        """Its exception is the program's, and not a rank that is missing."""
        before = """
if rank:
    ranks._meet = lambda *_: time.sleep(6)
else:
    def ring(*_):
        raise TimeoutError("rang")
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(2)
"""
        raised, notes, lines = job.run_ranks(2, before=before, use="abort", wait=4, compiles=False)
        assert raised[0].endswith("TimeoutError: rang\n")
        assert (raised[1], notes, lines) == ("", [], [])


def torchrun(
    python: Interpreter, directory: Path, size: int, *options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    script = directory / "rank.sh"
    script.write_text('[ "$RANK" = 1 ] && [ -n "$ODD" ] && export "$ODD"\nexec "$@"\n')
    command = ["-m", "torch.distributed.run", f"--nproc-per-node={size}", *options]
    env = {"OMP_NUM_THREADS": "1", **env}
    words = [
        *command,
        "--no-python",
        "bash",
        str(script),
        str(python.path),
        str(program_file("ranks/worker.py")),
    ]
    return python.run(*words, env=env)


class TestTorchrun:
    def test_policies(
        self, torch_python: Interpreter, policy: Path, tmp_path: Path, golden: Golden
    ) -> None:
        other = tmp_path / "other.yaml"
        other.write_text(
            POLICY + "config: {torch._inductor.config: {max_fusion_size: {pin: 32, why: less}}}\n"
        )
        odd = f"ROCM_AUTOPATCH_POLICY={other}"
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), "ODD": odd}
        done = torchrun(torch_python, tmp_path, 3, **env)
        first, *others = sorted(done.stdout.split(), key=done.stdout.split().count)
        assert len(set(others)) == 1
        assert first not in others
        (line,) = [one for one in done.stderr.splitlines() if "this job" in one]
        golden(_anywhere(line))

    def test_a_restart(self, torch_python: Interpreter, policy: Path, tmp_path: Path) -> None:
        """torchrun's store outlives its workers."""
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), "RESTART": "1", "ODD": f"{MAX}=DEFAULT"}
        done = torchrun(torch_python, tmp_path, 2, "--max-restarts=1", **env)
        assert len(done.stdout.split()) == 4
        assert len([one for one in done.stderr.splitlines() if "this job" in one]) == 2


class TestMessages:
    """Few messages a rank, whatever the size of the job."""

    def test_virtual_ranks(self, torch_python: Interpreter) -> None:
        done = forked.run(torch_python, HEAD, program_file("ranks/virtual_ranks.py"), env={})
        first, second = done.stdout.splitlines()
        most, last, asking, (text,) = json.loads(first)
        assert (most, asking) == (4, 1)
        # Three reads of a thousand keys, and one of two contents.
        assert last == 3 + 1 + 3 + 1 + 1
        assert "on ranks 5, 2999 (" in text
        text, count = json.loads(second)
        assert text.startswith("ranks 5, 2999 of 3000 have not told")
        assert count < 60


def test_one_rank_and_others() -> None:
    hosts = dict(enumerate("aaabbbcdef"))
    groups = [([0], {"X": "1"}), ([1, 2, 3], {"X": "2"}), ([4, 5, 6, 7, 8, 9], {})]
    text = told.differing(groups, hosts)
    assert text.startswith(
        "the ranks of this job compile differently: on ranks 1 to 3 (a, b) X is 2 (others: unset); "
        "on rank 0 (a) X is 1 (others: unset); the others: ranks 4 to 9 (b, c, d, and 2 more "
        "hosts). "
    )


def test_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_RECORD, "plan", None)
    for name in os.environ:
        if name.startswith(("TORCH", "TRITON")):
            monkeypatch.delenv(name)
    before = content.digest_content()
    alike = (
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "AITER_JIT_DIR", "TRITON_HOME"),
        *("PYTORCH_TUNABLEOP_FILENAME", "TORCH_COMPILE_DEBUG", "MIOPEN_LOG_LEVEL"),
        *("TORCHINDUCTOR_COMPILE_THREADS", "TORCH_COMPILE_JOB_ID", "MIOPEN_ENABLE_LOGGING"),
        *("HIP_VISIBLE_DEVICES", "NCCL_DEBUG", "HOME", "TORCH_LOGS", "TRITON_LIBHIP_PATH"),
    )
    for name in alike:
        monkeypatch.setenv(name, "1")
    assert content.digest_content() == before
    for name in ("TORCHINDUCTOR_FREEZING", "MIOPEN_FIND_MODE", "PYTORCH_TUNABLEOP_ENABLED"):
        monkeypatch.setenv(name, "1")
        assert content.digest(content.digest_content()) != content.digest(before)
        monkeypatch.delenv(name)
    monkeypatch.setitem(_RECORD, "keep", ("freezing",))
    assert content.digest_content()["ROCM_AUTOPATCH_KEEP"] == "freezing"
