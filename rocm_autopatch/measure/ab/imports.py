"""What a Python program takes to import its modules, told apart from what it does then.

The interpreter itself says it, by ``-X importtime``: a line on stderr for each module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rocm_autopatch.measure.ab.numbers import NumberLabel

# The wall time of a run less its imports.
WITHOUT = NumberLabel("time without imports", "s")
# Less than this part of the wall time is not worth a row.
WORTH = 0.05
_LINE = re.compile(r"^import time: +[0-9]+ \| +([0-9]+) \| ( *)\S.*\n?", re.MULTILINE)
_HEAD = re.compile(r"^import time: self \[us\] .*\n?", re.MULTILINE)


def traced_program(program: Sequence[str], path: str, python: Sequence[str]) -> list[str]:
    """*program*, found at *path*, telling its imports; *python* is the interpreter it starts."""
    tells = ("-X", "importtime")
    if path == python[0]:
        return [path, *tells, *program[1:]]
    return [*python, *tells, path, *program[1:]]  # A script whose first line names it.


def read_import_times(stderr: str) -> tuple[float, str]:
    """The seconds that imports took in all, and *stderr* without the lines about them."""
    # The time of a module has those that it imports. They are indented below it.
    took = sum(int(line[1]) for line in _LINE.finditer(stderr) if not line[2])
    return took / 1e6, _LINE.sub("", _HEAD.sub("", stderr))
