"""The states of an interpreter that are compared."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from benchmarks.startup import environments
from benchmarks.startup.environments import NotMade, Place

IMAGE = "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"
# A variable that an image sets and the built-in policy deletes.
FIRST = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
BARE, CONTROL, PTH = "bare", "bare, a second venv", "bare, a .pth file with a comment"
BARE_CPU, BARE_CHILD = "bare, torch is no ROCm build", "bare, child"
OFF, NOTHING = "off", "nothing applies: torch is no ROCm build"
ACTIVE, BAKED = "active, first process of a tree", "baked, first process of a tree"
_END = "import json, os; print(json.dumps(dict(os.environ)))"
_SITECUSTOMIZE = """import wrapt


@wrapt.when_imported("torch")
def patch(module):
    pass
"""


@dataclass(frozen=True, eq=False)
class State:
    """An interpreter and an environment to start it with."""

    name: str
    python: Path
    env: Mapping[str, str]
    # The state that this one is compared with; None for a baseline.
    against: State | None = None
    ours: bool = False


@dataclass(frozen=True)
class Absent:
    """A state that is not possible here."""

    name: str
    why: str


Row = Union[State, Absent]


def bare_and_ours(place: Place, base: Mapping[str, str], every: bool) -> list[Row]:
    """The bare states, then ours: those that matter most, or *every* one."""

    def ours(name: str, venv: Path, against: State, **env: str) -> State:
        return State(name, environments.python(venv), {**base, **env}, against, True)

    def child(name: str, parent: State, against: State | None, ours: bool = True) -> State:
        return State(name, parent.python, _environment_after(parent), against, ours)

    plain, second = environments.venv(place, "bare"), environments.venv(place, "bare-2")
    with_pth = environments.venv(place, "bare-pth")
    (environments.site_packages(with_pth) / "comment.pth").write_text("# nothing\n")
    cpu = environments.venv(place, "bare-cpu", hip=None)
    hooked = environments.venv(place, "ours", [""])
    hooked_cpu = environments.venv(place, "ours-cpu", [""], hip=None)
    baked = environments.venv(place, "ours-baked", [""])
    _bake(baked, base)

    bare = State(BARE, environments.python(plain), base)
    pth = State(PTH, environments.python(with_pth), base, bare)
    bare_cpu = State(BARE_CPU, environments.python(cpu), base)
    off = ours(OFF, hooked, bare, ROCM_AUTOPATCH="off")
    nothing = ours(NOTHING, hooked_cpu, bare_cpu)
    active = ours(ACTIVE, hooked, bare, **FIRST)
    prepared = ours(BAKED, baked, bare, **FIRST)
    if not every:
        return [bare, pth, bare_cpu, off, nothing, active, prepared]

    source_only = environments.venv(place, "ours-source", [""])
    for cache in (environments.site_packages(source_only) / "rocm_autopatch").rglob("__pycache__"):
        shutil.rmtree(cache)
    for_image = environments.venv(place, "ours-baked-image", [""])
    _bake(for_image, base, "--image", IMAGE)
    bare_child = child(BARE_CHILD, bare, None, ours=False)
    return [
        bare,
        State(CONTROL, environments.python(second), base, bare),
        pth,
        bare_cpu,
        bare_child,
        off,
        nothing,
        active,
        child("active, child", active, bare_child),
        ours("active, image named", hooked, bare, ROCM_AUTOPATCH_IMAGE=IMAGE, **FIRST),
        prepared,
        child("baked, child", prepared, bare_child),
        ours("baked, image named", for_image, bare, **FIRST),
        ours("active, no .pyc of ours", source_only, bare, PYTHONDONTWRITEBYTECODE="1", **FIRST),
    ]


def others(place: Place, base: Mapping[str, str], bare: State) -> Iterator[Row]:
    """Other packages that a user may install for the same purpose."""
    exporters = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
    recipes: list[tuple[str, str, Callable[[Path], dict[str, str]]]] = [
        ("autowrapt", "idle", lambda venv: {}),
        ("autowrapt", "one bootstrap", lambda venv: {"AUTOWRAPT_BOOTSTRAP": "autowrapt.examples"}),
        ("importpatch", "idle", lambda venv: {}),
        ("coverage", "idle", lambda venv: {}),
        ("coverage", "COVERAGE_PROCESS_START", _coverage),
        ("wrapt", "sitecustomize with one hook", _sitecustomize),
        (
            "opentelemetry-distro",
            "sitecustomize, no exporter",
            lambda venv: {
                **_path(venv, "opentelemetry/instrumentation/auto_instrumentation"),
                **dict.fromkeys(exporters, "none"),
            },
        ),
        (
            "ddtrace",
            "sitecustomize, no telemetry",
            lambda venv: {
                **_path(venv, "ddtrace/bootstrap"),
                "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
                "DD_REMOTE_CONFIGURATION_ENABLED": "false",
            },
        ),
    ]
    for package, what, prepare in recipes:
        try:
            venv = environments.venv(place, package, [package])
        except NotMade as error:
            yield Absent(f"{package}, {what}", str(error))
            continue
        name = f"{package} {environments.version_of(venv, package)}, {what}"
        yield State(name, environments.python(venv), {**base, **prepare(venv)}, bare)


def _path(venv: Path, directory: str) -> dict[str, str]:
    return {"PYTHONPATH": str(environments.site_packages(venv) / directory)}


def _coverage(venv: Path) -> dict[str, str]:
    settings = venv / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {venv}/data\n", encoding="utf-8")
    return {"COVERAGE_PROCESS_START": str(settings)}


def _sitecustomize(venv: Path) -> dict[str, str]:
    path = environments.site_packages(venv) / "sitecustomize.py"
    if not path.is_file():
        path.write_text(_SITECUSTOMIZE, encoding="utf-8")
    return {}


def _bake(venv: Path, base: Mapping[str, str], *options: str) -> None:
    command = [str(environments.python(venv)), "-m", "rocm_autopatch", "bake", *options]
    done = subprocess.run(command, env=dict(base), capture_output=True, text=True)
    if done.returncode:
        raise NotMade(f"rocm_autopatch bake: {done.stderr.strip()}")


def _environment_after(state: State) -> dict[str, str]:
    """The environment of a child of this state."""
    command = [str(state.python), "-c", _END]
    done = subprocess.run(command, env=dict(state.env), capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
