"""The command that says what is stale: each kind of finding planted once, in small wheels."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch.patches.config import TARGETS
from rocm_autopatch.policy import lint, load, select
from rocm_autopatch.probe import variables
from tests.conftest import ROOT
from tests.programs import program_file
from tools.fresh import __main__ as fresh
from tools.fresh import checks
from tools.fresh.dockerfiles import expand, read_stages
from tools.fresh.finding import read_known
from tools.fresh.sources import UNKNOWN, ConfigSource, overrides
from tools.fresh.wheels import Wheels
from tools.torch_keys import VERSIONS

# A wheel's files, by project. What stands in for a checkout, by path.
Files = dict[str, dict[str, str]]
FACTS = {"accelerator": "rocm", "framework": "vllm", "framework_version": "0.33.0", "rocm": "7.2.3"}
GPUS = '\n# A comment\ntherock_add_amdgpu_target(gfx942 "MI300A/MI300X CDNA" FAMILY dcgpu-all)\n'


def torch_files() -> dict[str, str]:
    """The config modules of a torch that is as our table of keys says."""
    keys = lint.keys(lint.known_versions()[-1])
    found = {}
    for module in TARGETS:
        lines, classes = ["import os"], dict[str, list[str]]()
        for full, record in sorted(keys.items()):
            owner, name = variables.split_key(full)
            if owner != module:
                continue
            default = repr(record.default) if record.has_default else "object()"
            given = {"env_name_force": record.env_force, "env_name_default": record.env_default}
            words = [f"{word}={list(names)!r}" for word, names in given.items() if names]
            words += [f"e{n}=os.environ.get({one!r})" for n, one in enumerate(record.env)]
            head, _, last = name.rpartition(".")
            line = f"{last}: object = Config({', '.join([f'default={default}', *words])})"
            (classes.setdefault(head, []) if head else lines).append(line)
        for name, inner in classes.items():
            lines += [f"class {name}:", *(f"    {line}" for line in inner)]
        found[module.replace(".", "/") + ".py"] = "\n".join(lines) + "\n"
    return found


def version_in(file: str, pattern: str) -> str:
    """The newest version that a page of ours speaks of."""
    found = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"))
    return max(map(str, found), key=lambda text: tuple(map(int, text.split("."))))


SPOKEN = [row for row in read_known()["spoken"] if row["project"] in ("vllm", "sglang")]
VERSION = {
    "torch": VERSIONS[-1],
    "triton": "3.9.0",
    **{row["project"]: version_in(row["file"], row["text"]) for row in SPOKEN},
}


def clean_wheels() -> Files:
    """Wheels of which nothing is stale, but for variables that nothing reads."""
    cited = set(re.findall(r"\b(?:torch|triton|vllm|sglang)/[\w./]+\.py\b", checks_text()))
    wheels: Files = {project: {} for project in VERSION}
    for file in cited:
        wheels[file.partition("/")[0]][file] = "# A verdict cites it.\n"
    wheels["torch"].update(torch_files())
    wheels["vllm"]["vllm/envs.py"] = 'import os\nknown = {"VLLM_PORT": lambda: 1}\n'
    wheels["sglang"]["sglang/srt/environ.py"] = "SGLANG_PORT = EnvInt(1)\n"
    return wheels


def checks_text() -> str:
    return (ROOT / "rocm_autopatch/probe/variables.yaml").read_text(encoding="utf-8")


def dockerfile() -> str:
    """A Dockerfile that does what the records say of vLLM on ROCm 7.2."""
    said = {one.name: one.value for row in select.records(load.images(), FACTS) for one in row.sets}
    lines = [f'ENV {name}="{value}"' for name, value in said.items()]
    return "\n".join(
        ["ARG BASE=rocm/dev:7.2.3", "FROM ${BASE} AS base", *lines, "FROM base AS final"]
    )


class Place:
    """Wheels, checkouts and accepted differences in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = clean_wheels()
        self.versions = dict(VERSION)
        self.files = {"docker/Dockerfile.rocm": dockerfile()}
        self.gpus = GPUS
        bounds = [row for row in read_known()["accepted"] if row["kind"] == "torch-bound"]
        self.known: dict[str, Any] = {
            "checkouts": {"vllm-project/vllm": "docker/Dockerfile.ro*", "ROCm/TheRock": ""},
            "spoken": SPOKEN,
            "images": [
                {
                    "name": "vllm",
                    "repository": "vllm-project/vllm",
                    "files": ["docker/Dockerfile.rocm"],
                    "stage": "final",
                    "facts": FACTS,
                    "seen": {"BASE": "rocm/dev:7.2.3"},
                }
            ],
            "accepted": [{k: v for k, v in row.items() if k != "line"} for row in bounds],
        }

    def read(self, project: str, *names: str) -> None:
        """Have a wheel read some variables."""
        lines = [f"os.environ.get({name!r})" for name in names]
        text = "\n".join(["import os", *lines]) + "\n"
        file = f"{project}/reads.py"
        self.wheels[project][file] = self.wheels[project].get(file, "") + text

    def write(self) -> list[str]:
        """Write everything. Returns the arguments that name it."""
        (self.root / "wheels").mkdir(exist_ok=True)
        for project, files in self.wheels.items():
            write_wheel(self.root / "wheels", project, self.versions[project], files)
        for name, files in (
            ("vllm", self.files),
            ("therock", {"cmake/therock_amdgpu_targets.cmake": self.gpus}),
        ):
            for file, text in files.items():
                (self.root / name / file).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name / file).write_text(text, encoding="utf-8")
        (self.root / "known.yaml").write_text(yaml.safe_dump(self.known), encoding="utf-8")
        return [
            *("--known", str(self.root / "known.yaml"), "--wheels", str(self.root / "wheels")),
            *("--cache", str(self.root / "cache")),
            *("--checkout", f"vllm-project/vllm={self.root / 'vllm'}"),
            *("--checkout", f"ROCm/TheRock={self.root / 'therock'}"),
        ]


