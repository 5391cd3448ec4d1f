"""``python -m demo``: one program in an environment like a ROCm image's, without and with us.

It makes two copies of the environment (surroundings/), builds the wheel and installs it into one of
them. It runs demo/transformer.py in both, in turn, and prints what each process saw and how long it
compiled. Progress goes to stderr, the table to stdout. If anything is not as it should be, one line
says why, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any, NamedTuple

from surroundings import hip_torch, image_env

ROOT = Path(__file__).resolve().parents[1]
# Runs of the program on each side, in turn, so that a slow minute of the machine affects both.
RUNS = 2
# Rounding differs between GEMM kernels by about 1e-6 here.
TOLERANCE = 1e-4
SIDES = ("without", "with")
LABEL_WIDTH, VALUE_WIDTH = 46, 25


class DemoError(Exception):
    """The demonstration failed; the text says why, in one line."""


class Process(NamedTuple):
    """A program's JSON, our lines on its stderr, GEMMs that torch benchmarked, its CPU seconds."""

    answer: dict[str, Any]
    lines: list[str]
    benchmarked: int
    cpu_s: float


def main() -> int:
    """Run the demonstration and print it."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".work", help="where to build (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in the table's place")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    start = time.monotonic()
    try:
        with hip_torch.lock(work / "demo.lock"):
            result = _demonstrate(work)
    except (DemoError, hip_torch.SurroundingsError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if arguments.json else "\n".join(_table(result)))
    _say(f"done in {time.monotonic() - start:.0f} s")
    failure = _failure(result)
    if failure:
        print(f"demo: {failure}", file=sys.stderr)
    return 1 if failure else 0


def install_both(work: Path) -> dict[str, Path]:
    """Two copies of the environment beneath *work*, one of them with our wheel: by side."""
    _, hip = hip_torch.create(work)
    place = work / "demo"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    venvs = {side: place / side for side in SIDES}
    for venv in venvs.values():
        hip_torch.copy(hip, venv)
    _say("building the wheel and installing it into one of two copies")
    _install(_wheel(hip, place, work), venvs["with"])
    return venvs


def _demonstrate(work: Path) -> dict[str, Any]:
    venvs = install_both(work)
    place = work / "demo"
    image = image_env.load()
    runs: dict[str, list[Process]] = {side: [] for side in SIDES}
    _say("looking at a process without rocm_autopatch and at one with it")
    with ThreadPoolExecutor() as pool:
        looks = {
            side: pool.submit(_run, venvs[side], "inspect_process.py", image.env, place)
            for side in SIDES
        }
    seen = {side: look.result() for side, look in looks.items()}
    for _ in range(RUNS):
        for side in SIDES:
            process = _run(venvs[side], "transformer.py", image.env, place)
            _say(f"{side} rocm_autopatch: compiled in {process.answer['cold_compile_s']:.1f} s")
            runs[side].append(process)
    return _result(image, seen, runs)


def _wheel(venv: Path, place: Path, work: Path) -> Path:
    """Build the wheel from a copy of the sources, where no earlier build has left anything."""

    def left_out(directory: str, names: list[str]) -> set[str]:
        unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
        return unwanted(directory, names) | {n for n in names if Path(directory, n) == work}

    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        shutil.copytree(ROOT, source, ignore=left_out)
        # What the build needs is in the venv, so this works without an index.
        options = ("--no-deps", "--no-build-isolation", "-w", str(place))
        _pip(venv, "wheel", *options, str(source))
    (wheel,) = place.glob("rocm_autopatch-*.whl")
    return wheel


def _install(wheel: Path, venv: Path) -> None:
    _pip(venv, "install", "--no-deps", "--no-index", str(wheel))


def _pip(venv: Path, command: str, *arguments: str) -> None:
    call = [str(hip_torch.python(venv)), "-I", "-m", "pip", command, "-q", *arguments]
    if subprocess.run(call, stdout=sys.stderr, check=False).returncode:
        raise DemoError(f"pip {command} failed, see above")


def _run(venv: Path, script: str, variables: dict[str, str], place: Path) -> Process:
    """Run a script of this directory with the image's variables and a cold compile cache."""
    with tempfile.TemporaryDirectory(dir=place) as cache:
        environment = {
            **variables,
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }
        cpu_before = _cpu_s()
        done = subprocess.run(
            [str(hip_torch.python(venv)), str(ROOT / "demo" / script)],
            env=environment,
            cwd=cache,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    errors = done.stderr.splitlines()
    if done.returncode:
        last = errors[-1] if errors else "nothing on stderr"
        raise DemoError(
            f"{script} {venv.name} rocm_autopatch ended with status {done.returncode}: {last}"
        )
    return Process(
        json.loads(done.stdout),
        [line for line in errors if line.startswith("rocm_autopatch:")],
        len([line for line in errors if line.startswith("AUTOTUNE ")]),
        _cpu_s() - cpu_before,
    )


def _cpu_s() -> float:
    """CPU seconds of all ended children: a busy machine changes them least."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _result(
    image: image_env.ImageEnv, seen: dict[str, Process], runs: dict[str, list[Process]]
) -> dict[str, Any]:
    result: dict[str, Any] = {"source": image.source, "image": image.image}
    for side in SIDES:
        answers = [process.answer for process in runs[side]]
        cold = [answer["cold_compile_s"] for answer in answers]
        result[side] = {
            **seen[side].answer,
            "lines": [process.lines for process in runs[side]],
            "gemms_benchmarked": [process.benchmarked for process in runs[side]],
            "cold_compile_s": median(cold),
            "cold_compile_runs_s": cold,
            "noise": (max(cold) - min(cold)) / median(cold),
            "cpu_s": median([process.cpu_s for process in runs[side]]),
            "warm_call_runs_s": [answer["warm_call_s"] for answer in answers],
            "results": [[answer["checksum"], *answer["logits"]] for answer in answers],
        }
    expected, *others = [row for side in SIDES for row in result[side]["results"]]
    pairs = [pair for other in others for pair in zip(expected, other)]
    result["ratio"] = result["without"]["cold_compile_s"] / result["with"]["cold_compile_s"]
    result["equal"] = all(
        math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in pairs
    )
    result["largest_relative_difference"] = max(abs(a - b) / max(abs(a), 1.0) for a, b in pairs)
    return result


def _failure(result: dict[str, Any]) -> str:
    """Why the demonstration does not show what it should, or ""; times are not judged."""
    without, with_ = (result[side] for side in SIDES)
    visible = [name for name, value in with_["variables"].items() if value is not None]
    for failed, text in (
        (not result["equal"], f"the results differ by more than {TOLERANCE}"),
        (without["installed"], "rocm_autopatch is installed on the side without it"),
        (not with_["installed"], "rocm_autopatch is not installed on the side with it"),
        (visible, f"with rocm_autopatch the process still sees {', '.join(visible)}"),
        (not all(without["gemms_benchmarked"]), "without rocm_autopatch nothing was benchmarked"),
        (any(with_["gemms_benchmarked"]), "with rocm_autopatch GEMMs were benchmarked"),
        (any(without["lines"]), "a line of rocm_autopatch without it"),
        (
            any(len(lines) != 1 for lines in with_["lines"]),
            f"expected one line of rocm_autopatch in each run: {with_['lines']}",
        ),
    ):
        if failed:
            return text
    return ""


def _table(result: dict[str, Any]) -> Iterator[str]:
    without, with_ = (result[side] for side in SIDES)
    yield from wrap(f"Environment: the ENV lines of {result['source']} ({result['image']}).", 99)
    yield from wrap(
        f"Torch: {with_['torch']}, hip {with_['hip']}. That is the CPU build with the label of a "
        "ROCm build: a stand-in. No AMD GPU and no HIP runtime were involved, and the seconds are "
        "those of compiling for this machine's CPU.",
        99,
    )
    yield ""
    yield _row("", "without rocm_autopatch", "with rocm_autopatch")
    yield "Dangerous variables that the process sees"
    yield from _differences(without["variables"], with_["variables"])
    yield "Config that a worker thread sees"
    yield from _differences(without["config"], with_["config"])
    for mode in with_["modes"]:
        yield f'Config while compiling with mode="{mode}"'
        effective = [side["modes"][mode]["effective"] for side in (without, with_)]
        for key in effective[0]:
            yield _row(f"  {key}", *(str(values[key]) for values in effective))
    yield "The program, demo/transformer.py"
    yield _row(
        "  GEMMs benchmarked while compiling",
        *(", ".join(map(str, side["gemms_benchmarked"])) for side in (without, with_)),
    )
    yield _row(
        f"  cold compile, seconds: {RUNS} runs by turns",
        *(
            ", ".join(f"{seconds:.1f}" for seconds in side["cold_compile_runs_s"])
            for side in (without, with_)
        ),
    )
    yield _row(
        "  cold compile, seconds: median",
        *(f"{side['cold_compile_s']:.1f}" for side in (without, with_)),
    )
    yield _row("  cold compile: ratio", f"{result['ratio']:.2f}", "1")
    yield _row(
        "  CPU seconds of the whole run: median",
        *(f"{side['cpu_s']:.1f}" for side in (without, with_)),
    )
    yield _row(
        "  warm call, milliseconds: each run's median",
        *(
            ", ".join(f"{seconds * 1000:.2f}" for seconds in side["warm_call_runs_s"])
            for side in (without, with_)
        ),
    )
    difference = f"largest difference {result['largest_relative_difference']:.0e}"
    yield _row("  result equal", f"{'yes' if result['equal'] else 'NO'} ({difference})")
    yield ""
    noise = max(side["noise"] for side in (without, with_))
    yield (
        f"Noise: cold compiles of one side differ by up to {noise:.0%}. "
        f"Results: tolerance {TOLERANCE:g}."
    )
    yield "Written by rocm_autopatch to the program's stderr:"
    for line in dict.fromkeys(line for lines in with_["lines"] for line in lines):
        yield from wrap(line, 99, initial_indent="  ", subsequent_indent="  ")


def _differences(without: dict[str, Any], with_: dict[str, Any]) -> Iterator[str]:
    """Rows for the names that differ, and the others by name."""
    same = [name for name in without if without[name] == with_[name]]
    for name in without:
        if name not in same:
            yield _row(f"  {_short(name)}", *(_value(side[name]) for side in (without, with_)))
    if same:
        text = "the same in both: " + ", ".join(
            f"{_short(name)} {_value(without[name])}" for name in same
        )
        yield from wrap(text, 99, initial_indent="  ", subsequent_indent="    ")


def _short(name: str) -> str:
    return name.replace("torch._inductor.config.", "").replace("torch._dynamo.config.", "dynamo ")


def _value(value: object) -> str:
    return "unset" if value is None else str(value)


def _row(label: str, *values: str) -> str:
    cells = [label.ljust(LABEL_WIDTH), *(value.ljust(VALUE_WIDTH) for value in values)]
    return "  ".join(cells).rstrip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
