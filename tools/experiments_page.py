"""Make docs/experiments.md from experiments/manifest.yaml.

python tools/experiments_page.py > docs/experiments.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.__main__ import NONE_YET, NOT_SAID, Experiment, read_manifest

HEAD = """\
# Experiments: what is run by hand or by night

Made by `make docs` from `experiments/manifest.yaml`; a test fails when it is stale. Tests of each
change are in `tests/`. What takes hours, or needs a GPU, a network or others' programs, is here.

```sh
make experiment                                  # the list
make experiment NAME=matrix                      # runs one, by .work/dev/bin/python
make experiment NAME=compare WITH=python3        # by an interpreter with torch and the wheel
python3 -m experiments entries --at-once 4       # the same without make; options go to the command
python3 -m experiments --keep entries            # and writes experiments/results/entries.json
```

The exit status is the experiment's. `--keep` writes the date, the versions of Python and torch, the
machine's CPU, cores and GPUs, the command, its exit status, seconds and last lines. Names of
machines and their paths are left out. To have the page name that file, put it and its date into the
manifest, and run `make docs`.

In a command, `python` and `PYTHON` are the interpreter that runs the experiment, and `WORK` is
`.work/experiments/NAME`. *The wheel* means that our package is installed there. `?`: nobody said
how many minutes it takes. A machine "not said" is one that the record does not name."""
TABLE = """\
| name | what it shows | needs | minutes | last run |
|---|---|---|---:|---|"""


def page(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD.splitlines()
    for title, found in grouped(experiments.values()):
        yield from ("", f"## {title}", *TABLE.splitlines())
        yield from map(row, found)
        for one in found:
            yield from ("", *section(one))


def grouped(experiments: Iterable[Experiment]) -> Iterator[tuple[str, list[Experiment]]]:
    """The experiments by where they run. A group that has none is left out."""
    groups: dict[str, list[Experiment]] = {"By night": [], "On a GPU": [], "Without a GPU": []}
    for one in experiments:
        gpu = "On a GPU" if one.needs.gpus else "Without a GPU"
        groups["By night" if one.nightly else gpu].append(one)
    return ((title, found) for title, found in groups.items() if found)


def row(one: Experiment) -> str:
    """The line of a table."""
    minutes = "?" if one.minutes is None else f"{one.minutes:g}"
    cells = (f"[`{one.name}`](#{one.name})", one.purpose, one.needs.words(), minutes)
    return f"| {' | '.join(cells)} | {one.last_run} |"


def section(one: Experiment) -> Iterator[str]:
    """What else is known of an experiment."""
    yield f"### `{one.name}`"
    yield f"`{one.command}`. {ran(one)}"
    if one.wanted:
        yield f"A run {one.wanted} is wanted."
    if one.notes:
        yield ""
        yield one.notes


def ran(one: Experiment) -> str:
    """When and where it ran, and where the result is."""
    if one.last_run == NONE_YET:
        return "It was not run yet."
    date = "date not said" if one.last_run == NOT_SAID else str(one.last_run)
    machine = "machine not said" if one.machine == NOT_SAID else one.machine
    return f"Last run: {date}; {machine}. Result: {link(one.result)}."


def link(result: str) -> str:
    """A result as a link from a page in docs/."""
    if result in (NONE_YET, NOT_SAID):
        return result
    below = result.removeprefix("docs/")
    if below == result and ".md" in result:
        return f"`{result}`"  # No page of the site.
    address = below if below != result else f"../{result}"
    return f"[{below.partition('#')[0].rpartition('/')[2]}]({address})"


if __name__ == "__main__":
    print("\n".join(page(read_manifest())))
