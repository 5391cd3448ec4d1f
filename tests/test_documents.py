"""Documents of earlier releases hold: what they were, today's code still reads and still writes.

tests/data/documents has a directory for each release. ``given`` there is what users and machines
wrote: policies, image records, evidence. Beside it is what each command printed as JSON for them.
RELEASING.md says what may become of it. ``make documents`` writes those of this release.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from rocm_autopatch.evidence import file
from tests.conftest import FILL, ROOT, Interpreter
from tests.programs import program_file
from tests.test_json_schema import EVIDENCE, IMAGES, VALIDATOR
from tools import dist

DOCUMENTS = ROOT / "tests" / "data" / "documents"
RELEASES = sorted((path.name for path in DOCUMENTS.iterdir()), key=Version)
# The documents of this release are written, and nothing is compared.
WRITE = "ROCM_AUTOPATCH_TEST_DOCUMENTS" in os.environ
compares = pytest.mark.skipif(WRITE, reason="documents are written now")

FACTS = {
    "image": "rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129",
    "gfx": "gfx942",
    "proven": "graphs cudagraphs",
    "gains": "graphs",
}
ASSUMED = tuple(
    word
    for name, value in FACTS.items()
    for word in (("--image", value) if name == "image" else ("--assume", f"{name}={value}"))
)
PROGRAM = """
import os
with open("runs", "a") as stream:
    stream.write("x")
