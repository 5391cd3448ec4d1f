"""rocm-autopatch ab: toggles that take effect, runs that end, numbers that are found, verdicts."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocm_autopatch.measure.ab import (
    RequestRefused,
    WrongRequest,
    arms,
    bootstrap,
    measurement,
    numbers,
    place,
    results,
    runner,
    sequential,
    toggles,
)
from rocm_autopatch.measure.ab.numbers import NumberLabel
from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.policy import lower, select
from rocm_autopatch.support import processes
from tests.conftest import HIP, MAX, TORCH, Interpreter, document, label_torch, run_in
from tests.messages import Golden
from tests.programs import program_file
from tests.running import last_said, wait_for_text

PROGRAM = program_file("ab/latency.py").read_text()


def ab(
    python: Interpreter, directory: Path, *arguments: str | Path, **env: str
) -> subprocess.CompletedProcess[str]:
    return run_in(directory, python, "ab", "--seed", "1", *arguments, **env)


def says(found: Mapping[str, Any]) -> dict[tuple[str, str, str], str]:
    """Metric, caches and arm -> the verdict in words."""
    return {(r["metric"], r["caches"], r["arm"]): r.get("says", "") for r in found["rows"]}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


class TestToggles:
    @pytest.mark.parametrize(
        ("text", "name", "values"),
        [
            ("max_autotune", "torch._inductor.config.max_autotune", (False, True)),
            # The base is torch's own default.
            ("epilogue_fusion", "torch._inductor.config.epilogue_fusion", (True, False)),
            ("cudagraphs", "torch._inductor.config.triton.cudagraphs", (False, True)),
            (
                "torch._inductor.config.freezing=on,0",
                "torch._inductor.config.freezing",
                (True, False),
            ),
            ("cache_size_limit=8,256", "torch._dynamo.config.recompile_limit", (8, 256)),
            ("compile_threads=none,4", "torch._inductor.config.compile_threads", (None, 4)),
            # A whole key has priority over the end of halide.debug.
            ("debug", "torch._inductor.config.debug", (False, True)),
            (
                'max_autotune_gemm_backends="ATEN,TRITON",ATEN',
                "torch._inductor.config.max_autotune_gemm_backends",
                ("ATEN,TRITON", "ATEN"),
            ),
            ("freezing=true", "torch._inductor.config.freezing", (toggles.HERE, True)),
            ("policy=off,safe", "policy", ("off", "safe")),
            ("policy=performance", "policy", (toggles.HERE, "performance")),
            ("mode.max-autotune=default", "max-autotune", (toggles.HERE, "default")),
            ("mode.reduce-overhead=default,graphs", "reduce-overhead", ("default", "graphs")),
            ("SET", "SET", ("here", None)),
            ("SET=1,", "SET", ("1", None)),
            ("SET=,1", "SET", (None, "1")),
            ("SET=1", "SET", ("here", "1")),
            ("UNSET=1", "UNSET", (None, "1")),
            ("env.http_proxy=a,b", "http_proxy", ("a", "b")),
        ],
    )
    def test_read(self, text: str, name: str, values: tuple[object, ...]) -> None:
        toggle = toggles.parse_toggle(text, TORCH, {"SET": "here"})
        assert (toggle.name, toggle.values) == (name, values)

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("freezin", RequestRefused),
            ("compile_opt_level", RequestRefused),
            ("compile_threads", WrongRequest),
            ("debug=maybe", WrongRequest),
            ("debug=1,true", WrongRequest),
            ("debug=", WrongRequest),
            ("mode.max-autotune=", WrongRequest),
            ("UNSET", RequestRefused),
            ("SET=here", RequestRefused),
            ("env.=1", WrongRequest),
            ("mode.fast=default", WrongRequest),
            ("mode.default=fast", WrongRequest),
            # A mode can stand for graphs, but graphs is not a mode.
            ("mode.graphs=default", WrongRequest),
            ('A="b', WrongRequest),
        ],
    )
    def test_wrong(self, text: str, kind: type[Exception], golden: Golden) -> None:
        with pytest.raises(kind) as raised:
            toggles.parse_toggle(text, TORCH, {"SET": "here"})
        golden(str(raised.value))

    def test_needs_torch(self, golden: Golden) -> None:
        with pytest.raises(RequestRefused) as raised:
            toggles.parse_toggle("freezing", "", {})
        golden(str(raised.value))

    def test_keys_are_this_torchs(self) -> None:
        old = toggles.parse_toggle("recompile_limit=8,16", "2.13.0", {}).name
        assert old == "torch._dynamo.config.recompile_limit"
        with pytest.raises(RequestRefused, match="did you mean"):
            toggles.parse_toggle("recompile_limit=8,16", "2.6.0", {})
        limit = toggles.parse_toggle("cache_size_limit=8,16", "2.6.0", {}).name
        assert limit == "torch._dynamo.config.cache_size_limit"


class TestNumbers:
    @pytest.mark.parametrize(
        ("line", "name", "unit", "value"),
        [
            ("latency: 1.23 ms", "latency", "ms", 1.23),
            ("throughput 812 tok/s", "throughput", "tok/s", 812.0),
            ("Mean TTFT (ms):        123.45", "Mean TTFT", "ms", 123.45),
            ("p99 latency 12ms", "p99 latency", "ms", 12.0),
            ("Total input tokens: 102,400", "Total input tokens", "", 102400.0),
            ("2026-11-21 19:11:39,123 INFO [b.py:12] step: 1.2 s", "step", "s", 1.2),
            ("Compile took 12.5 seconds.", "Compile took", "seconds", 12.5),
            ("iter 3: 12.3 ms", "iter #", "ms", 12.3),
            ("loss 0.5, lr=1e-3 acc=99.1%", "acc", "%", 99.1),
            ("loss 0.5, lr=1e-3 acc=99.1%", "lr", "", 0.001),
            ("p50: 3 ms p99: 7 ms", "p99", "ms", 7.0),
            ("| aten::mm | time 1.5 |", "time", "", 1.5),
            ('{"bench": {"p50": 2, "l": [4]}}', "bench.p50", "", 2.0),
            ('{"bench": {"p50": 2, "l": [4]}}', "bench.l[0]", "", 4.0),
        ],
    )
    def test_found(self, line: str, name: str, unit: str, value: float) -> None:
        text = f"a line before\n{line}\n"
        assert numbers.find_numbers(text)[NumberLabel(name, unit)] == value

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "2.13.0",
            "torch 2.13.0",
            "12:30:45",
            "pid 4711",
            "100%|##| 1/1 [00:03<00:00]",
            "nan: nan",
        ],
    )
    def test_no_number(self, line: str) -> None:
        assert numbers.find_numbers(line) == {}

    def test_the_last_counts(self) -> None:
        text = "".join(f"step {step}: {9 - step} ms\n" for step in range(5))
        assert numbers.find_numbers(text)[NumberLabel("step #", "ms")] == 5

    def test_a_document_of_many_lines(self) -> None:
        assert numbers.find_numbers(json.dumps({"a": {"b": 1.5, "c": True}}, indent=2)) == {
            NumberLabel("a.b"): 1.5
        }

    @given(
        st.text("abcxyz", min_size=1, max_size=9),
        st.floats(min_value=-1e9, max_value=1e9),
        st.sampled_from(["", "ms", "tok/s", "%"]),
    )
    def test_any_number(self, name: str, value: float, unit: str) -> None:
        assert numbers.find_numbers(f"{name}: {value!r} {unit}\n") == {
            NumberLabel(name, unit): value
        }

    @given(st.text())
    def test_any_text(self, text: str) -> None:
        for metric in numbers.find_numbers(text):
            assert metric.name

    def test_a_pattern(self) -> None:
        (first, second) = map(numbers.parse_pattern, (r"took (?P<build>[\d.]+)", r"^x=(\d+)$"))
        found = numbers.find_numbers("took 1.5\nx=1\nx=2\n", "took 9\n", (first, second))
        assert found == {NumberLabel("build"): 1.5, NumberLabel(r"^x=(\d+)$"): 2.0}
        # A number that is not on stdout may be on stderr, where many programs log.
        assert numbers.find_numbers("", "took 9\n", (first,)) == {NumberLabel("build"): 9.0}

    @pytest.mark.parametrize("wrong", ["no group", "(two)(groups)", "(open"])
    def test_a_wrong_pattern(self, wrong: str, golden: Golden) -> None:
        with pytest.raises(WrongRequest) as raised:
            numbers.parse_pattern(wrong)
        golden(str(raised.value))

    def test_which_are_compared(self, golden: Golden) -> None:
        def ran(round_: int, status: str = runner.ENDED, **found: float) -> runner.MeasuredRun:
            its = {NumberLabel(name): value for name, value in found.items()}
            return runner.MeasuredRun(round_, 0, runner.COLD, 1.0 + round_, status, numbers=its)

        runs = [ran(0, size=8, x=1, y=1), ran(1, size=8, x=2), ran(2, runner.FAILED)]
        wall, size, x = results.WALL_METRIC, NumberLabel("size"), NumberLabel("x")
        assert results.comparable_metrics(runs, False) == [wall, size, x]
        assert results.comparable_metrics(runs, True) == [wall, size, x, NumberLabel("y")]
        assert results.changing_metrics([wall, size, x], runs) == [wall, x]
        assert results.chosen_metrics([wall, size, x], ["X", "wall time"]) == [x, wall]
        (row,) = results.table_rows([replace(runs[1], arm=1)], [x], [runner.COLD], 2, 1)
        golden(results.verdict_text(row), "the base was interrupted")
        base = runner.MeasuredRun(1, 0, runner.COLD, 1.0, runner.ENDED)
        (row,) = results.table_rows([base, replace(runs[1], arm=1)], [x], [runner.COLD], 2, 1)
        golden(results.verdict_text(row), "the base is without it")
        for name in ("speed", "e"):
            with pytest.raises(RequestRefused) as raised:
                results.chosen_metrics([wall, size, x], [name])
            golden(str(raised.value), name)


NOISE: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda chance: chance.gauss(1, 0.05),
    "skewed": lambda chance: chance.lognormvariate(0, 0.2),
    "long tail": lambda chance: 1 + chance.expovariate(10),
    "two speeds": lambda chance: chance.choice([1, 1, 1, 1.3]) * chance.gauss(1, 0.01),
}


class TestStatistics:
    @staticmethod
    def found(noise: str, runs: int, effect: float, trials: int = 200) -> float:
        """Which part of the comparisons find a difference."""
        chance, found = random.Random(noise), 0
        for _ in range(trials):
            base = [NOISE[noise](chance) for _ in range(runs)]
            arm = [effect * NOISE[noise](chance) for _ in range(runs)]
            compared = bootstrap.compare_medians(base, arm)
            assert compared.interval is not None
            low, high = compared.interval
            found += not low <= 1 <= high
            if runs >= bootstrap.FEWEST:
                wanted = bootstrap.SAME if low <= 1 <= high else bootstrap.DIFFERENT
                assert compared.verdict == wanted
            else:
                assert compared.verdict == bootstrap.TOO_FEW
        return found / trials

    @pytest.fixture(autouse=True)
    def fewer_resamples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bootstrap, "_RESAMPLES", 400)

    @pytest.mark.parametrize("noise", NOISE)
    def test_no_effect_is_rarely_seen(self, noise: str) -> None:
        assert self.found(noise, 5, 1.0) <= 0.08
        assert self.found(noise, 12, 1.0, 60) <= 0.1

    @pytest.mark.parametrize("noise", NOISE)
    def test_an_effect_is_found(self, noise: str) -> None:
        assert self.found(noise, 5, 2.5, 40) >= 0.95
        assert self.found(noise, 12, 1 / 1.5, 40) >= 0.95

    def test_an_effect_beyond_small_noise_is_found_with_few_runs(self) -> None:
        assert self.found("normal", 5, 1.3, 100) >= 0.99

    def test_why_four_are_too_few(self) -> None:
        assert self.found("skewed", 4, 1.0) > 0.07

    def test_the_interval_has_the_true_ratio(self) -> None:
        chance, inside = random.Random(3), 0
        for _ in range(100):
            base = [chance.gauss(1, 0.05) for _ in range(7)]
            arm = [1.2 * chance.gauss(1, 0.05) for _ in range(7)]
            interval = bootstrap.compare_medians(base, arm).interval
            assert interval is not None
            inside += interval[0] <= 1.2 <= interval[1]
        assert inside >= 91

    @given(
        st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=8),
        st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=8),
    )
    def test_what_always_holds(self, base: list[float], arm: list[float]) -> None:
        compared = bootstrap.compare_medians(base, arm, 7)
        assert compared == bootstrap.compare_medians(base, arm, 7)
        assert compared.ratio is not None
        assert compared.noise is not None
        if compared.verdict == bootstrap.SAME:
            # As the verdict says, the noise is larger than the effect.
            effect = abs(compared.ratio - 1) / compared.ratio
            assert compared.noise >= effect * (1 - 1e-9)

    def test_no_ratio(self) -> None:
        for base, arm in (([0.0] * 5, [1.0] * 5), ([1.0] * 5, [-1.0] * 5), ([], [1.0])):
            assert bootstrap.compare_medians(base, arm).verdict == bootstrap.NO_RATIO

    def test_in_words(self, golden: Golden) -> None:
        def words(metric: NumberLabel, base: list[float], arm: list[float]) -> str:
            compared = bootstrap.compare_medians(base, arm)
            return results.verdict_text(results.MetricRow(metric, "cold", 1, tuple(arm), compared))

        wall, other = results.WALL_METRIC, NumberLabel("x")
        one = [1.0, 1.01, 1.02, 1.0, 0.99]
        twice = [2 * n for n in one]
        for name, metric, base, arm in (
            ("slower", wall, one, twice),
            ("faster", wall, twice, one),
            ("higher", other, one, twice),
            ("lower", other, twice, one),
            ("noise", wall, one, one),
            ("constant", other, [1.0] * 5, [1.0] * 5),
            ("few", wall, [1.0, 2.0], [1.0, 2.0]),
            ("zero", other, [0.0] * 5, [1.0] * 5),
        ):
            golden(words(metric, base, arm), name)


class TestSequential:
    """The test that is looked at several times. benchmarks/sequential.py tries it at length."""

    # What gives the first look its largest error: two values, each as likely as the other.
    WORST: Callable[[random.Random], float] = staticmethod(
        lambda chance: chance.choice([1, 2]) + chance.random() / 1000
    )

    @staticmethod
    def sure(draw: Callable[[random.Random], float], effect: float, trials: int) -> list[int]:
        """After how many runs each of some comparisons was sure, 0 if never."""
        chance = random.Random(4)
        return [
            sequential.sure_after(
                [draw(chance) for _ in range(sequential.MOST)],
                [effect * draw(chance) for _ in range(sequential.MOST)],
            )
            for _ in range(trials)
        ]

    @pytest.mark.parametrize("noise", [*NOISE, "worst"])
    def test_no_effect_is_rarely_sure(self, noise: str) -> None:
        found = self.sure(NOISE.get(noise, self.WORST), 1.0, 1500)
        # Three standard deviations above what is stated.
        assert sum(map(bool, found)) / 1500 <= sequential.ERROR + 3 * (0.05 * 0.95 / 1500) ** 0.5

    def test_the_stated_error_is_reached(self) -> None:
        found = self.sure(self.WORST, 1.0, 1500)
        assert sum(after == sequential.CLEAR for after in found) > 0.02 * 1500
        found = self.sure(NOISE["normal"], 1.0, 1500)
        assert sum(map(bool, found)) > 0.01 * 1500

    def test_a_large_effect_is_sure_at_once(self) -> None:
        assert self.sure(NOISE["normal"], 5.0, 50) == [sequential.CLEAR] * 50
        assert self.sure(NOISE["skewed"], 1 / 1.3, 200).count(0) < 60

    def test_equal_numbers_are_no_order(self) -> None:
        assert sequential.sure_after([1.0] * 20, [1.0] * 20) == 0
        assert sequential.sure_after([1.0] * 20, [2.0] * 20) == sequential.CLEAR
        assert sequential.sure_after([1, 1, 2, 2] * 5, [2, 2, 1, 1] * 5) == 0

    def test_the_first_runs_decide(self) -> None:
        base, arm = [1.0, 1.1, 1.2], [5.0, 5.1, 5.2]
        assert sequential.sure_after(base, arm) == sequential.sure_after(base, [*arm, 1.0]) == 3
        assert sequential.sure_after(base, arm[:2]) == 0
        # Separated, but by a gap that is smaller than the range of the runs.
        assert sequential.sure_after([1, 2, 3], [4, 5, 6]) == 0
        assert sequential.sure_after([1, 2, 3, 1, 2], [4, 5, 6, 4, 5]) == 5

    @pytest.mark.parametrize("apart", [6, 5, 2.9, 2.3, 1.8, 1.5, 1.2])
    def test_how_many_are_needed(self, apart: float) -> None:
        """Three of four comparisons are sure by then, and less by the look before."""
        chance = random.Random(1)
        needed = sequential.runs_needed(apart)
        sure = []
        for _ in range(1000):
            base = [chance.gauss(0, 1) for _ in range(needed)]
            arm = [chance.gauss(-apart, 1) for _ in range(needed)]
            sure.append(sequential.sure_after(base, arm))
        assert sum(map(bool, sure)) > 700
        assert needed == sequential.CLEAR or sum(0 < one < needed for one in sure) < 700

    def test_the_next_look(self) -> None:
        better = [1.0, 1.1, 1.2, 1.3, 2.15]
        base = [2.0, 2.1, 2.2, 2.3, 2.4]
        assert sequential.next_look(base, better) == (7, True)
        assert sequential.next_look(better, base) == (7, True)
        assert sequential.next_look(base, base[::-1]) == (7, False)
        assert sequential.next_look(base[:3], better[:3]) == (5, True)
        assert sequential.next_look([*base, 2.5, 2.6], [*better, 1.4, 1.5]) == (10, True)


class TestOrder:
    @given(st.integers(1, 4), st.integers(1, 7), st.integers(0, 2), st.integers())
    def test_every_run_once(self, arms: int, repeat: int, warmup: int, seed: int) -> None:
        caches = (runner.COLD, runner.WARM)
        cells = runner.schedule_runs(arms, caches, repeat, warmup, seed)
        assert cells == runner.schedule_runs(arms, caches, repeat, warmup, seed)
        assert (
            len(cells) == arms * (warmup + 2 * repeat) == len({*cells}) + arms * max(0, warmup - 1)
        )
        assert [cell.round for cell in cells] == sorted(cell.round for cell in cells)
        for arm in range(arms):
            kinds = [cell.caches for cell in cells if cell.arm == arm]
            # Each round fills the caches of its warm run.
            assert kinds[warmup:] == [runner.COLD, runner.WARM] * repeat
        for kind in caches:
            rounds = [
                [c.arm for c in cells if (c.round, c.caches) == (n, kind)]
                for n in range(1, repeat + 1)
            ]
            for one, other in zip(rounds[::2], rounds[1::2]):
                assert one[::-1] == other

    def test_by_turns(self) -> None:
        cells = runner.schedule_runs(2, (runner.COLD,), 20, 0, 3)
        firsts = {cells[2 * number].arm for number in range(20)}
        assert firsts == {0, 1}


def test_warm_runs_have_what_the_last_cold_run_compiled(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "caches = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "os.makedirs(caches, exist_ok=True)\n"
        "print('caches:', caches, file=open('places', 'a'))\n"
        "sys.exit(os.path.exists('fail'))\n"
    )
    cold, warm = runner.PlannedRun(1, 0, runner.COLD), runner.PlannedRun(1, 0, runner.WARM)
    environ = {**os.environ, "PWD": str(tmp_path)}
    command = ["sh", "-c", f'cd {tmp_path} && exec "$0" program.py', sys.executable]
    with runner.ArmRunner(command, [environ], 60, []) as made:

        def run_cells(*cells: runner.PlannedRun) -> list[str]:
            for cell in cells:
                made.run(cell)
            return (tmp_path / "places").read_text().split("caches: ")[-len(cells) :]

        one, other = run_cells(cold, warm)
        assert one == other
        last, *rest = run_cells(cold, warm, warm)
        assert rest == [last, last]
        assert last != one
        # What no run needs any more is gone.
        assert len(list(made.directory.glob("caches-*"))) == 1
        # One that failed has compiled nothing to go on with.
        (tmp_path / "fail").touch()
        run_cells(cold)
        (tmp_path / "fail").unlink()
        assert run_cells(warm) == [last]
        assert len(list(made.directory.glob("caches-*"))) == 1
        made.forget()
        assert not list(made.directory.glob("caches-*"))
        assert run_cells(warm) != [last]


class TestRuns:
    def test_effects_found_and_none(
        self, python311: Interpreter, tmp_path: Path, program: Path
    ) -> None:
        arguments = ("--toggle", "WHAT=fast,slow", "--toggle", "OTHER=1,", "--warmup", "0")
        done = ab(python311, tmp_path, *arguments, "--json", "--", python311.path, program)
        found = document(done)
        verdicts = says(found)
        assert [arm["label"] for arm in found["arms"]] == ["base", "WHAT=slow", "OTHER unset"]
        for caches in ("cold", "warm"):
            slow = verdicts["latency", caches, "WHAT=slow"]
            assert re.match(r"1\.[45]\dx, higher \(1\.4\d to 1\.5\d\)", slow)
            assert ", lower (0.6" in verdicts["tokens.per_s", caches, "WHAT=slow"]
            none = verdicts["latency", caches, "OTHER unset"]
            assert none.startswith("no difference seen: noise of ±")
        assert not any("fills its caches once" in note for note in found["notes"])
        # A size is not a result.
        assert not any(row["metric"] == "batch" for row in found["rows"])
        assert "1 number was left out: the same in every run" in found["notes"]
        assert all(run["status"] == "ended" for run in found["runs"])
        # All samples are there.
        row = next(r for r in found["rows"] if (r["metric"], r["arm"]) == ("latency", "base"))
        assert (row["unit"], len(row["numbers"]), row["caches"]) == ("ms", 5, "cold")
        # Each run has new cold caches. A warm run has those of its arm's cold run in its round.
        used = (tmp_path / "runs").read_text().split()
        by_arm: dict[tuple[str, str], list[str]] = {}
        for run, directory in zip(found["runs"], used):
            by_arm.setdefault((run["arm"], run["caches"]), []).append(directory)
        cold = [directory for key, its in by_arm.items() if key[1] == "cold" for directory in its]
        assert len({*cold}) == len(cold) == 15
        for arm in found["arms"]:
            label = arm["label"]
            assert by_arm[label, "cold"] == by_arm[label, "warm"]
        assert all(Path(path).is_relative_to(tmp_path / "tmp") for path in used)

    def test_text(self, python311: Interpreter, tmp_path: Path, program: Path) -> None:
        arguments = ("--toggle", "WHAT=,slow,crash,segfault", "--caches", "cold")
        done = ab(python311, tmp_path, *arguments, "--", python311.path, program)
        assert done.returncode == 1
        lines = done.stdout.splitlines()
        assert lines[0].startswith("rocm-autopatch ab: ")
        text = done.stdout.replace("\n    ", " ")
        assert f"on torch {TORCH}, ROCm 7.0, GPU unknown, Python 3." in text
        assert "5 runs of each arm with cold caches, in alternating order, seed 1; " in text
        assert "base: WHAT unset" in text
        head = next(n for n, line in enumerate(lines) if line == "Latency, ms, cold caches")
        assert lines[head + 1].split() == ["median", "lowest", "highest", "runs", "ratio"]
        assert lines[head + 2].split()[0] == "base"
        assert re.match(r"  WHAT=slow +1[45]\.\d\d +1[45]\.\d\d +15\.\d\d +5  1", lines[head + 3])
        assert re.match(r"      1\.[45]\dx, higher \(1\.4\d to 1\.5\d\)", lines[head + 4])
        # A failure is a result, and the other arms went on.
        assert "WHAT=crash (warm-up): exit status 1" in lines
        assert "  | RuntimeError: HIP error: invalid device function" in lines
        assert "WHAT=segfault (warm-up): ended by SIGSEGV" in lines
        assert max(map(len, lines[3:])) <= 100
        # Without a terminal there is a line for each run, but not for runs that were left out.
        assert len(done.stderr.splitlines()) == 4 + 2 * 5
        assert done.stderr.splitlines()[-1].startswith("24/24 ")

    def test_a_hang_is_ended_with_all_it_started(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        # The child has a process group of its own, like Inductor's compile workers, and ignores
        # SIGTERM.
        child = (
            "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "time.sleep(600)"
        )
        (tmp_path / "hang.py").write_text(
            "import os, subprocess, sys, time\n"
            "print('x: 1', flush=True)\n"
            "if 'HANG' in os.environ:\n"
            f"    words = [sys.executable, '-c', {child!r}]\n"
            "    child = subprocess.Popen(words, start_new_session=True)\n"
            "    open('child', 'w').write(str(child.pid))\n"
            "    print('waiting for the GPU', file=sys.stderr, flush=True)\n"
            "    while True: time.sleep(1)\n"
        )
        arguments = ("--toggle", "HANG=,1", "--timeout", "2", "--repeat", "1", "--json")
        command = (python311.path, "-B", "hang.py")
        found = document(ab(python311, tmp_path, *arguments, "--", *command), 1)
        hung = [run for run in found["runs"] if run["status"] == "hung"]
        (run,) = hung
        assert (run["arm"], run["last_lines"]) == ("HANG=1", ["waiting for the GPU"])
        golden(run["reason"])
        assert [run["status"] for run in found["runs"] if run["arm"] == "base"] == ["ended"] * 3
        pid = (tmp_path / "child").read_text()
        assert not Path("/proc", pid).exists() or "Z" in Path("/proc", pid, "stat").read_text()

    def test_until_sure(
        self, python311: Interpreter, tmp_path: Path, program: Path, golden: Golden
    ) -> None:
        slow = ("--toggle", "WHAT=fast,slow")
        how = ("--until-sure", "--metric", "latency", "--repeat", "5", "--caches", "cold")
        command = ("--", python311.path, program)
        given = (*slow, "--toggle", "OTHER=1,", *how, "--json", "--warmup", "0")
        found = document(ab(python311, tmp_path, *given, *command))
        rows = {row["arm"]: row for row in found["rows"]}
        # The one that differs was run no more; the other one, and the base, to the end.
        assert {arm: len(row["numbers"]) for arm, row in rows.items()} == {
            "base": 5,
            "WHAT=slow": 3,
            "OTHER unset": 5,
        }
        assert re.match(r"1\.[45]\dx, higher \(.*\), sure after 3", rows["WHAT=slow"]["says"])
        assert rows["WHAT=slow"]["sure_after"] == 3
        assert rows["OTHER unset"]["says"].startswith("no difference that is sure after 5 runs")
        # Where nothing else is open, the base is not run either.
        done = ab(python311, tmp_path, *slow, *how, "--warmup", "0", *command)
        assert "at most 5 runs of each arm, until it is sure that it differs," in " ".join(
            done.stdout.split()
        )
        assert done.stderr.splitlines()[-1].startswith("10/10 ")
        assert len(done.stderr.splitlines()) == 6
        wrong = ("--toggle", "A=1,", "--until-sure", "--repeat", "2", *command)
        done = ab(python311, tmp_path, *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        golden(done.stderr)

    def test_imports_are_told_apart(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.4)\n")
        script = tmp_path / "script"
        script.write_text(
            f"#!{python311.path}\nimport os, sys, time, slow\n"
            "time.sleep(float(os.environ['S']))\nprint('words:', len(sys.argv))\n"
        )
        script.chmod(0o755)
        given = ("--toggle", "S=1,1.2", "--caches", "warm", "--repeat", "2", "--json", "--")
        for command in ((python311.path, script, "x"), (script, "x")):
            found = document(ab(python311, tmp_path, *given, *command))
            medians = {(row["metric"], row["arm"]): row["median"] for row in found["rows"]}
            for arm in ("base", "S=1.2"):
                wall, rest = (medians[n, arm] for n in ("wall time", "time without imports"))
                # The import's 0.4 s, and not the second that the script sleeps by itself. That
                # second leaves room for a busy machine.
                assert 0.4 < wall - rest < 1
            assert all(run["numbers"][-1]["value"] == 2 for run in found["runs"])
            (note,) = [note for note in found["notes"] if "imports" in note]
            assert note.startswith("imports took 0.")
            # No other runs fill them anew.
            assert any("fills its caches once" in note for note in found["notes"])

    def test_wall_time(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        # Variables can be toggled for any command.
        arguments = ("--toggle", "S=0,1", "--caches", "cold", "--warmup", "0", "--json")
        found = document(ab(python311, tmp_path, *arguments, "--", "sh", "-c", 'sleep "$S"'))
        assert "x slower (" in says(found)["wall time", "cold", "S=1"]
        (note,) = found["notes"]
        golden(note)

    def test_interrupted(self, python311: Interpreter, tmp_path: Path, program: Path) -> None:
        (tmp_path / "tmp").mkdir()
        program.write_text(
            PROGRAM + "import time\nif len(open('runs').readlines()) > 5:\n"
            "    open('pid', 'w').write(str(os.getpid())); time.sleep(600)\n"
        )
        process = subprocess.Popen(
            [
                python311.path,
                "-m",
                "rocm_autopatch",
                "ab",
                "--toggle",
                "OTHER=,1",
                "--caches",
                "cold",
                "--",
                python311.path,
                program,
            ],
            env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp")},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # In the background of a shell, a process may ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running = wait_for_text(tmp_path / "pid")
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "PARTIAL, interrupted after 5 of 12 runs: 5 runs of each arm" in stdout
        assert "Latency, ms, cold caches" in stdout
        assert "too few runs for a verdict" in stdout
        assert os.listdir(tmp_path / "tmp") == []
        assert not Path("/proc", running).exists()

    def test_interrupted_before_a_run_ended(self) -> None:
        """A number can't be missing in what was not run."""
        request = measurement.ComparisonRequest(
            program=["true"],
            toggles=["A=1"],
            grid=False,
            repeat=5,
            until_sure=False,
            caches=(runner.COLD,),
            warmup=0,
            timeout=9.0,
            seed=1,
            numbers=["x: (.*)"],
            metrics=["latency"],
            plot=None,
        )
        done = measurement.Measurement(request, 1, [], [], "", [], [], partial=True)
        assert measurement.evaluate_runs(done, None) == processes.INTERRUPTED
        assert done.notes == ["interrupted before a run ended: nothing was measured"]
        assert done.rows == ()

    def test_a_number_of_ones_own(
        self, python311: Interpreter, tmp_path: Path, program: Path, golden: Golden
    ) -> None:
        command = ("--", python311.path, program)
        given = ("--toggle", "WHAT=,slow", "--repeat", "1", "--caches", "cold", "--json")
        number = ("--number", r"latency: (?P<ms>[\d.]+)", "--metric", "ms")
        found = document(ab(python311, tmp_path, *given, *number, *command))
        assert {row["metric"] for row in found["rows"]} == {"ms"}
        # It is refused after the first run.
        (tmp_path / "runs").unlink()
        for wrong in (("--number", "speed (.*)"), ("--metric", "speed")):
            done = ab(python311, tmp_path, *given, *wrong, *command)
            assert (done.returncode, done.stdout) == (1, "")
            golden(last_said(done.stderr), wrong[0])
        assert len((tmp_path / "runs").read_text().split()) == 2

    def test_grid(self, python311: Interpreter, tmp_path: Path, program: Path) -> None:
        given = ("--toggle", "WHAT=,slow", "--toggle", "B=1,", "--grid", "--repeat", "1")
        arguments = (*given, "--caches", "cold", "--warmup", "0", "--json", "--")
        found = document(ab(python311, tmp_path, *arguments, python311.path, program))
        labels = [arm["label"] for arm in found["arms"]]
        assert labels == ["base", "B unset", "WHAT=slow", "WHAT=slow, B unset"]


