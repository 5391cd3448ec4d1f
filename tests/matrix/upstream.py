"""PyTorch's own tests of config, Dynamo and Inductor, without us, with us idle, and under safe.

    python tests/matrix/upstream.py PYTORCH_CHECKOUT [--work DIR] [--out FILE.md] [--only REGEX]

PYTORCH_CHECKOUT holds PyTorch's test/, in any version; nothing of it is kept here. The tests run on
the HIP-labelled torch for the CPU. Without us, some fail or are skipped too, so only differences
count. Each file runs four times, each time in a fresh process with empty caches:

    off     ROCM_AUTOPATCH=off
    idle    an empty policy: all of our start runs, and changes nothing
    safe    the default
    again   off once more: what differs between two runs without us is flaky

The exit status is 1 if no test ran, or if under ``idle`` a test that is not flaky has another
outcome or another first line of its failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from surroundings import hip_torch  # noqa: E402  # the checkout is not on sys.path of a script

# Below PyTorch's test/, with pytest's options, the most telling first. None needs a GPU,
# and only a part of what compiles for minutes. Not every version has all of them.
FILES: dict[str, tuple[str, ...]] = {
    "test_utils_config_module.py": (),
    "dynamo/test_config.py": (),
    "dynamo/test_recompiles.py": (),
    "dynamo/test_backends.py": (),
    "dynamo/test_compile.py": (),
    "inductor/test_config.py": (),
    "inductor/test_standalone_compile.py": (),
    "inductor/test_compile.py": (),
    "inductor/test_compile_worker.py": (),
    "inductor/test_codecache.py": ("-k", "Hashing or TestUtils or guard or counters or clear"),
    "dynamo/test_misc.py": (),
    "dynamo/test_logging.py": (),
    "dynamo/test_decorators.py": (),
    "inductor/test_compile_subprocess.py": ("-k", "test_add"),
    "inductor/test_torchinductor_codegen_config_overrides.py": (),
    "dynamo/test_repros.py": (),
}
RUNS: dict[str, dict[str, str]] = {
    "off": {"ROCM_AUTOPATCH": "off"},
    "idle": {},  # its policy is a file, which is written where the work is done
    "safe": {},
    "again": {"ROCM_AUTOPATCH": "off"},
}
PLACES = {"HOME": "home", "TMPDIR": "tmp", "TORCHINDUCTOR_CACHE_DIR": "cache"}
IDLE = "version: 1\nextends: []\n"
NEEDED = ("pytest", "pytest-timeout", "expecttest", "hypothesis", "psutil")
# Seconds: of a test, and of a file, whose process may hang where no test's limit reaches.
TEST, FILE = 120, 1500
TIMED_OUT = 124
STAMP = "upstream.json"
# What differs from run to run in the words of a failure.
VARYING = (
    (re.compile(r"0x[0-9a-f]+"), "0x..."),
    (re.compile(r"/\S*/"), ".../"),
    (re.compile(r"\b\d+\.\d{3,}(e-?\d+)?"), "N"),
    (re.compile(r"\b[0-9a-z]{30,}\b"), "HASH"),
)


@dataclass(frozen=True)
class Outcome:
    """How a test ended, and the first line of why."""

    status: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.line}" if self.line else self.status


ABSENT = Outcome("absent")


@dataclass
class Run:
    """A file under one setting."""

    seconds: float
    status: int
    tests: dict[str, Outcome] = field(default_factory=dict)

    def count(self) -> str:
        found = Counter(test.status for test in self.tests.values())
        failed = found["failed"] + found["error"]
        return f"{found['passed']}/{failed}/{found['skipped']}" if self.tests else "no result"


def environment(work: Path) -> Path:
    """A copy of the labelled torch, with what the tests need; our wheel is new each time."""
    _, hip = hip_torch.create(work)
    venv = work.resolve() / "upstream" / "venv"
    recipe = (hip / hip_torch.STAMP).read_text(encoding="utf-8") + json.dumps(NEEDED)
    stamp = venv / STAMP
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != recipe:
        hip_torch.copy(hip, venv)
        pip(venv, "install", *NEEDED)
        stamp.write_text(recipe, encoding="utf-8")
    wheels = venv.parent / "wheel"
    for old in wheels.glob("*.whl"):
        old.unlink()
    pip(venv, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(ROOT))
    (wheel,) = wheels.glob("*.whl")
    pip(venv, "install", "--no-deps", "--force-reinstall", str(wheel))
    return venv


def pip(venv: Path, command: str, *arguments: str) -> None:
    # -I: this program's PYTHONPATH is not the environment's.
    options = ["-I", "-m", "pip", command, "-q", "--disable-pip-version-check", *arguments]
    subprocess.run([hip_torch.python(venv), *options], check=True, stdout=sys.stderr)


def variables(directory: Path, setting: str) -> dict[str, str]:
    """The whole environment of a run: nothing of ours that calls this is in it."""
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **RUNS[setting]}
    # Some failures name the first element of a set.
    env["PYTHONHASHSEED"] = "0"
    for name, place in PLACES.items():
        (directory / place).mkdir(parents=True, exist_ok=True)
        env[name] = str(directory / place)
    if setting == "idle":
        policy = directory / "idle.yaml"
        policy.write_text(IDLE, encoding="utf-8")
        env["ROCM_AUTOPATCH_POLICY"] = str(policy)
    return env


def check(venv: Path, directory: Path) -> None:
    """That each setting is what it is called: otherwise nothing is compared."""
    code = (
        "import json, torch, torch._inductor.config, torch._dynamo.config, rocm_autopatch as r;"
        "d = r.status();"
        "print(json.dumps([d['active'], d['errors'], len(d['config']), len(d['env'])]))"
    )
    for setting in RUNS:
        done = subprocess.run(
            [hip_torch.python(venv), "-c", code],
            env=variables(directory / setting, setting),
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        active, errors, *changes = json.loads(done.stdout)
        wanted = (setting in ("idle", "safe"), setting == "safe")
        if (active, any(changes)) != wanted or errors:
            raise SystemExit(f"upstream: {setting} is not what it should be: {done.stdout.strip()}")


def run(venv: Path, tests: Path, name: str, setting: str, directory: Path) -> Run:
    """One file in a process of its own."""
    directory.mkdir(parents=True)
    results, ini = directory / "results.xml", directory / "pytest.ini"
    ini.write_text("[pytest]\njunit_family = xunit1\n", encoding="utf-8")
    command = [str(hip_torch.python(venv)), "-m", "pytest", name, *FILES[name]]
    # The checkout's own configuration is for its CI: other plugins, and one version of pytest.
    command += ["-q", "-c", str(ini), f"--rootdir={tests}", "--noconftest"]
    command += ["-p", "no:cacheprovider"]
    command += [f"--timeout={TEST}", f"--junitxml={results}"]
    before = time.monotonic()
    with (
        open(directory / "output.txt", "w", encoding="utf-8") as output,
        subprocess.Popen(
            command,
            env={**variables(directory, setting), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tests,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            status = process.wait(FILE)
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
        finally:
            # The workers of a process that hangs or crashes would go on compiling.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    done = Run(time.monotonic() - before, status)
    if results.is_file():
        done.tests = read(results)
    # Each compiles PyTorch's headers for itself; a whole round would leave gigabytes.
    for place in PLACES.values():
        shutil.rmtree(directory / place, ignore_errors=True)
    return done


def read(results: Path) -> dict[str, Outcome]:
    """The outcomes in pytest's XML, by the test's id."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        outcome = Outcome("passed")
        for tag, status in (("skipped", "skipped"), ("error", "error"), ("failure", "failed")):
            said = case.find(tag)
            if said is not None:
                outcome = Outcome(status, first_line(said.get("message") or ""))
        name = f"{case.get('classname', '')}::{case.get('name')}".removeprefix("::")
        # A test that fails and is then torn down with an error has two entries.
        if found.get(name, Outcome("passed")).status == "passed":
            found[name] = outcome
    return found