runs = os.path.getsize("runs")
print("latency: %.4f ms" % (10 - 2 * (os.environ.get("GOOD") == "1") + runs % 3 / 1000))
print("loss: 0.5")
"""
COMPILED = program_file("documents/compiled.py").read_text()
ONCE = ("--repeat", "1", "--warmup", "0", "--caches", "cold")
TUNED = (
    "--only",
    "GOOD",
    "--toggle",
    "GOOD=1",
    "--metric",
    "latency",
    "--same",
    "loss",
    "--seed",
    "1",
)


@dataclass(frozen=True)
class Command:
    """A command, the ones that have to run before it, and its exit status.

    PYTHON stands for the interpreter.
    """

    words: tuple[str, ...]
    before: Sequence[tuple[str, ...]] = ()
    status: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


WARM = ("cache", "warm", "--", "PYTHON", "fill.py")
PACK = ("cache", "pack", "caches.tar.gz", "--json")
# By the name of what it printed. In these, torch is a package without modules. tests/test_prove.py
# has prove, which takes minutes.
COMMANDS = {
    "status-no-torch": Command(("status", "--no-torch", "--json")),
    "status-line": Command(("status", "--no-torch", "--line")),
    "explain": Command(("explain", "--no-torch", "--json", "TORCHINDUCTOR_MAX_AUTOTUNE")),
    "policies": Command(("policies", "--json")),
    "check": Command(("check", "--json", "wrong.yaml", "given/team.yaml"), status=1),
    "bake": Command(("bake", "--out", "baked", "--json"), env={"ROCM_AUTOPATCH_ASSUME": ""}),
    "cache-status": Command(("cache", "status", "--json"), [WARM]),
    "cache-pack": Command(PACK, [WARM]),
    "cache-seed": Command(("cache", "seed", "caches.tar.gz", "--replace", "--json"), [WARM, PACK]),
    "cache-gc": Command(("cache", "gc", "--max", "50G", "--json"), [WARM]),
    "ab": Command(("ab", "--json", "--toggle", "GOOD=,1", *ONCE, "--", "PYTHON", "program.py")),
    "tune-list": Command(("tune", "--list", "--json", "--", "PYTHON", "program.py")),
    "tune": Command(("tune", "--json", *TUNED, "--", "PYTHON", "program.py")),
}
REPORTED = ("run", "--report", "report", "--", "PYTHON", "compiled.py")
WITH_TORCH = {
    "status": Command(("status", "--json")),
    "probe": Command(
        ("probe", "--json", *ASSUMED), status=1, env={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    ),
    "report": Command(("report", "report", "--json"), [REPORTED]),
}


def print_document(command: Command, python: Interpreter, given: Path, place: Path) -> Any:
    """The JSON that *command* prints in *place*, for what is in *given*."""
    # Nobody but this user may change what a start obeys, whoever has the checkout.
    shutil.copytree(given, place / "given", copy_function=shutil.copyfile)
    site = place / "site"
    shutil.copytree(given / "evidence", site / "evidence", copy_function=shutil.copyfile)
    shutil.copyfile(given / "images.yaml", site / "images.yaml")
    for name, text in (("program", PROGRAM), ("compiled", COMPILED), ("fill", FILL)):
        (place / f"{name}.py").write_text(text)
    (place / "wrong.yaml").write_text("version: 1\ndescriptio: x\nconfigs: {}\n")
    env = {
        "HOME": str(place),
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "ROCM_AUTOPATCH_LOG": "quiet",
        "ROCM_AUTOPATCH_CACHE": str(place / "caches"),
        "ROCM_AUTOPATCH_POLICY": str(place / "given" / "team.yaml"),
        "ROCM_AUTOPATCH_SITE": str(site),
        "ROCM_AUTOPATCH_KEEP": "TEAM_KEPT",
        "ROCM_AUTOPATCH_GIVEN": "TEAM_GIVEN",
        "ROCM_AUTOPATCH_ASSUME": ",".join("%s=%s" % item for item in FACTS.items()),
        **command.env,
    }
    for words in (*command.before, command.words):
        words = tuple(str(python.path) if word == "PYTHON" else word for word in words)
        done = python.run("-m", "rocm_autopatch", *words, env=env, cwd=place, check=False)
    assert done.returncode == command.status, done.stderr
    return json.loads(done.stdout)


KINDS = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "null"}


# Objects whose keys are names of things: which there are depends on the machine and on torch.
DIGESTED = ("digest_parts.policy", "digest_parts.config", "digest_parts.variables")
NAMED = ("facts", "fixed", "operations", "kinds", "library", *DIGESTED)


def fields(document: object, path: str = "") -> dict[str, set[str]]:
    """The kinds of value that stand at each path of a document; all items of a list have one."""
    found: dict[str, set[str]] = {}
    inner: list[tuple[str, object]] = []
    if isinstance(document, dict):
        found[path] = {"object"}
        named = path.endswith(NAMED)
        inner = [(f"{path}.{'*' if named else key}", value) for key, value in document.items()]
    elif isinstance(document, list):
        found[path] = {"list"}
        inner = [(f"{path}[]", value) for value in document]
    else:
        found[path] = {KINDS[type(document)]}
    for place, value in inner:
        for key, kinds in fields(value, place).items():
            found.setdefault(key, set()).update(kinds)
    return found


def lost(yesterday: object, today: object) -> list[str]:
    """What a reader of yesterday's document would miss in today's, or could not understand."""
    before, now = fields(yesterday), fields(today)
    problems = [f"{path} is gone" for path in before if path not in now]
    for path, kinds in before.items():
        # Where there was only null, nothing is known of the kind.
        new = now.get(path, set()) - kinds if kinds != {"null"} else set()
        problems += [f"{path} was {' or '.join(sorted(kinds))}, and is {kind}" for kind in new]
    return sorted(problems)


def kept(name: str) -> Iterator[tuple[str, Any]]:
    """What each release that had the command printed."""
    for release in RELEASES:
        path = DOCUMENTS / release / f"{name}.json"
        if path.exists():
            yield release, json.loads(path.read_text())


def write(name: str, document: object, python: Interpreter, place: Path) -> None:
    """Add a document to those of this release, without the paths of this machine."""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    text = text.replace(str(place), "/home/user")
    text = text.replace(str(python.path.parent.parent), "/opt/venv")
    (DOCUMENTS / dist.version(ROOT) / f"{name}.json").write_text(text)


def hold_printed(name: str, printed: object, python: Interpreter, place: Path) -> None:
    """Compare what a command that is given nothing printed with what it printed in each release."""
    if WRITE:
        write(name, printed, python, place)
        return
    for release, document in kept(name):
        assert lost(document, printed) == [], release


def hold(name: str, command: Command, python: Interpreter, place: Path) -> None:
    """Compare with what each release printed, or write what this one prints."""
    if WRITE:
        given = DOCUMENTS / dist.version(ROOT) / "given"
        if not given.exists():
            shutil.copytree(DOCUMENTS / RELEASES[-1] / "given", given)
        write(name, print_document(command, python, given, place), python, place)
        return
    for release, document in kept(name):
        (place / release).mkdir()
        made = print_document(command, python, DOCUMENTS / release / "given", place / release)
        if name == "explain":
            # The rows of keys whose default the variable gives came later, and are other rows.
            made = [row for row in made if not row["variable"]]
        assert lost(document, made) == [], release


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints(name: str, python311: Interpreter, tmp_path: Path) -> None:
    hold(name, COMMANDS[name], python311, tmp_path)


@pytest.mark.parametrize("name", WITH_TORCH)
def test_what_a_command_prints_of_torch(
    name: str, torch_python: Interpreter, tmp_path: Path
) -> None:
    hold(name, WITH_TORCH[name], torch_python, tmp_path)


# What a policy asks for. What became of it depends on the release, too.
ASKED = {
    "env": ("name", "action", "wanted", "layer", "why", "status"),
    "config": ("name", "strength", "wanted", "yields_to", "switch", "layer", "why"),
    "compile_modes": ("name", "wanted", "layer", "why"),
    "capture": ("name", "wanted", "layer", "why"),
    "watchdog": ("name", "wanted", "layer", "why"),
    "recompiles": ("name", "wanted", "layer", "why"),
    "ranks": ("name", "wanted", "layer", "why"),
}


def asked(report: Mapping[str, Any]) -> dict[str, list[dict[str, object]]]:
    # Which variables lead to the caches is the release's own choice.
    return {
        section: [
            {name: row[name] for name in names}
            for row in report[section]
            if row["layer"] != "ROCM_AUTOPATCH_CACHE"
        ]
        for section, names in ASKED.items()
    }


@compares
@pytest.mark.parametrize("release", RELEASES)
def test_a_policy_means_what_it_meant(release: str, python311: Interpreter, tmp_path: Path) -> None:
    printed = dict(kept("status-no-torch"))[release]
    given = DOCUMENTS / release / "given"
    report = print_document(COMMANDS["status-no-torch"], python311, given, tmp_path)
    assert report["errors"] == []
    assert asked(report) == asked(printed)
    assert all(asked(printed).values())


@pytest.mark.parametrize("release", RELEASES)
def test_evidence_is_read(release: str) -> None:
    for path in (DOCUMENTS / release / "given").glob("evidence/*.json"):
        document = json.loads(path.read_text())
        EVIDENCE.validate(document)
        found = file.read_evidence(path)
        assert found.by in RELEASES
        assert {name: said["sound"] for name, said in found.subjects.items()} == {
            name: said["sound"] for name, said in document["subjects"].items()
        }


@pytest.mark.parametrize("release", RELEASES)
def test_editors_accept_the_files(release: str) -> None:
    given = DOCUMENTS / release / "given"
    for path in given.glob("*.yaml"):
        which = IMAGES if path.name == "images.yaml" else VALIDATOR
        which.validate(yaml.safe_load(path.read_text()))


@compares
def test_this_release_has_documents() -> None:
    assert dist.version(ROOT) in RELEASES


YESTERDAY = {"a": 1, "rows": [{"b": "text"}, {"b": None, "c": [True]}], "d": None}


@pytest.mark.parametrize(
    ("today", "problems"),
    [
        (YESTERDAY, []),
        ({**YESTERDAY, "a": 1.5, "d": "known now", "new": {}}, []),
        ({**YESTERDAY, "a": "1"}, [".a was number, and is text"]),
        ({**YESTERDAY, "a": None}, [".a was number, and is null"]),
        ({**YESTERDAY, "rows": [{"b": "text", "c": [True], "new": 1}]}, []),
        ({**YESTERDAY, "rows": [{"b": "text"}]}, [".rows[].c is gone", ".rows[].c[] is gone"]),
        ({"a": 1, "rows": YESTERDAY["rows"]}, [".d is gone"]),
    ],
)
def test_what_is_lost(today: object, problems: list[str]) -> None:
    assert lost(YESTERDAY, today) == problems
