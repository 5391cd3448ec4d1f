"""Interpreters inside a program: embedded in C, or several in one process.

A case's name is ``embedding/PYTHON/SCENE/HOW/STREAM``.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from experiments.torture import faults
from experiments.torture.bench import HERE, Bench
from experiments.torture.oracle import Start

IN_C = ("plain", "isolated", "again", "subs")
# Made by Python's own module for interpreters, whose name has changed.
IN_PYTHON = ("interpreters", "interpreters-isolated", "interpreters-threads")
STREAMS = ("as-is", *faults.STREAMS)
# It prints nothing whose order differs between two interpreters.
PROGRAM = (
    "import torch._inductor.config, torch._dynamo.config, sys; "
    "print(torch.__name__, torch._inductor.config.epilogue_fusion, "
    "sorted(n for n in sys.modules if n.startswith('torch')), flush=True)"
)
INTERPRETERS = (HERE / "programs" / "interpreters.py").read_text()


def _program(bench: Bench) -> str:
    """The embedding program, "" if this Python can't be embedded."""
    made = bench.home / "embed"
    if not made.exists():
        wanted = ("INCLUDEPY", "LIBDIR", "LDVERSION", "Py_ENABLE_SHARED")
        code = (
            "import json, sysconfig; "
            f"print(json.dumps([sysconfig.get_config_var(name) for name in {wanted}]))"
        )
        asked = subprocess.run(
            [bench.python, "-c", code],
            env={"ROCM_AUTOPATCH": "off"},
            stdout=subprocess.PIPE,
            check=True,
        )
        headers, libraries, version, shared = json.loads(asked.stdout)
        if not shared or not shutil.which("gcc") or not Path(headers, "Python.h").exists():
            return ""
        subprocess.run(
            [
                *("gcc", "-O1", "-o", made, HERE / "embed.c", f"-I{headers}", f"-L{libraries}"),
                *(f"-lpython{version}", f"-Wl,-rpath,{libraries}"),
            ],
            check=True,
        )
    return str(made)


def _datetime_twice(bench: Bench) -> bool:
    """Whether a second interpreter of a process can import datetime.

    Python 3.12.1 dies of it, "double free or corruption", without us too.
    """
    program = _program(bench)
    return (
        not program
        or not subprocess.run(
            [program, "again", bench.python, "import datetime"],
            env={"ROCM_AUTOPATCH": "off"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
    )


def names(bench: Bench, seed: int, count: int) -> Iterator[str]:
    """*count* cases of one Python, or all there are."""
    ways = (*(IN_C if _program(bench) else ()), *IN_PYTHON)
    cases = list(itertools.product(faults.SCENES, ways, STREAMS))
    if not _datetime_twice(bench):
        # PyYAML imports it.
        yaml = ("policy", "site")
        cases = [case for case in cases if case[0] not in yaml or case[1] != "again"]
    Random(seed).shuffle(cases)
    for scene, how, stream in cases[:count]:
        yield f"embedding/{bench.version}/{scene}/{how}/{stream}"


def run(bench: Bench, name: str) -> list[str]:
    """What is wrong with one program."""
    _, _, scene, how, stream = name.split("/")
    with bench.broken("rocm_autopatch/baked.plan"):
        env = faults.SCENES[scene](bench)
        start: Start = bench.start(
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            lines=6,
            setup=faults.STREAMS.get(stream),
        )
        command: tuple[str, ...]
        if how in ("plain", "isolated"):
            env = {**start.env, "TORTURE_OUT": str(bench.directory / "seen")}
            command = (_program(bench), how, bench.python, bench.watch, "torch")
        elif how in IN_C:
            env, command = dict(start.env), (_program(bench), how, bench.python, PROGRAM)
        else:
            program = bench.home / "interpreters.py"
            program.write_text(INTERPRETERS)
            env, command = dict(start.env), (bench.python, str(program), PROGRAM, how)
        # Each interpreter of a process may write its lines; there are at most four.
        count = 1 if how in ("plain", "isolated") else 4
        made = Start(command, env, lines=6 * count, interpreters=count, setup=start.setup)
        return bench.judge(made)
