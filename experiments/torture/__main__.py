"""Run the families, print cases and failures, exit 1 on any failure."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.torture import bench, embedding, faults, imports, signals, starts
from experiments.torture.bench import Bench

ROOT = Path(__file__).parent.parent.parent
RUNNING = "%d.%d" % sys.version_info[:2]
# A family: its module, what is counted, and how many of it the long run has.
FAMILIES: dict[str, tuple[Any, str, int]] = {
    "starts": (starts, "fuzzed starts", 10000),
    "faults": (faults, "starts where something fails", 6000),
    "signals": (signals, "signals", 2000),
    "imports": (imports, "concurrent imports", 1000),
    "embedding": (embedding, "embedded and several interpreters", 400),
}

_benches: dict[str, Bench] = {}
_templates: dict[str, Path] = {}
# In a worker process: where it may write, and whether it has an /etc of its own.
_run = Path()
_site = False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what is made up (1)")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these")
    for name, (_, what, count) in FAMILIES.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} ({count})")
    parser.add_argument("--pythons", nargs="+", default=[RUNNING], metavar="X.Y")
    parser.add_argument(
        "--environment", type=Path, help="a venv with the wheel, instead of a new one"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at once (1)")
    parser.add_argument("--work", type=Path, default=ROOT / ".work", help="where venvs are made")
    parser.add_argument("--keep", type=Path, help="where what failed is kept (WORK/torture/failed)")
    parser.add_argument("--case", action="append", help="run this case alone, and show it")
    parser.add_argument(
        "--markdown", action="store_true", help="print the rows of a Markdown table"
    )
    arguments = parser.parse_args()
    # A shell starts a background job with SIGINT ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = arguments.work.resolve() / "torture"
    keep = (arguments.keep or work / "failed").resolve()
    cases = arguments.case or []
    versions = sorted({case.split("/")[1] for case in cases}) or arguments.pythons
    for version in versions:
        try:
            made = arguments.environment or bench.make_template(work, version, ROOT)
        except pytest.skip.Exception as error:
            print(error)
        else:
            _templates[version] = made.resolve()
    versions = list(_templates)
    if cases:
        return _alone(cases, keep)
    chosen = arguments.family or list(FAMILIES)
    print(
        f"seed {arguments.seed}, Pythons {' '.join(versions)}, failing cases in {keep}", flush=True
    )
    table = []
    for name in chosen:
        _, what, count = FAMILIES[name]
        given = getattr(arguments, name)
        began = time.monotonic()
        tried, failed = _family(
            name, versions, arguments.seed, count if given is None else given, arguments.jobs, keep
        )
        table.append((name, what, tried, failed, time.monotonic() - began))
    _print(table, arguments.markdown)
    return 1 if any(row[3] for row in table) else 0


def _family(
    name: str, versions: list[str], seed: int, count: int, jobs: int, keep: Path
) -> tuple[int, int]:
    """How many cases of a family there were, and how many of them failed."""
    tried = failed = 0
    share = -(-count // len(versions))
    with _workers(jobs, keep) as pool:
        listed = [pool.submit(_names, name, v, seed, share).result() for v in versions]
        # In turn, so that a run that ends early has tried some of each.
        names = [one for one in itertools.chain(*itertools.zip_longest(*listed)) if one]
        for case, wrong, _ in pool.map(_try, names, itertools.repeat(str(keep)), chunksize=4):
            tried += 1
            if wrong:
                failed += 1
                print(f"FAILED {case}: {'; '.join(wrong)[-1000:]}", flush=True)
    return tried, failed


@contextlib.contextmanager
def _workers(jobs: int, keep: Path) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Processes that can write only to *keep* and to a directory that is removed at the end."""
    keep.mkdir(parents=True, exist_ok=True)
    # This process has none of their mounts, so only the directory itself is removed.
    with tempfile.TemporaryDirectory(prefix="torture-") as run:
        os.chmod(run, 0o755)
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (run, keep)) as pool:
            yield pool


def _begin(run: str, keep: Path) -> None:
    global _run, _site
    _run = Path(run, str(os.getpid()))
    _run.mkdir(mode=0o755)
    pythons = [(template / "bin" / "python").resolve() for template in _templates.values()]
    bases = {Path(sys.base_prefix).resolve(), *(python.parent.parent for python in pythons)}
    _site = bench.enter(_run, keep, bases)


def _bench(version: str) -> Bench:
    if version not in _benches:
        _benches[version] = Bench(_templates[version], _run, _site)
    return _benches[version]


def _names(family: str, version: str, seed: int, count: int) -> list[str]:
    names: Callable[..., Iterable[str]] = FAMILIES[family][0].names
    return list(names(_bench(version), seed, count))


def _try(name: str, keep: str) -> tuple[str, list[str], str]:
    """The case, what was wrong, and all that ran. If it failed, its files are kept."""
    place = _bench(name.split("/")[1])
    place.clean()
    try:
        wrong: list[str] = FAMILIES[name.split("/")[0]][0].run(place, name)
    except Exception:
        wrong = ["the harness: " + traceback.format_exc()]
    if wrong:
        place.keep(Path(keep), name, wrong)
    return name, wrong, "\n".join(f"{start}\n{outcome}" for start, outcome in place.last)


def _alone(cases: list[str], keep: Path) -> int:
    failures = 0
    with _workers(1, keep) as pool:
        for case in cases:
            _, wrong, shown = pool.submit(_try, case, str(keep)).result()
            print(shown)
            print(f"{case}: {'; '.join(wrong) or 'nothing wrong'}")
            failures += bool(wrong)
    return 1 if failures else 0


def _print(table: list[tuple[str, str, int, int, float]], markdown: bool) -> None:
    where = f"{platform.python_implementation()} on {platform.machine()}, {os.cpu_count()} cores"
    if markdown:
        for name, what, tried, failed, took in table:
            print(f"| `{name}` | {what} | {tried} | {failed} | {took / 60:.0f} min |")
    else:
        print(f"{'family':<10} {'cases':>7} {'failures':>9} {'seconds':>8}   {where}")
        for name, what, tried, failed, took in table:
            print(f"{name:<10} {tried:>7} {failed:>9} {took:>8.0f}   {what}")
    total = Counter(tried=sum(row[2] for row in table), failed=sum(row[3] for row in table))
    print(f"{total['tried']} cases, {total['failed']} failures")


if __name__ == "__main__":
    sys.exit(main())
