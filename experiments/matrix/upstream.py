"""PyTorch's own tests of config, Dynamo and Inductor, without us, with us idle, and under safe.

    python experiments/matrix/upstream.py [CHECKOUT] [--python PYTHON] [--only REGEX]
        [--out FILE.md] [--from ADDRESS] [--wheel WHEEL] [--work DIR]

CHECKOUT holds PyTorch's test/, in any version; nothing of it is kept here. Without it, git fetches
the tests of the torch's own version from ADDRESS. The tests run on the torch of PYTHON, in venvs
beside it, or on the HIP-labelled torch for the CPU. Without us, some fail or are skipped too, so
only differences count. Each file runs five times, each time in a fresh process with empty caches:

    bare    our package is not installed
    idle    it is installed, and nothing applies: torch is no ROCm build, or ROCM_AUTOPATCH=off
    empty   an empty policy: all of our start runs, and changes nothing
    safe    the default
    again   bare once more: what differs between two runs without us is flaky

If PYTHON's torch is no ROCm build, ROCM_AUTOPATCH_ASSUME says that it is, under ``empty`` and
``safe``. If the tests are of another version than the torch, names that it does not have are
replaced (absent_names.py), and the report names them.

The exit status is 1 if no test ran, or if under ``idle`` or ``empty`` a test that is not flaky has
another outcome or another first line of its failure.
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
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments" / "matrix")]

import upstream_checkout  # noqa: E402  # neither is on sys.path where a test imports this
from upstream_checkout import CheckoutError  # noqa: E402

from surroundings import hip_torch  # noqa: E402

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
SETTINGS = ("bare", "idle", "empty", "safe", "again")
WITHOUT_US = ("bare", "again")
PLACES = {"HOME": "home", "TMPDIR": "tmp", "TORCHINDUCTOR_CACHE_DIR": "cache"}
EMPTY = "version: 1\nextends: []\n"
ASSUMED = "accelerator=rocm"
# What the tests need, and what our package needs.
NEEDED = ("pytest", "pytest-timeout", "expecttest", "hypothesis", "psutil", "PyYAML", "packaging")
PLUGIN = Path(__file__).resolve().parent / "absent_names.py"
# Seconds: of a test, and of a file, whose process may hang where no test's limit reaches.
TEST, FILE = 120, 1500
TIMED_OUT = 124
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
    replaced: list[str] = field(default_factory=list)

    def count(self) -> str:
        found = Counter(test.status for test in self.tests.values())
        failed = found["failed"] + found["error"]
        return f"{found['passed']}/{failed}/{found['skipped']}" if self.tests else "no result"


@dataclass(frozen=True)
class Torch:
    """The torch that the tests run on, in a venv without us and in one with our wheel."""

    bare: Path
    ours: Path
    version: str
    rocm: bool
    words: str

    def python(self, setting: str) -> Path:
        return hip_torch.python(self.bare if setting in WITHOUT_US else self.ours)

    def variables(self, setting: str, directory: Path) -> dict[str, str]:
        """What a setting is, as variables; its policy is written to *directory*."""
        if setting in WITHOUT_US:
            return {}
        if setting == "idle":
            return {"ROCM_AUTOPATCH": "off"} if self.rocm else {}
        env = {} if self.rocm else {"ROCM_AUTOPATCH_ASSUME": ASSUMED}
        if setting == "empty":
            policy = directory / "empty.yaml"
            policy.write_text(EMPTY, encoding="utf-8")
            env["ROCM_AUTOPATCH_POLICY"] = str(policy)
        return env


def find_torch(python: Path | None, work: Path, wheel: Path | None) -> Torch:
    """Make the two venvs; our wheel is new each time."""
    directory = work.resolve() / "upstream"
    bare, ours = directory / "bare", directory / "ours"
    if python:
        recipe: list[object] = [str(python), ask(python, "sys.version"), NEEDED]
        where = f"the torch of {python}"
    else:
        _, hip = hip_torch.create(work)
        recipe = [(hip / hip_torch.STAMP).read_text(encoding="utf-8"), NEEDED]
        where = "for the CPU, labelled HIP"
    if not hip_torch.finished(bare, recipe):
        if python:
            beside(python, bare)
        else:
            hip_torch.copy(hip, bare)
        hip_torch.pip(bare, "install", *NEEDED)
        hip_torch.finish(bare, recipe)
    shutil.copy(PLUGIN, packages(bare))
    hip_torch.copy(bare, ours)
    if wheel is None:
        wheels = directory / "wheel"
        shutil.rmtree(wheels, ignore_errors=True)
        hip_torch.pip(ours, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(ROOT))
        (wheel,) = wheels.glob("*.whl")
    hip_torch.pip(ours, "install", "--no-deps", "--force-reinstall", str(wheel))
    torch = "__import__('torch')"
    code = f"[{torch}.__version__, bool({torch}.version.hip), sys.version.split()[0]]"
    version, rocm, number = ask(hip_torch.python(bare), code)
    return Torch(bare, ours, version, rocm, f"{where}, Python {number}")


def beside(python: Path, venv: Path) -> None:
    """A venv that has what *python* has. If that is a venv's, its packages are named in a .pth."""
    shutil.rmtree(venv, ignore_errors=True)
    hip_torch.run([str(python), "-I", "-m", "venv", "--system-site-packages", str(venv)])
    lines = ask(python, "__import__('site').getsitepackages() * (sys.prefix != sys.base_prefix)")
    (packages(venv) / "beside.pth").write_text("".join(f"{line}\n" for line in lines))
    try:
        ask(hip_torch.python(venv), "__import__('torch').__version__")
    except subprocess.CalledProcessError:
        raise hip_torch.SurroundingsError(f"{python} can't import torch") from None


