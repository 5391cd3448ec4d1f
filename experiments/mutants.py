"""Whether what runs after each change finds faults that are planted in the package.

    python experiments/mutants.py [NUMBER ...] [--work DIRECTORY] [--torch PYTHON]

mutants.yaml lists the faults, each with the tests that have to find it. A fault is put into a copy
of the checkout, and these tests run there, without what .ci/run leaves out. Tests of graphs
(tests/graphs, with a stand-in for the GPU) run with PYTHON, which has torch and pytest; without it,
their faults are not tried. A line says of each which test has found it. The exit status is 1 if one
was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEPT = "not later and not nightly"
# A fault may make a program wait for ever.
LONGEST_S = 600


def copy_checkout(place: Path) -> None:
    """The files that git knows, without its history."""
    shutil.rmtree(place, ignore_errors=True)
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, names.split("\0")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)


# An editable install imports the package at the interpreter's start, from the checkout.
_PYTEST = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
    del sys.modules[name]
sys.path.insert(0, ".")
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


GRAPHS = "tests/graphs/"
_OF_GRAPHS = ["-c", os.devnull, "--noconftest", "--rootdir", ".", "-W", "ignore"]


def run_tests(place: Path, tests: list[str], environ: dict[str, str], torch: str) -> str:
    """The test that fails first in *place*, "" if none does. Raises ValueError."""
    of_graphs = tests[0].startswith(GRAPHS)
    python, how = (torch, _OF_GRAPHS) if of_graphs else (sys.executable, ["-m", KEPT])
    if not python:
        raise ValueError("--torch says with which Python")
    # Those turn our graphs on themselves.
    environ = {**environ, "ROCM_AUTOPATCH": "off"} if of_graphs else environ
    command = [python, "-c", _PYTEST, "-x", "-q", "-p", "no:cacheprovider", *how]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=place,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return f"tests that did not end within {LONGEST_S} s"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"tests that end by signal {-done.returncode}"
    found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if not found:
        raise ValueError(done.stdout[-500:] + done.stderr[-500:])
    return found[1]


def find_fault(place: Path, mutant: dict[str, Any], environ: dict[str, str], torch: str) -> str:
    """What run_tests() says with a fault in *place*. Raises ValueError; also if it says so without
    the fault."""
    file = place / mutant["file"]
    text = file.read_text(encoding="utf-8")
    if text.count(mutant["before"]) != 1:
        raise ValueError(f"{mutant['file']} has not one {mutant['before']!r}")
    try:
        file.write_text(text.replace(mutant["before"], mutant["after"]), encoding="utf-8")
        found = run_tests(place, mutant["tests"], environ, torch)
    finally:
        file.write_text(text, encoding="utf-8")
    if found.startswith("tests/") and run_tests(place, [found], environ, torch):
        raise ValueError(f"{found} fails without the fault, too")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="these alone, from 1 on")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "mutants")
    parser.add_argument("--torch", default="", help="a Python with torch, for tests of graphs")
    asked = parser.parse_args()
    mutants = yaml.safe_load((HERE / "mutants.yaml").read_text(encoding="utf-8"))
    work = Path(os.environ.get("ROCM_AUTOPATCH_TEST_WORK", ROOT / ".work")).absolute()
    environ = {**os.environ, "ROCM_AUTOPATCH_TEST_WORK": str(work)}
    copy_checkout(asked.work)
    missed = 0
    for number, mutant in enumerate(mutants, 1):
        if asked.numbers and number not in asked.numbers:
            continue
        began = time.monotonic()
        try:
            found = find_fault(asked.work, mutant, environ, asked.torch) or "NOT FOUND"
        except ValueError as error:
            found = f"NOT TRIED: {error}"
        missed += found.startswith("NOT")
        seconds = time.monotonic() - began
        print(f"{number:2} {seconds:4.0f} s  {mutant['file']}: {found}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
