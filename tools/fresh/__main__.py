"""Say what in policies, records, keys, switches and verdicts is no longer so.

    python -m tools.fresh [--checkout OWNER/NAME=PATH ...] [--json]

The newest wheels of torch, Triton, vLLM and SGLang are read from the index, and Dockerfiles and
lists of GPUs from checkouts that are named. Nothing of them is imported or run. Each finding is a
line. The exit status is 1 if there is a finding, 0 if there is none, and 2 if an index, a wheel or
a checkout can't be read, or for wrong usage.

``known.yaml`` beside this file has the differences that are accepted, each with a reason. One that
is no longer there is a finding, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tools.fresh import checks
from tools.fresh.dockerfiles import Checkout
from tools.fresh.finding import KNOWN, Finding, Findings, read_known
from tools.fresh.wheels import INDEX, Candidate, NotThere, Unpacked, Wheels

PROJECTS = ("torch", "triton", "vllm", "sglang")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fresh", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    wheels = parser.add_mutually_exclusive_group()
    wheels.add_argument("--index", default=INDEX, metavar="URL", help=f"instead of {INDEX}")
    wheels.add_argument("--wheels", type=Path, metavar="DIR", help="wheels that are here already")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what is read of wheels here"
    )
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        type=_checkout,
        metavar="OWNER/NAME=PATH",
        help="a checkout of a repository that known.yaml names, or its git directory; repeatable",
    )
    parser.add_argument("--known", type=Path, default=KNOWN, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    try:
        known = read_known(options.known)
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"{options.known}: {error}")
    strange = [name for name, _ in options.checkout if name not in known["checkouts"]]
    if strange:
        few = ", ".join(sorted(known["checkouts"]))
        parser.error(f"--checkout: {strange[0]} is none of {few}")
    if options.wheels and not options.wheels.is_dir():
        parser.error(f"--wheels: {options.wheels} is no directory")
    if options.wheels and not (options.checkout or any(options.wheels.glob("*.whl"))):
        parser.error(f"--wheels: {options.wheels} has no wheel, and there is no --checkout")
    with tempfile.TemporaryDirectory() as scratch:
        cache = options.cache or Path(scratch)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            found = look(
                Wheels(options.index, options.wheels, cache), known, options.checkout, cache
            )
        except (NotThere, OSError) as error:
            print(f"python -m tools.fresh: {error}", file=sys.stderr)
            return 2
    left, covered = found.judge(known["accepted"])
    _print(left, covered, found, options.json)
    return 1 if left else 0


def _checkout(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name.count("/") != 1 or not Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not OWNER/NAME=DIRECTORY")
    return name, Path(path)


def look(
    wheels: Wheels, known: dict[str, Any], checkouts: Sequence[tuple[str, Path]], cache: Path
) -> Findings:
    """All checks, of what is there. Raises NotThere."""
    found = Findings()
    found.look("torch-bound", "repository", checks.check_torch_bounds())
    newest: dict[str, Candidate] = {}
    for row in known["spoken"]:
        project = row["project"]
        if project not in newest:
            candidate = wheels.newest(project)
            if candidate is None:
                continue
            newest[project] = candidate
        found.look("framework-version", project, checks.check_spoken(row, newest[project]))
    offered = {name: newest.get(name) or wheels.newest(name) for name in PROJECTS}
    unpacked = [wheels.unpack(one) for one in offered.values() if one]
    for wheel in unpacked:
        _look_at_wheel(found, wheel)
    torch = offered["torch"]
    if torch:
        found.look("torch-release", "torch", checks.check_torch_release(torch))
    if unpacked:
        _look_at_readers(found, unpacked, cache)
    for name, path in checkouts:
        _look_at_checkout(found, name, Checkout(path), known)
    return found


def _look_at_wheel(found: Findings, wheel: Unpacked) -> None:
    found.look("source-gone", wheel.project, checks.check_cited(wheel))
    if wheel.project == "torch":
        rows = list(checks.check_keys(wheel))
        for kind in ("key-gone", "key-variables", "key-default"):
            found.look(kind, "torch", (one for one in rows if one.kind == kind))
    if wheel.project in checks.REGISTRIES:
        rows = list(checks.check_registry(wheel))
        for kind in ("variable-new", "registry-gone"):
            found.look(kind, wheel.project, (one for one in rows if one.kind == kind))
        found.look("override-new", wheel.project, checks.check_overrides(wheel))


def _look_at_readers(found: Findings, wheels: Sequence[Unpacked], cache: Path) -> None:
    told = checks.Reads(wheels, cache).tell(checks.judged_names())
    torch = checks.release_of_torch(wheels)
    rows = list(checks.check_readers(told, torch, [wheel.project for wheel in wheels]))
    for kind in ("variable-unread", "variable-read"):
        for wheel in wheels:
            own = (
                one
                for one in rows
                if one.kind == kind and one.subject.startswith(f"{wheel.project} ")
            )
            found.look(kind, wheel.project, own)


def _look_at_checkout(
    found: Findings, name: str, checkout: Checkout, known: dict[str, Any]
) -> None:
    rows = [row for row in known["images"] if row["repository"] == name]
    seen: list[Finding] = []
    for row in rows:
        seen += checks.check_image(row, checkout)
    named = {file for row in rows for file in row["files"]}
    pattern = known["checkouts"][name]
    if pattern:
        seen += checks.check_dockerfiles(name, pattern, named, checkout)
    seen += checks.check_targets(name, checkout)
    for kind in checks.KINDS_OF_CHECKOUTS:
        found.look(kind, name, (one for one in seen if one.kind == kind))


def _print(left: Sequence[Finding], covered: int, found: Findings, as_json: bool) -> None:
    if as_json:
        data = {
            "findings": [asdict(one) for one in left],
            "accepted": covered,
            "looked_at": sorted(f"{source}: {kind}" for kind, source in found.looked),
        }
        print(json.dumps(data, indent=2))
        return
    for line in _lines(left, covered, found):
        print(line)


def _lines(left: Sequence[Finding], covered: int, found: Findings) -> Iterator[str]:
    yield from map(str, left)
    sources = ", ".join(sorted({source for _, source in found.looked}))
    yield f"looked at {sources}: {len(left)} no longer so, {covered} accepted"


if __name__ == "__main__":
    sys.exit(main())