class TestArms:
    """The policies that are made for the arms, read by the hook's own loader."""

    GRAPHS = "torch._inductor.config.triton.cudagraphs"

    @staticmethod
    def place(environ: Mapping[str, str], accelerator: str = "rocm") -> ProgramPlace:
        values = {"torch": TORCH, "accelerator": accelerator, "python": "3.11"}
        facts = {name: {"value": value} for name, value in values.items()}
        report = {"facts": facts, "baked": "", "errors": [], "active": accelerator == "rocm"}
        return ProgramPlace(environ, ["python"], True, report)

    def plans(
        self, directory: Path, texts: Sequence[str], here: ProgramPlace
    ) -> list[tuple[tuple[str, ...], dict[str, tuple[str, Any]]]]:
        """For each arm, the layers and the config values of its environment."""
        chosen = [toggles.parse_toggle(text, TORCH, here.environ) for text in texts]
        found = []
        for arm in arms.make_arms(here, chosen, False, directory):
            named = arm.environ["ROCM_AUTOPATCH_POLICY"]
            stack = select.select({"accelerator": "rocm"}, named, at=()).layers
            plan = lower.lower(stack, {"accelerator": "rocm"})
            config = {
                f"{target}.{row[0]}": (str(row[1]), row[2])
                for patch, target, rows in plan["patches"]
                for row in rows
                if patch == "config"
            }
            found.append((plan["layers"], config))
        return found

    def test_on_what_the_place_has(self, tmp_path: Path) -> None:
        umask = os.umask(0)
        try:
            arms.make_arms(
                self.place({}), [toggles.parse_toggle("freezing", TORCH, {})], False, tmp_path
            )
        finally:
            os.umask(umask)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
        for value, (layers, config) in zip(
            (False, True), self.plans(tmp_path, ["triton.cudagraphs"], self.place({}))
        ):
            assert layers == ("safe", "ab")
            assert config[self.GRAPHS] == ("pin", value)
            assert config["torch._inductor.config.triton.cudagraph_trees"] == ("pin", False)

    def test_on_a_policy_of_ones_own(self, tmp_path: Path) -> None:
        own = tmp_path / "own"
        own.mkdir()
        pin = "config: {torch._inductor.config: {triton.cudagraphs: {pin: false}}}\n"
        (own / "base.yaml").write_text(f"version: 1\nextends: []\n{pin}")
        limit = "torch._dynamo.config: {cache_size_limit: {default: 7}}"
        text = f"version: 1\nextends: [base.yaml]\nconfig: {{{limit}}}\n"
        (own / "top.yaml").write_text(text)
        for here, texts in (
            (self.place({"ROCM_AUTOPATCH_POLICY": str(own / "top.yaml")}), []),
            (self.place({}, "cpu"), [f"policy={own / 'top.yaml'},safe"]),
        ):
            texts += ["triton.cudagraphs=true,false", "recompile_limit=8,9"]
            made = self.plans(tmp_path, texts, here)
            layers, config = made[0]
            assert layers == ("base", "top")
            assert config == {
                self.GRAPHS: ("pin", True),
                "torch._dynamo.config.recompile_limit": ("pin", 8),
            }
            if len(texts) == 3:
                assert made[1][0] == ("safe",)
        # If its condition does not hold here, only its bases apply.
        (own / "top.yaml").write_text(f"{text}when: {{gfx: gfx942}}\n")
        here = self.place({"ROCM_AUTOPATCH_POLICY": str(own / "top.yaml")})
        layers, config = self.plans(tmp_path, ["triton.cudagraphs"], here)[1]
        assert config == {self.GRAPHS: ("pin", True)}

    def test_where_nothing_applies_nothing_else_does(self, tmp_path: Path) -> None:
        here = self.place({"ROCM_AUTOPATCH_ASSUME": "gfx=gfx942"}, "cpu")
        chosen = [toggles.parse_toggle("freezing", TORCH, {})]
        (_, arm) = arms.make_arms(here, chosen, False, tmp_path)
        assert arm.environ["ROCM_AUTOPATCH_ASSUME"] == "gfx=gfx942,accelerator=rocm"
        assert self.plans(tmp_path, ["freezing"], here)[1] == (
            ("ab",),
            {"torch._inductor.config.freezing": ("pin", True)},
        )

    def test_switched_off(self, tmp_path: Path, golden: Golden) -> None:
        here = self.place({"ROCM_AUTOPATCH": "off"})
        for text in ("freezing", "policy=safe"):
            with pytest.raises(RequestRefused) as raised:
                arms.make_arms(here, [toggles.parse_toggle(text, TORCH, {})], False, tmp_path)
            golden(str(raised.value), text)
        both = arms.make_arms(
            here, [toggles.parse_toggle("policy=off,safe", TORCH, {})], False, tmp_path
        )
        assert [arm.environ.get("ROCM_AUTOPATCH") for arm in both] == ["off", None]

    def test_the_interpreter_of_a_command(self, tmp_path: Path) -> None:
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        (tmp_path / "python3").symlink_to(sys.executable)
        for name, line in (
            ("tool", f"#!{tmp_path}/python3 -E"),
            ("other", "#!/usr/bin/env python3"),
        ):
            (tmp_path / name).write_text(f"{line}\n")
            (tmp_path / name).chmod(0o755)
        python = str(tmp_path / "python3")
        for command, wanted in (
            (["tool", "x"], [python, "-E"]),
            (["other"], [python]),
            (
                ["python3", "-I", "-X", "dev", "-W", "error", "-m", "x", "-s"],
                [python, "-I", "-X", "dev", "-W", "error"],
            ),
            (["python3", "-"], [python]),
        ):
            assert place.interpreter_of(command, environ) == (wanted, True)
        assert place.interpreter_of(["sh", "-c", "1"], environ) == ([sys.executable], False)