def first_line(text: str) -> str:
    """The first line that says anything, without what differs from run to run."""
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    for pattern, instead in VARYING:
        line = pattern.sub(instead, line)
    return line[:200]


def different(runs: dict[str, Run], one: str, other: str) -> dict[str, tuple[Outcome, Outcome]]:
    """The tests that end otherwise in two runs."""
    left, right = runs[one].tests, runs[other].tests
    pairs = {
        name: (left.get(name, ABSENT), right.get(name, ABSENT)) for name in sorted({*left, *right})
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Report:
    """What came out, file by file, as Markdown."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.runs: dict[str, dict[str, Run]] = {}
        self.missing: list[str] = []

    def differences(self, setting: str) -> list[tuple[str, str, Outcome, Outcome]]:
        """The tests that end otherwise under a setting, but for the flaky ones."""
        return [
            (name, test, *pair)
            for name, runs in self.runs.items()
            for test, pair in different(runs, "off", setting).items()
            if setting == "again" or test not in different(runs, "off", "again")
        ]

    def unfinished(self) -> list[str]:
        """Runs that left no results: they are compared with nothing."""
        return [
            f"{name}, {setting}: status {one.status}"
            for name, runs in self.runs.items()
            for setting, one in runs.items()
            if not one.tests
        ]

    def text(self) -> str:
        lines = [
            f"torch {hip_torch.TORCH} for the CPU, labelled HIP; tests of PyTorch {self.version}.",
            "Cells: passed/failed/skipped, and seconds.",
            "",
            "| file | tests | " + " | ".join(RUNS) + " |",
            "|---|---:" + "|---:" * len(RUNS) + "|",
        ]
        for name, runs in self.runs.items():
            tests = len({test for one in runs.values() for test in one.tests})
            cells = [f"{one.count()}, {one.seconds:.0f} s" for one in runs.values()]
            chosen = f"{name} {' '.join(FILES[name])}".strip()
            lines.append(f"| {chosen} | {tests} | " + " | ".join(cells) + " |")
        sections = {
            "Different with the hook idle": self.differences("idle"),
            "Different under `safe`": self.differences("safe"),
            "Flaky: different in two runs without us": self.differences("again"),
        }
        for title, found in sections.items():
            lines += ["", f"## {title}: {len(found)}", ""]
            for name, test, before, after in found:
                lines.append(f"- `{name}` `{test.rpartition('.')[2]}`: {before} → {after}")
        if unfinished := self.unfinished():
            lines += ["", "## Without results", "", *(f"- {one}" for one in unfinished)]
        if self.missing:
            lines += ["", f"Not in this checkout: {', '.join(self.missing)}."]
        return "\n".join(lines) + "\n"


def fill(report: Report, work: Path, tests: Path, only: str, out: Path | None) -> None:
    """Run the files, and keep *out* up to date meanwhile: all of them take most of an hour."""
    venv = environment(work)
    scratch = venv.parent / time.strftime("%Y%m%d-%H%M%S")
    check(venv, scratch / "check")
    for name in FILES:
        if not re.search(only, name):
            continue
        if not (tests / name).is_file():
            report.missing.append(name)
            continue
        report.runs[name] = {}
        for setting in RUNS:
            directory = scratch / name.replace("/", "-").removesuffix(".py") / setting
            done = report.runs[name][setting] = run(venv, tests, name, setting, directory)
            print(f"{name} {setting}: {done.count()}, {done.seconds:.0f} s", file=sys.stderr)
        if out:
            out.write_text(report.text(), encoding="utf-8")


def main() -> int:
    """Run all, print the report."""
    parser = argparse.ArgumentParser(description="PyTorch's own tests, without us and with us")
    parser.add_argument("checkout", type=Path, help="with PyTorch's test/ in it")
    parser.add_argument("--work", type=Path, default=ROOT / ".work")
    parser.add_argument("--out", type=Path, help="a file for the report")
    parser.add_argument("--only", default="", help="a regular expression: which files")
    asked = parser.parse_args()
    tests = asked.checkout.resolve() / "test"
    if not tests.is_dir():
        parser.error(f"{tests} is no directory")
    version = tests.parent / "version.txt"
    report = Report(version.read_text(encoding="utf-8").strip() if version.is_file() else "unknown")
    # Another run would put another wheel under this one's tests.
    with hip_torch.lock(asked.work / "upstream" / "upstream.lock"):
        fill(report, asked.work, tests, asked.only, asked.out)
    print(report.text(), end="")
    compared = any(one.tests for runs in report.runs.values() for one in runs.values())
    return int(bool(report.differences("idle")) or not compared)


if __name__ == "__main__":
    sys.exit(main())
