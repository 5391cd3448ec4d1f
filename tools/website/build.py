"""Build the documentation site and check it.

    python -m tools.website.build OUT

OUT/index.html is the way in; it needs no server and no network. Exits with 1 if a page has a
warning, a link that leads nowhere, or loads anything from elsewhere; stderr says which.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.website import check

ROOT = Path(__file__).resolve().parents[2]
# What index.html says in each site that was built here.
FRONT = "<title>rocm_autopatch</title>"


def build(source: Path, out: Path) -> int:
    """Build the site of the checkout *source* anew, and put it at *out* if nothing is wrong.

    Returns the exit status. Raises OSError if *out* can't be written.
    """
    if not replaceable(out):
        print(f"{out} is no site of ours: it stays as it is", file=sys.stderr)
        return 1
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside OUT, so that what is there is replaced by a rename, and only by a whole site.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as directory:
        made = Path(directory, "site")
        # -n and -W: a warning, also of a link, is an error.
        strict = ["-q", "-n", "-W", "--keep-going"]
        configuration, cache = source / "tools" / "website", Path(directory, "cache")
        places = ["-c", str(configuration), "-d", str(cache), str(source), str(made)]
        if build_main([*strict, *places]):
            return 1
        problems = list(check.problems(made))
        for problem in problems:
            print(problem, file=sys.stderr)
        if problems:
            return 1
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return 0


def replaceable(out: Path) -> bool:
    """Whether *out* holds nothing that is not ours: it is not there, empty, or such a site."""
    if not out.exists():
        return True
    front = out / "index.html"
    if front.is_file():
        return FRONT in front.read_text(encoding="utf-8", errors="replace")
    return out.is_dir() and not any(out.iterdir())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the documentation site and check it.")
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory of the site")
    out = parser.parse_args().out.resolve()
    try:
        status = build(ROOT, out)
    except OSError as error:
        print(f"the site can't be written: {error}", file=sys.stderr)
        return 1
    if not status:
        print(f"{out}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
