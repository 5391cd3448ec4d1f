"""Make docs/measurements.md from the result files in experiments/results/, the figures of
benchmarks/amd and the evidence files in evidence/.

python tools/measurements_page.py > docs/measurements.md

A result file NAME.yaml has what an experiment of that name measured. Its keys are those of
Measurement and Table. NAME.json is a run that ``python -m experiments --keep`` wrote.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.__main__ import MANIFEST, read_manifest
from tools import amd_table, evidence_table

RESULTS = MANIFEST.with_name("results")
PARTS = ("Starts", "Compiles", "Calls", "Caches", "Evidence")
HEAD = """\
# Measurements

Here are the figures of the project with command, machine and day, so you can repeat them. To
measure your own program, use [`ab`](ab.md):

```
rocm-autopatch ab --toggle policy=off,safe,performance -- python bench.py
```

**No AMD GPU has run any of it.** On an NVIDIA GPU, an assumed fact (`accelerator=rocm`) turned us
on: such a figure shows what Inductor does, and nothing of HIP. What is compared was measured by
turns in one run, unless a line says otherwise. All tables are in `experiments/results/`,
`benchmarks/amd/figures.jsonl` and `evidence/`, of which `make docs` makes this page."""


@dataclass(frozen=True)
class Table:
    """One table of figures. Cells and ``about`` are Markdown.

    ``shown`` are the columns that the page has: without it, all; if it is empty, the table is in
    the file alone. Without ``command``, it is the experiment's.
    """

    date: datetime.date
    machine: str
    columns: list[str]
    rows: list[list[str]]
    command: str = ""
    about: str = ""
    shown: list[str] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a row is too short or too long, or a shown column is not there."""
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row has not the columns {self.columns}")
        if missing := {*(self.shown or ())} - {*self.columns}:
            raise ValueError(f"there is no column {', '.join(sorted(missing))}")

    def ran(self, command: str) -> str:
        """What ran, where and when. *command* is the experiment's."""
        return f"`{self.command or command}`; {self.machine}; {self.date}."

    def lines(self) -> Iterator[str]:
        """The lines of the table."""
        shown = self.columns if self.shown is None else self.shown
        chosen = [self.columns.index(name) for name in shown]
        yield f"| {' | '.join(self.columns[i] for i in chosen)} |"
        yield "|---|" + "---:|" * (len(chosen) - 1)
        for row in self.rows:
            yield f"| {' | '.join(row[i] for i in chosen)} |"


@dataclass(frozen=True)
class Measurement:
    """A result file. ``part`` is one of PARTS, ``says`` what the figures show.

    ``notes`` are in the file alone. ``picture`` is a file of docs/.
    """

    name: str
    title: str
    part: str
    tables: list[Table]
    about: str = ""
    says: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    picture: str = ""

    def lines(self, command: str) -> Iterator[str]:
        """The lines of its section. *command* is the experiment's."""
        yield f"### {self.title}"
        said = self.tables[0].ran(command)
        yield from (said, "")
        for i, table in enumerate(one for one in self.tables if one.shown != []):
            ran = table.ran(command)
            yield from ("",) if i else ()
            yield from () if ran == said else (ran, "")
            about = [*filter(None, ("" if i else self.about, table.about))]
            yield from (*about, "") if about else ()
            yield from table.lines()
            said = ran
        if self.picture:
            yield from ("", f"![{self.title}]({self.picture})")
        if self.says and (self.picture or any(table.shown != [] for table in self.tables)):
            yield ""
        yield from (f"- {one}" for one in self.says)


def read_measurements(directory: Path = RESULTS) -> list[Measurement]:
    """The result files. Raises ValueError or TypeError if one has not the form."""
    found = []
    for path in sorted(directory.glob("*.yaml")):
        try:
            row = yaml.safe_load(path.read_text(encoding="utf-8"))
            row["tables"] = [Table(**table) for table in row["tables"]]
            one = Measurement(name=path.stem, **row)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None
        if one.part not in PARTS:
            raise ValueError(f"{path}: part is none of {', '.join(PARTS)}")
        found.append(one)
    return found


def _amd() -> Iterator[str]:
    return amd_table.section(amd_table.kept())


def _proven() -> Iterator[str]:
    return evidence_table.section(evidence_table.kept())


# Sections that other files than result files give.
OTHERS: Mapping[str, Callable[[], Iterator[str]]] = {"Compiles": _amd, "Evidence": _proven}


def page() -> Iterator[str]:
    """The lines of the page."""
    experiments = read_manifest()
    # In the order of the manifest.
    order = {name: i for i, name in enumerate(experiments)}
    measurements = sorted(read_measurements(), key=lambda one: order.get(one.name, len(order)))
    yield from HEAD.splitlines()
    for part in PARTS:
        yield from ("", f"## {part}")
        for one in measurements:
            if one.part == part:
                known = experiments.get(one.name)
                yield ""
                yield from one.lines(known.command if known else "")
        if part in OTHERS:
            yield ""
            yield from OTHERS[part]()
    yield from ("", "## Kept runs", "")
    for path in sorted(RESULTS.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        yield (
            f"- `{run['command']}`, {run['date']}: {experiments[run['name']].purpose}. "
            f"[What it wrote](../experiments/results/{path.name})."
        )


if __name__ == "__main__":
    print("\n".join(page()))
