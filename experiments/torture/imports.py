"""Concurrent imports of modules for which hooks wait, and of others, with all kinds of finders.

A case's name is ``imports/PYTHON/SCENE/KIND/SEED/NUMBER``; crowd.py has the kinds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from random import Random

from experiments.torture import faults, oracle
from experiments.torture.bench import HERE, Bench

# Kinds that depend on timing run more often.
KINDS = {
    "threads": 40,
    "finders": 20,
    "forks": 10,
    "circle": 8,
    "purge": 5,
    "quarrel": 5,
    "archive": 4,
    "specs": 3,
    "copies": 3,
    "reloads": 5,
}
SCENES = ("default", "default", "policy", "baked", "report")


def names(bench: Bench, seed: int, count: int) -> Iterator[str]:
    """*count* cases of one Python: each kind once, and then by chance."""
    random = Random(seed)
    for number in range(count):
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        if number < len(KINDS):
            kind = list(KINDS)[number]
        yield f"imports/{bench.version}/{random.choice(SCENES)}/{kind}/{seed}/{number}"


def run(bench: Bench, name: str) -> list[str]:
    """What is wrong with one process of many imports."""
    _, _, scene, kind, seed, number = name.split("/")
    program = bench.home / "crowd.py"
    if not program.exists():
        shutil.copy(HERE / "crowd.py", program)
    with bench.broken("rocm_autopatch/baked.plan"):
        env = {**faults.SCENES[scene](bench), "PYTHONWARNINGS": "ignore"}
        start = bench.start(kind, seed + number, program=str(program), env=env, lines=6)
        ours = bench.run(start)
        said = ours.stdout.decode(errors="replace").strip()
        if said == "as it should be":
            wrong = []
        else:
            # The program itself may be wrong.
            theirs = bench.run(start.off()).stdout.decode(errors="replace").strip()
            wrong = [said[-300:]] if said != theirs else []
        none = oracle.Outcome(0, b"", b"")
        return oracle.ended(start, ours, none) + wrong + oracle.lines(start, ours, none)