def write_wheel(directory: Path, project: str, version: str, files: Mapping[str, str]) -> Path:
    directory.mkdir(exist_ok=True)
    wheel = directory / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = fresh.main([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, found


@pytest.fixture(scope="session")
def unread(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The variables that the wheels have to read so that nothing is stale."""
    place = Place(tmp_path_factory.mktemp("unread"))
    output = place.root / "output"
    with output.open("w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        fresh.main([*place.write(), "--json"])
    rows = json.loads(output.read_text(encoding="utf-8"))["findings"]
    assert {row["kind"] for row in rows} == {"variable-unread"}
    return [row["subject"] for row in rows]


@pytest.fixture
def place(tmp_path: Path, unread: list[str]) -> Place:
    """A place where nothing is stale."""
    made = Place(tmp_path)
    for subject in unread:
        made.read(*subject.split())
    return made


def test_nothing_is_stale(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = place.write()
    status, found = run(capsys, *arguments)
    assert found["findings"] == []
    assert status == 0
    # Everything was looked at, and the words are kept.
    assert {"torch: key-default", "vllm: variable-unread", "ROCm/TheRock: gpu-new"} <= {
        *found["looked_at"]
    }
    assert fresh.main(arguments) == 0
    assert "0 no longer so, 1 accepted" in capsys.readouterr().out


def edit(file: str, project: str, old: str, new: str, place: Place) -> None:
    text = place.wheels[project][file]
    assert re.search(old, text, re.MULTILINE)
    place.wheels[project][file] = re.sub(old, new, text, count=1, flags=re.MULTILINE)


def add(project: str, file: str, text: str, place: Place) -> None:
    place.wheels[project][file] = place.wheels[project].get(file, "") + text


def drop(project: str, file: str, place: Place) -> None:
    del place.wheels[project][file]


def forget(name: str, place: Place) -> None:
    project = checks.owner(name)
    edit(f"{project}/reads.py", project, re.escape(f"os.environ.get({name!r})"), "", place)


def newer(project: str, place: Place) -> None:
    place.versions[project] = "99.0.0"


def docker(old: str, new: str, place: Place) -> None:
    text = place.files["docker/Dockerfile.rocm"]
    assert old in text
    place.files["docker/Dockerfile.rocm"] = text.replace(old, new)


def docker_file(place: Place) -> None:
    place.files["docker/Dockerfile.rocm_99"] = "FROM scratch"


def gpu(line: str, place: Place) -> None:
    place.gpus += line


def accept(place: Place) -> None:
    row = {"kind": "variable-new", "subjects": ["vllm VLLM_GONE"], "reason": "A test."}
    place.known["accepted"].append(row)


CONFIG = "torch/_inductor/config.py"
# By kind: the plant, the finding's subject (* is anything), and a part of what is so now.
PLANTED: dict[str, tuple[Callable[[Place], None], str, str]] = {
    "torch-release": (functools.partial(newer, "torch"), "torch", "there is 99.0.0"),
    "key-gone": (
        functools.partial(edit, CONFIG, "torch", "^max_autotune: ", "max_autotuned: "),
        "torch torch._inductor.config.max_autotune",
        "has none",
    ),
    "key-variables": (
        functools.partial(
            edit, CONFIG, "torch", r"^(epilogue_fusion: .*)\)$", r"\1, e9=os.getenv('X_Y'))"
        ),
        "torch torch._inductor.config.epilogue_fusion",
        "X_Y do",
    ),
    "key-default": (
        functools.partial(edit, CONFIG, "torch", "^epilogue_fusion: .*", "epilogue_fusion = False"),
        "torch torch._inductor.config.epilogue_fusion",
        "it ships False",
    ),
    "variable-unread": (
        functools.partial(forget, "PYTORCH_TUNABLEOP_ENABLED"),
        "torch PYTORCH_TUNABLEOP_ENABLED",
        "nothing reads it",
    ),
    "variable-read": (
        lambda place: place.read("sglang", "SGLANG_DISABLE_CUDNN_CHECK"),
        "sglang SGLANG_DISABLE_CUDNN_CHECK",
        "it is read",
    ),
    "variable-new": (
        functools.partial(
            add, "vllm", "vllm/envs.py", 'more = {"VLLM_TORCH_COMPILE_FAST": lambda: 1}\n'
        ),
        "vllm VLLM_TORCH_COMPILE_FAST",
        "it is declared",
    ),
    "registry-gone": (
        functools.partial(drop, "sglang", "sglang/srt/environ.py"),
        "sglang sglang/srt/environ.py",
        "there is no such file",
    ),
    "override-new": (
        functools.partial(
            add,
            "vllm",
            "vllm/env_override.py",
            "from torch._inductor import config as one\none.max_autotune = True\n",
        ),
        "vllm vllm/env_override.py torch._inductor.config.max_autotune",
        "it is changed at import",
    ),
    "source-gone": (
        functools.partial(drop, "vllm", "vllm/platforms/rocm.py"),
        "vllm vllm/platforms/rocm.py",
        "there is no such file",
    ),
    "framework-version": (functools.partial(newer, "vllm"), "vllm * 99.0.0", "there is 99.0.0"),
    "gpu-new": (
        functools.partial(gpu, 'therock_add_amdgpu_target(gfx1999 "AMD RX 99" FAMILY x)\n'),
        "ROCm/TheRock gfx1999",
        "AMD RX 99",
    ),
    "gpu-name": (
        functools.partial(gpu, 'therock_add_amdgpu_target(gfx950 "MI999X CDNA" FAMILY x)\n'),
        "ROCm/TheRock MI999X",
        "it is gfx950",
    ),
    "image-missing": (
        functools.partial(docker, "FROM base AS final", "ENV NEW_ONE=1\nFROM base AS final"),
        "vllm-project/vllm vllm NEW_ONE",
        "the image has NEW_ONE=1",
    ),
    "image-unset": (
        functools.partial(docker, "ENV HIP_FORCE_DEV_KERNARG=", "# ENV HIP_FORCE_DEV_KERNARG="),
        "vllm-project/vllm vllm HIP_FORCE_DEV_KERNARG",
        "does not set it",
    ),
    "image-value": (
        functools.partial(docker, 'HIP_FORCE_DEV_KERNARG="1"', "HIP_FORCE_DEV_KERNARG=0"),
        "vllm-project/vllm vllm HIP_FORCE_DEV_KERNARG",
        "HIP_FORCE_DEV_KERNARG=0",
    ),
    "image-argument": (
        functools.partial(docker, "BASE=rocm/dev:7.2.3", "BASE=rocm/dev:7.2.4"),
        "vllm-project/vllm vllm BASE",
        "it is rocm/dev:7.2.4",
    ),
    "image-file": (
        functools.partial(docker, "AS final", "AS last"),
        "vllm-project/vllm vllm docker/Dockerfile.rocm",
        "no stage final",
    ),
    "dockerfile-new": (docker_file, "vllm-project/vllm docker/Dockerfile.rocm_99", "this file"),
    "accepted-gone": (accept, "vllm VLLM_GONE", "nothing of the kind"),
}


# The kind that a plant leads to, too.
ALSO = {"registry-gone": {"source-gone"}}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted(place: Place, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    plant, subject, now = PLANTED[kind]
    plant(place)
    # Other wheels have no part in it.
    project = subject.partition(" ")[0]
    place.wheels = {name: files for name, files in place.wheels.items() if name == project}
    status, found = run(capsys, *place.write())
    assert status == 1
    assert {row["kind"] for row in found["findings"]} == {kind} | ALSO.get(kind, set())
    for row in (row for row in found["findings"] if row["kind"] == kind):
        assert re.fullmatch(re.escape(subject).replace(r"\*", ".*"), row["subject"])
        assert now in row["now"]
        # Where we say it is a file of ours, and all else is told, too.
        assert (ROOT / row["where"].partition(":")[0]).is_file()
        assert all(row.values())


def test_a_bound_of_an_older_torch(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = place.root / "docs" / "page.md"
    page.parent.mkdir()
    _, *_, before, last = lint.known_versions()
    page.write_text(f"from 2.4 to {before}\nfrom 2.4 to {last}, and 2.4 to 2.8 differ\n")
    monkeypatch.setattr(checks, "_our_texts", lambda: [page])
    monkeypatch.setattr(checks, "ROOT", place.root)
    rows = list(checks.check_torch_bounds())
    assert [(row.kind, row.where) for row in rows] == [("torch-bound", "docs/page.md:1")]


def test_accepted(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("variable-new", "gpu-new", "image-missing"):
        plant, subject, _ = PLANTED[kind]
        plant(place)
        row = {"kind": kind, "subjects": [subject], "reason": "A test."}
        place.known["accepted"].append(row)
    status, found = run(capsys, *place.write())
    assert (status, found["findings"]) == (0, [])
    # Where its source is not looked at, an accepted difference is not judged.
    arguments = place.write()
    del arguments[-4:]
    assert fresh.main(arguments) == 0


def test_a_git_directory(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = place.write()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y.z", "-C", str(place.root / "vllm")]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    bare = place.root / "bare"
    subprocess.run(["git", "clone", "-q", "--bare", place.root / "vllm", bare], check=True)
    arguments = [one.replace(str(place.root / "vllm"), str(bare)) for one in arguments]
    status, found = run(capsys, *arguments)
    assert (status, found["findings"]) == (0, [])
    assert "vllm-project/vllm: image-missing" in found["looked_at"]


def test_nothing_is_imported(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    flag = place.root / "imported"
    text = f"open({str(flag)!r}, 'w')\n"
    for project in place.wheels:
        place.wheels[project] = {
            file: text + source for file, source in place.wheels[project].items()
        }
    # Nor does a member leave its directory.
    place.wheels["vllm"]["../outside.py"] = text
    run(capsys, *place.write())
    assert not flag.exists()
    assert not [*place.root.rglob("outside.py")]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files by ranges, and pages of an index."""

    ranges = True
    sent = 0

    def do_GET(self) -> None:
        self.path = self.path.partition("?")[0]
        asked = self.headers.get("Range", "")
        file = Path(self.translate_path(self.path))
        if not (self.ranges and asked and file.is_file()):
            super().do_GET()
            return
        first, last = map(int, asked.partition("=")[2].split("-"))
        data = file.read_bytes()
        part = data[first : last + 1]
        type(self).sent += len(part)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(directory: Path, ranges: bool) -> Iterator[tuple[str, type[Handler]]]:
    """Serve a directory. The address of its index, and the handler, which counts what it sends."""
    kind = type("Counted", (Handler,), {"ranges": ranges, "sent": 0})
    handler = functools.partial(kind, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple", kind
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("ranges", [True, False])
def test_index(place: Place, ranges: bool, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = place.write()
    for wheel in (place.root / "wheels").iterdir():
        project = wheel.name.partition("-")[0]
        page = place.root / "simple" / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(
            f'<a href="../../wheels/{wheel.name}#sha256=0">x</a>'
            f'<a href="../../wheels/{project}-999.0-py3-none-any.whl" data-yanked="">x</a>'
            f'<a href="../../wheels/{project}-998.0rc1-py3-none-any.whl">x</a>'
        )
    at = arguments.index("--wheels")
    with served(place.root, ranges) as (address, _):
        arguments[at : at + 2] = ["--index", address]
        status, found = run(capsys, *arguments)
    assert (status, found["findings"]) == (0, [])
    assert "torch: key-default" in found["looked_at"]


def test_a_large_member_is_left_where_it_is(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheels", "torch", "2.0.0", {"torch/a.py": "1"})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("torch/lib/kernels.bin", bytes(40 << 20), zipfile.ZIP_STORED)
        archive.writestr("torch/z.py", "2")
    page = tmp_path / "simple" / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="/wheels/{wheel.name}">x</a>')
    with served(tmp_path, True) as (address, handler):
        wheels = Wheels(address, None, tmp_path / "cache")
        candidate = wheels.newest("torch")
        assert candidate
        unpacked = wheels.unpack(candidate)
    assert [*unpacked.sources()] == ["torch/a.py", "torch/z.py"]
    assert 0 < handler.sent < 16 << 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--index", "http://127.0.0.1:9/simple"], "refused"),
        (["--checkout", "vllm-project/vllm=/nowhere"], "is not OWNER/NAME=DIRECTORY"),
        (["--checkout", "one/another=/"], "one/another is none of"),
        (["--known", "/nowhere"], "No such file"),
        (["--wheels", "/nowhere"], "/nowhere is no directory"),
        (["--wheels", str(ROOT / "docs")], "docs has no wheel"),
    ],
)
def test_what_can_not_be_read(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = fresh.main(arguments)
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_broken_wheel(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = place.write()
    wheel = next((place.root / "wheels").glob("vllm-*"))
    wheel.write_bytes(wheel.read_bytes()[:100])
    assert fresh.main(arguments) == 2
    assert "vllm-" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A/x", "1/x"),
        ("${A}x", "1x"),
        ("${B:-2}", "2"),
        ("${B:-${A}}", "1"),
        ("${A:+3}${B:+4}", "3"),
        ("${C%-*}", "gfx942"),
        ("${C%%-*}", "gfx942"),
        ("${C##*-}", "rocm724"),
        (r"\${A}", "${A}"),
        ("$UNKNOWN", ""),
    ],
)
def test_expand(text: str, value: str) -> None:
    assert expand(text, {"A": "1", "B": "", "C": "gfx942-rocm724"}) == value


def test_stages() -> None:
    text = """
ARG ARCH=gfx942
ARG BASE=one
# FROM nothing
FROM ${BASE} AS gfx942
ENV A=1 B="two words" \\
    # a comment between
    C=3
RUN <<EOF
from pathlib import Path
ENV WRONG=1
EOF
FROM scratch AS other
ENV OTHER=1
FROM ${ARCH}
ARG ARCH
ENV D ${ARCH} and more
env E=$A$MISSING
"""
    stages, heads = read_stages(text, "Dockerfile", {})
    found = {name: one.value for name, one in stages[""].environment.items()}
    assert found == {"A": "1", "B": "two words", "C": "3", "D": "gfx942 and more", "E": "1"}
    assert stages[""].environment["D"].place == "Dockerfile:17"
    assert heads["BASE"].value == "one"
    other, _ = read_stages(text, "Dockerfile", {"ARCH": "other"})
    assert set(other[""].environment) == {"OTHER", "D", "E"}


def test_keys_of_a_source() -> None:
    source = ConfigSource(
        "import os\n"
        "one = os.environ.get('A_B') == '1'\n"
        "two: bool = os.environ.get('C_D', '1') != '0' and not one\n"
        "three = int(os.getenv('E_F', '7'))\n"
        "four = unknown()\n"
        "class inner:\n"
        "    five = Config(default=three, env_name_force='G_H')\n"
    )
    told = {name: source.key(name) for name in ("one", "two", "three", "four", "inner.five")}
    expected = {"one": False, "two": True, "three": 7, "four": UNKNOWN, "inner.five": 7}
    assert {name: key and key.default for name, key in told.items()} == expected
    five = told["inner.five"]
    assert five is not None
    assert five.variables == {"E_F", "G_H"}
    assert source.key("six") is None


def test_overrides() -> None:
    text = program_file("fresh/overrides.py").read_text(encoding="utf-8")
    found = {one.what: one.scope for one in overrides(text)}
    assert found == {
        "TORCHINDUCTOR_X": "import",
        "HIP_Y": "import",
        "torch._inductor.config.max_autotune": "import",
        "torch._dynamo.config.recompile_limit": "inside",
        "sys.meta_path": "inside",
        **{f"torch._inductor.config.{key}": "inside" for key in ("a", "b", "c.d")},
        "torch._functorch.config.e": "inside",
    }


def test_the_accepted_differences_have_reasons() -> None:
    known = read_known()
    assert {row["repository"] for row in known["images"]} <= set(known["checkouts"])
    subjects = [(row["kind"], one) for row in known["accepted"] for one in row["subjects"]]
    assert len(subjects) == len(set(subjects))
