"""Build the documentation site and check it.

    python -m tools.website.build OUT

OUT/index.html is the way in; it needs no server and no network. Exits with 1 if a page has a
warning, a link that leads nowhere, or loads anything from elsewhere; stderr says which.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.website import check

ROOT = Path(__file__).resolve().parents[2]


def build(source: Path, out: Path) -> int:
    """Build the site of the checkout *source* anew. Returns the exit status."""
    if out.exists() and not (out / ".buildinfo").exists() and any(out.iterdir()):
        print(f"{out} is no site: it stays as it is", file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    # -n and -W: a warning, also of a link, is an error. Each page is read anew, in 8 seconds.
    strict = ["-q", "-n", "-W", "--keep-going", "-E"]
    configuration = source / "tools" / "website"
    cache = out.parent / f"{out.name}-cache"
    places = ["-c", str(configuration), "-d", str(cache), str(source), str(out)]
    if build_main([*strict, *places]):
        return 1
    problems = list(check.problems(out))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the documentation site and check it.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory of the site")
    out = parser.parse_args().out.resolve()
    status = build(ROOT, out)
    if not status:
        print(f"{out}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