def packages(venv: Path) -> Path:
    """Where pip installs in a venv of any Python."""
    code = "__import__('sysconfig').get_path('purelib')"
    return Path(ask(hip_torch.python(venv), code))


def ask(python: Path, expression: str) -> Any:
    """What an expression is in an interpreter, in which nothing of ours applies."""
    code = f"import json, sys; print(json.dumps({expression}))"
    done = subprocess.run(
        [python, "-c", code],
        env={"PATH": os.environ["PATH"], "ROCM_AUTOPATCH": "off"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def variables(torch: Torch, directory: Path, setting: str) -> dict[str, str]:
    """The whole environment of a run: nothing of ours that calls this is in it."""
    # Some failures name the first element of a set.
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    for name, place in PLACES.items():
        (directory / place).mkdir(parents=True, exist_ok=True)
        env[name] = str(directory / place)
    return {**env, **torch.variables(setting, directory)}


# What a process of a setting says of itself. Torch's config is imported, so all changes are made.
SEEN = """
import importlib.util, json, sys, torch, torch._inductor.config, torch._dynamo.config
seen = {"torch": torch.__version__, "installed": False}
if importlib.util.find_spec("rocm_autopatch"):
    import rocm_autopatch
    status = rocm_autopatch.status()
    changes = len(status["config"]) + len(status["env"])
    seen = {**seen, "installed": True, "active": status["active"], "changes": changes > 0}
    seen = {**seen, "policy": status["policy"], "errors": status["errors"]}
    seen["why"] = status["reason"]
print(json.dumps(seen))
"""


def check(torch: Torch, directory: Path) -> dict[str, str]:
    """That each setting is what it is called, in words: otherwise nothing is compared.

    Raises:
        NotWhatItIsCalled: one is not.
    """
    words = {}
    for setting in SETTINGS:
        env = variables(torch, directory / setting, setting)
        done = subprocess.run(
            [torch.python(setting), "-c", SEEN],
            env=env,
            cwd=directory,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotWhatItIsCalled(f"{setting}: torch can't be imported, see above")
        words[setting] = judge(torch.version, setting, env, json.loads(done.stdout))
    return words


class NotWhatItIsCalled(Exception):
    """A setting is another one; the text says what was seen."""


def judge(version: str, setting: str, env: dict[str, str], seen: dict[str, Any]) -> str:
    """What a setting is, in words, from what its process said."""
    wanted: dict[str, Any] = {"torch": version, "installed": setting not in WITHOUT_US}
    if wanted["installed"]:
        wanted |= {"active": setting in ("empty", "safe"), "changes": setting == "safe"}
        wanted |= {"errors": []}
    if setting in ("empty", "safe"):
        # The file's name without its end, and the default's.
        wanted["policy"] = setting
    wrong = {name: seen.get(name) for name in wanted if seen.get(name) != wanted[name]}
    if wrong:
        raise NotWhatItIsCalled(f"{setting} is not what it should be: {json.dumps(seen)}")
    if not wanted["installed"]:
        return "not installed"
    assumed = f", {ASSUMED} is assumed" if "ROCM_AUTOPATCH_ASSUME" in env else ""
    if not wanted["active"]:
        return f"nothing applies: {seen['why']}"
    return f"{'an empty policy' if setting == 'empty' else 'the policy safe'}{assumed}"


def run(
    torch: Torch, tests: Path, name: str, setting: str, directory: Path, *, foreign: bool
) -> Run:
    """One file in a process of its own. *foreign*: it may be of another version than torch."""
    directory.mkdir(parents=True)
    results, ini = directory / "results.xml", directory / "pytest.ini"
    replaced = directory / "replaced.json"
    ini.write_text("[pytest]\njunit_family = xunit1\n", encoding="utf-8")
    command = [str(torch.python(setting)), "-m", "pytest", name, *FILES[name]]
    # The checkout's own configuration is for its CI: other plugins, and one version of pytest.
    command += ["-q", "-c", str(ini), f"--rootdir={tests}", "--noconftest"]
    command += ["-p", "no:cacheprovider"]
    command += [f"--timeout={TEST}", f"--junitxml={results}"]
    if foreign:
        command += ["-p", PLUGIN.stem, f"--absent-names={replaced}"]
    before = time.monotonic()
    with (
        open(directory / "output.txt", "w", encoding="utf-8") as output,
        subprocess.Popen(
            command,
            env={**variables(torch, directory, setting), "PYTHONDONTWRITEBYTECODE": "1"},
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
    if replaced.is_file():
        done.replaced = json.loads(replaced.read_text(encoding="utf-8"))
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
    # In a KeyError, line ends are written as a backslash and an n.
    lines = text.replace("\\n", "\n").splitlines()
    line = next((one.strip() for one in lines if one.strip()), "")
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

    def __init__(self, torch: Torch, version: str) -> None:
        self.torch = torch
        # Of the tests; "" if the checkout does not say.
        self.version = version
        self.settings: dict[str, str] = {}
        self.runs: dict[str, dict[str, Run]] = {}
        self.missing: list[str] = []

    @property
    def foreign(self) -> bool:
        """Whether the tests may be of another version than torch."""
        release = upstream_checkout.release
        return not self.version or release(self.version) != release(self.torch.version)

    def differences(self, setting: str) -> list[tuple[str, str, Outcome, Outcome]]:
        """The tests that end otherwise under a setting, but for the flaky ones."""
        return [
            (name, test, *pair)
            for name, runs in self.runs.items()
            if setting in runs
            for test, pair in different(runs, "bare", setting).items()
            if setting == "again"
            or "again" not in runs
            or test not in different(runs, "bare", "again")
        ]

    def unfinished(self) -> list[str]:
        """Runs that left no results: they are compared with nothing."""
        return [
            f"{name}, {setting}: status {one.status}"
            for name, runs in self.runs.items()
            for setting, one in runs.items()
            if not one.tests
        ]

    def replaced(self) -> str:
        """Which names were replaced, in a sentence."""
        if not self.foreign:
            return "Names that this torch does not have: not looked for, the versions are equal."
        names = {
            name for runs in self.runs.values() for one in runs.values() for name in one.replaced
        }
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        return f"Names that this torch does not have: {listed or 'none'}."

    def text(self) -> str:
        lines = [
            f"torch {self.torch.version}, {self.torch.words}; tests of PyTorch "
            f"{self.version or 'of an unknown version'}; {time.strftime('%Y-%m-%d')}, "
            f"{os.cpu_count()} CPUs.",
            self.replaced(),
            "",
            *(f"- {setting}: {words}" for setting, words in self.settings.items()),
            "",
            "Cells: passed/failed/skipped, and seconds.",
            "",
            "| file | tests | " + " | ".join(SETTINGS) + " |",
            "|---|---:" + "|---:" * len(SETTINGS) + "|",
        ]
        for name, runs in self.runs.items():
            tests = len({test for one in runs.values() for test in one.tests})
            cells = [
                f"{runs[setting].count()}, {runs[setting].seconds:.0f} s" if setting in runs else ""
                for setting in SETTINGS
            ]
            chosen = f"{name} {' '.join(FILES[name])}".strip()
            lines.append(f"| {chosen} | {tests} | " + " | ".join(cells) + " |")
        sections = {
            "Different with the hook idle": self.differences("idle"),
            "Different with an empty policy": self.differences("empty"),
            "Different under `safe`": self.differences("safe"),
            "Flaky: different in two runs without us": self.differences("again"),
        }
        for title, found in sections.items():
            lines += ["", f"## {title}: {len(found)}", *([""] if found else [])]
            for name, test, before, after in found:
                lines.append(f"- `{name}` `{test.rpartition('.')[2]}`: {before} → {after}")
        if unfinished := self.unfinished():
            lines += ["", "## Without results", "", *(f"- {one}" for one in unfinished)]
        if self.missing:
            lines += ["", f"Not in this checkout: {', '.join(self.missing)}."]
        return "\n".join(lines) + "\n"


def fill(report: Report, scratch: Path, tests: Path, only: str, out: Path | None) -> None:
    """Run the files, and keep *out* up to date meanwhile: all of them take most of an hour."""
    report.settings = check(report.torch, scratch / "check")
    for name in FILES:
        if not re.search(only, name):
            continue
        if not (tests / name).is_file():
            report.missing.append(name)
            continue
        report.runs[name] = {}
        for setting in SETTINGS:
            directory = scratch / name.replace("/", "-").removesuffix(".py") / setting
            done = run(report.torch, tests, name, setting, directory, foreign=report.foreign)
            report.runs[name][setting] = done
            print(f"{name} {setting}: {done.count()}, {done.seconds:.0f} s", file=sys.stderr)
            if out:
                out.write_text(report.text(), encoding="utf-8")


def main() -> int:
    """Run all, print the report."""
    parser = argparse.ArgumentParser(description="PyTorch's own tests, without us and with us")
    parser.add_argument(
        "checkout", type=Path, nargs="?", help="with PyTorch's test/ in it; else git fetches it"
    )
    parser.add_argument("--python", help="an interpreter that has torch")
    parser.add_argument("--work", type=Path, default=ROOT / ".work")
    parser.add_argument("--out", type=Path, help="a file for the report")
    parser.add_argument("--only", default="", help="a regular expression: which files")
    parser.add_argument(
        "--from",
        dest="address",
        metavar="ADDRESS",
        default=upstream_checkout.ADDRESS,
        help="where git fetches PyTorch's tests, by default %(default)s",
    )
    parser.add_argument("--wheel", type=Path, help="our wheel, else it is built here")
    asked = parser.parse_args()
    # A link is not followed: a venv is known by where its interpreter lies.
    python = asked.python and shutil.which(asked.python)
    if asked.python and not python:
        parser.error(f"--python: there is no program {asked.python}")
    try:
        checkout = asked.checkout and upstream_checkout.given(asked.checkout)
        # Another run would put another wheel under this one's tests.
        with hip_torch.lock(asked.work / "upstream" / "upstream.lock"):
            torch = find_torch(python and Path(python).absolute(), asked.work, asked.wheel)
            places = asked.work.resolve() / "upstream"
            if checkout is None:
                checkout = upstream_checkout.fetch(
                    torch.version, asked.address, places / "checkouts"
                )
            report = Report(torch, upstream_checkout.version(checkout))
            scratch = places / time.strftime("%Y%m%d-%H%M%S")
            fill(report, scratch, checkout / "test", asked.only, asked.out)
    except (CheckoutError, NotWhatItIsCalled, hip_torch.SurroundingsError) as problem:
        print(f"upstream: {problem}", file=sys.stderr)
        return 1
    print(report.text(), end="")
    compared = any(one.tests for runs in report.runs.values() for one in runs.values())
    differ = report.differences("idle") or report.differences("empty")
    return int(bool(differ) or not compared)


if __name__ == "__main__":
    sys.exit(main())