SEES = f"import os; print('sees:', 1 + len(os.environ.get({MAX!r}, '')))"


class TestPolicies:
    """With the real hook in the command's processes, and a stand-in for torch."""

    ONCE = ("--repeat", "1", "--caches", "cold", "--warmup", "0", "--json")

    def sees(self, found: Mapping[str, Any]) -> dict[str, float]:
        return {row["arm"]: row["median"] for row in found["rows"] if row["metric"] == "sees"}

    def test_off_and_on(self, python311: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "own.yaml").write_text(
            f"version: 1\nextends: []\nenv: {{{MAX}: {{set: '123'}}}}\n"
        )
        arguments = ("--toggle", "policy=off,safe,own.yaml", *self.ONCE)
        command = ("--", python311.path, "-c", SEES)
        found = document(ab(python311, tmp_path, *arguments, *command, **{MAX: "1"}))
        # A file's arm has the name of its policy.
        assert self.sees(found) == {"base": 2, "policy=safe": 1, "policy=own": 4}
        (tmp_path / "one.yaml").write_text("version: 1\nname: team, one\nextends: []\n")
        (tmp_path / "two.yaml").write_text("version: 1\nname: safe\nextends: []\n")
        toggle = toggles.parse_toggle(
            f"policy=off,safe,{tmp_path / 'one.yaml'},{tmp_path / 'two.yaml'}", TORCH, {}
        )
        labels = [toggle.says(value) for value in toggle.values]
        assert labels[:3] == ["policy=off", "policy=safe", "policy=team, one"]
        # Another one has its name already.
        assert labels[3].endswith("two.yaml")

    def test_a_variable_holds_against_the_policy(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        arguments = ("--toggle", f"{MAX}=1,", *self.ONCE, "--", python311.path, "-c", SEES)
        found = document(ab(python311, tmp_path, *arguments))
        assert self.sees(found) == {"base": 2, f"{MAX} unset": 1}
        golden(found["notes"][0])

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (("--toggle", "policy=safe"), 1),
            (("--toggle", "policy=off,safe", "--toggle", "freezing"), 2),
            (("--toggle", "A=1,", "--toggle", "A=2,"), 2),
            (("--toggle", "TRITON_CACHE_DIR=a,b"), 2),
            (("--toggle", "ROCM_AUTOPATCH_LOG=a,b", "--toggle", "freezing"), 2),
            (("--toggle", "A=1,", "--number", "x"), 2),
            (("--toggle", "A=1,", "--caches", "warm", "--warmup", "0"), 2),
            (("--toggle", "A=1,", "--plot", "a.jpg"), 2),
            (("--toggle", "A=1,", "--plot", "a.png"), 1),
        ],
        ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
    )
    def test_refused_before_the_first_run(
        self,
        python311: Interpreter,
        tmp_path: Path,
        program: Path,
        arguments: tuple[str, ...],
        status: int,
        golden: Golden,
    ) -> None:
        done = ab(python311, tmp_path, *arguments, "--", python311.path, program)
        assert (done.returncode, done.stdout) == (status, "")
        golden(done.stderr)
        assert not (tmp_path / "runs").exists()

    def test_wrong_usage(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        for arguments in ((), ("--toggle", "A=1,"), ("--repeat", "0"), ("--timeout", "x")):
            done = ab(python311, tmp_path, *arguments)
            assert (done.returncode, done.stdout) == (2, "")
        done = ab(python311, tmp_path, "--toggle", "policy=off,none", "--", "true")
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr, "no such policy")
        done = ab(python311, tmp_path, "--toggle", "A=1,", "--", "no-such-command")
        assert done.returncode == 1
        golden(done.stderr, "no such command")
        (tmp_path / "script").write_text("echo no line that names a shell\n")
        (tmp_path / "script").chmod(0o755)
        done = ab(python311, tmp_path, "--toggle", "A=1,", "--", "./script")
        assert (done.returncode, done.stdout) == (1, "")
        golden(last_said(done.stderr), "not executable")

    def test_where_the_hook_is_not(
        self, python311: Interpreter, bare: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        done = ab(python311, tmp_path, "--toggle", "freezing", "--", bare.path, "-c", SEES)
        assert done.returncode == 1
        golden(done.stderr, "no torch", BARE=bare.path.parent.parent)
        done = ab(python311, tmp_path, "--toggle", "policy=off,safe", "--", bare.path, "-c", SEES)
        golden(done.stderr, "no hook", BARE=bare.path.parent.parent)
        # A variable needs no hook.
        arguments = ("--toggle", f"{MAX}=1,", *self.ONCE, "--", bare.path, "-c", SEES)
        assert self.sees(document(ab(python311, tmp_path, *arguments)))["base"] == 2

    def test_kept(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        label_torch(tmp_path, TORCH, HIP)
        with (tmp_path / "torch" / "__init__.py").open("a") as stream:
            stream.write("class _TorchCompileInductorWrapper:\n    def apply_mode(self): pass\n")
        command = ("--toggle", "mode.max-autotune=default", "--", python311.path, "-c", SEES)
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_KEEP": "max-autotune"}
        done = ab(python311, tmp_path, *command, **env)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)

    def test_no_rocm_build(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        arguments = ("--toggle", "policy=off,safe", *self.ONCE, "--", python311.path, "-c", SEES)
        env = {"ROCM_AUTOPATCH_ASSUME": "accelerator=cpu", MAX: "1"}
        found = document(ab(python311, tmp_path, *arguments, **env))
        assert self.sees(found) == {"base": 2, "policy=safe": 1}
        golden(found["notes"][0])

    def test_isolated(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        (tmp_path / "own.yaml").write_text("version: 1\nenv: {A: {set: b}}\n")
        arguments = ("--toggle", "policy=own.yaml", "--", python311.path, "-I", "-c", SEES)
        done = ab(python311, tmp_path, *arguments)
        assert done.returncode == 1
        golden(done.stderr)

    @pytest.mark.parametrize("version", ["every"])
    def test_on_each_python(self, python: Interpreter, tmp_path: Path, version: str) -> None:
        # Everything after the command belongs to it, also a second --.
        code = "import sys; print('words:', len(sys.argv), sys.argv[1:])"
        arguments = ("--toggle", "policy=off,safe", *self.ONCE, "--", python.path, "-c", code)
        found = document(ab(python, tmp_path, *arguments, "--", "--json", **{MAX: "1"}))
        assert found["command"][-2:] == ["--", "--json"]
        assert [run["numbers"][0]["value"] for run in found["runs"]] == [3.0, 3.0]


READS = """
import torch
import torch._inductor.config as config
config.max_autotune_gemm_backends = "CPP"  # a pin holds against the program
wrapper = torch._TorchCompileInductorWrapper("max-autotune", None, False)
print("backends: %d" % len(config.max_autotune_gemm_backends))
print("descent: %d" % (1 + wrapper.config.get("coordinate_descent_tuning", False)))
"""


class TestTorch:
    """On the real torch 2.13.0, with a HIP label."""

    def test_config_and_modes(self, torch_python: Interpreter, tmp_path: Path) -> None:
        (tmp_path / "reads.py").write_text(READS)
        arguments = (
            *("--toggle", 'max_autotune_gemm_backends=ATEN,"ATEN,TRITON"'),
            *("--toggle", "mode.max-autotune=default,max-autotune-no-cudagraphs"),
            *("--repeat", "1", "--caches", "cold", "--warmup", "0", "--json"),
        )
        done = ab(torch_python, tmp_path, *arguments, "--", torch_python.path, "reads.py")
        found = document(done)
        medians = {(row["metric"], row["arm"]): row["median"] for row in found["rows"]}
        base = {"backends": len("ATEN"), "descent": 1}
        # safe pins the first key. The arm's pin replaces that pin.
        for arm, metric, value in (
            ("max_autotune_gemm_backends=ATEN,TRITON", "backends", len("ATEN,TRITON")),
            ("mode.max-autotune=max-autotune-no-cudagraphs", "descent", 2),
        ):
            for name, there in base.items():
                assert medians[name, arm] == (value if name == metric else there)
        assert found["notes"] == []

    def test_a_mode_that_a_pin_overshadows(
        self, torch_python: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        arguments = ("--toggle", "mode.reduce-overhead=default,reduce-overhead")
        done = ab(torch_python, tmp_path, *arguments, "--", torch_python.path, "-c", "1")
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)

    def test_a_mode_that_stands_for_graphs(self, torch_python: Interpreter, tmp_path: Path) -> None:
        arguments = (
            *("--toggle", "mode.reduce-overhead=default,graphs", "--repeat", "1"),
            *("--caches", "cold", "--warmup", "0", "--json"),
        )
        program = (
            "import torch, rocm_autopatch\n"
            "(row,) = [one for one in rocm_autopatch.status()['compile_modes']\n"
            "          if one['name'] == 'reduce-overhead']\n"
            "print('graphs: %d' % (1 + (row['after'] == 'graphs')))\n"
        )
        command = ("--", torch_python.path, "-c", program)
        found = document(ab(torch_python, tmp_path, *arguments, *command))
        medians = {row["arm"]: row["median"] for row in found["rows"] if row["metric"] == "graphs"}
        assert medians == {"base": 1, "mode.reduce-overhead=graphs": 2}


class TestPlot:
    @pytest.fixture
    def python(self) -> Interpreter:
        """The interpreter of the tests, which has matplotlib."""
        return Interpreter(Path(sys.executable))

    @pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
    def test_drawn(
        self, python: Interpreter, tmp_path: Path, program: Path, name: str, start: bytes
    ) -> None:
        arguments = ("--toggle", "WHAT=$a_b^2$,slow", "--repeat", "2", "--caches", "cold")
        env = {"MPLCONFIGDIR": str(tmp_path / "mpl"), "HOME": str(tmp_path)}
        done = ab(
            python, tmp_path, *arguments, "--plot", name, "--", sys.executable, program, **env
        )
        assert done.returncode == 0, done.stderr
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(start)
        assert len(picture) > 10_000
        assert not list(tmp_path.glob(".a.*"))

    def test_no_place_for_it(
        self, python: Interpreter, tmp_path: Path, program: Path, golden: Golden
    ) -> None:
        given = ("--toggle", "A=1,", "--plot", "no/a.png", "--", sys.executable, program)
        done = ab(python, tmp_path, *given)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("environ", "files", "said"),
    [
        ({"PYTHONDONTWRITEBYTECODE": "1"}, ["version.py"], True),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, ["version.py", "__pycache__/version.pyc"], False),
        ({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/x"}, ["version.py"], False),
        ({"PYTHONDONTWRITEBYTECODE": ""}, ["version.py"], False),
        ({}, ["version.py"], False),
    ],
)
def test_a_torch_without_bytecode(
    tmp_path: Path, environ: dict[str, str], files: list[str], said: bool
) -> None:
    for name in files:
        file = tmp_path / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    facts = {"torch": {"value": "2.13.0", "source": str(tmp_path / "torch" / "version.py")}}
    here = ProgramPlace(environ, ["python"], True, {"facts": facts})
    assert ("PYTHONDONTWRITEBYTECODE is set" in here.slow_imports) is said
    assert ProgramPlace(environ, ["python"], True, None, "no hook").slow_imports == ""
