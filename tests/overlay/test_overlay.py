"""Dockerfile.overlay, built on images that are laid out as the real ones, and run.

The images contain nothing of AMD's. Each is a small Debian 12 with the name, the ENV lines and the
place for Python of a real image. Its stand-in for torch is only a label.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from surroundings import hip_torch, image_env
from tests.admission import Policy, environment, parameters
from tests.conftest import HIP, MAX, ROOT, WORK, find_python, label_torch
from tests.names import POINTWISE, SITE_DIRECTORY
from tests.overlay.containers import CanNot, Image, Result, Store, copy_prefix, tree

DEBUG = "TORCH_COMPILE_DEBUG"
SEEN = (
    f"import os; print(*[os.environ.get(n) for n in ({MAX!r}, {POINTWISE!r}, {DEBUG!r})], sep=',')"
)
USERS = [("0:0", False), ("0:0", True), ("65534:65534", True), ("4711:4711", False)]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# It starts Python twice, like an entrypoint that first asks Python for something.
LAUNCH = '#!/bin/sh\npython3 -c pass\nexec "$@"\n'


def venv(place: str, options: str = "") -> str:
    site = f"{place}/lib/python3.11/site-packages/"
    return f"RUN python3 -m venv {options} {place} && cp -r torch {site}\n"


def yaml_in(place: str) -> str:
    # Debian's copy is for the same Python, so no network is needed.
    return (
        "RUN cd /usr/lib/python3/dist-packages && cp -r yaml _yaml PyYAML* packaging* "
        f"{place}/lib/python3.11/site-packages/\n"
    )


@dataclass(frozen=True)
class Case:
    """An image, and what the overlay must do to it."""

    reference: str
    recipe: str
    path: str
    # The Pythons with a ROCm torch, and whether each can be baked.
    pythons: dict[str, bool]
    # Lines that the build prints, with "*" for what varies.
    says: tuple[str, ...]
    torch: tuple[str, str | None, str | None] = ("2.13.0+rocm7.0", HIP, None)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.reference.removeprefix("docker.io/")


CASES = {
    "venv": Case(
        "docker.io/rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129",
        venv("/opt/venv") + yaml_in("/opt/venv") + "ENV VIRTUAL_ENV=/opt/venv\n",
        "/opt/venv/bin:" + SYSTEM_PATH,
        {"/opt/venv/bin/python3": True},
        (
            "/opt/venv/bin/python3 has torch 2.13.0+rocm7.0: installed and baked; baked, *",
            "/usr/bin/python3 has no torch: not changed",
        ),
    ),
    "conda": Case(
        "docker.io/lmsysorg/sglang:v0.4.3.post4-rocm630",
        "COPY py_3.10 /opt/conda/envs/py_3.10\n"
        "RUN cp -r torch /opt/conda/envs/py_3.10/lib/python3.10/site-packages/ && cp -r \\\n"
        "    yaml packaging /opt/conda/envs/py_3.10/lib/python3.10/site-packages/\n"
        "ENV LD_LIBRARY_PATH=/opt/conda/envs/py_3.10/lib\n",
        "/opt/conda/envs/py_3.10/bin:" + SYSTEM_PATH,
        {"/opt/conda/envs/py_3.10/bin/python3": True},
        (
            "/opt/conda/envs/py_3.10/bin/python3 has torch 2.5.1+rocm6.3: installed and baked; *",
            "/usr/bin/python3 has no torch: not changed",
        ),
        ("2.5.1+rocm6.3", "6.3.42134-a9a80e791", None),
    ),
    "system": Case(
        "docker.io/lmsysorg/sglang:v0.5.5.post3-rocm700-mi35x",
        "RUN cp -r torch /usr/local/lib/python3.11/dist-packages/\n",
        SYSTEM_PATH,
        {"/usr/bin/python3": True},
        ("/usr/bin/python3 has torch 2.13.0+rocm7.0: installed and baked; baked, *",),
    ),
    "two": Case(
        "docker.io/lmsysorg/sglang:v0.5.10.post1-rocm700-mi35x",
        venv("/opt/venv", "--without-pip")
        + venv("/opt/conda/envs/py_3.11")
        + yaml_in("/opt/conda/envs/py_3.11")
        + "RUN python3 -m venv --without-pip /opt/conda && cp -r other/torch \\\n"
        "    /opt/conda/lib/python3.11/site-packages/\n",
        "/opt/venv/bin:" + SYSTEM_PATH,
        {"/opt/venv/bin/python3": False, "/opt/conda/envs/py_3.11/bin/python3": True},
        (
            "/opt/venv/bin/python3 lacks yaml,packaging: not baked; starts use the "
            "plans in the wheel",
            "/opt/venv/bin/python3 has torch 2.13.0+rocm7.0: installed; *",
            "/opt/conda/bin/python3 has torch 2.13.0+cpu, which is not a ROCm build: not changed",
            "/opt/conda/envs/py_3.11/bin/python3 has torch 2.13.0+rocm7.0: installed and baked; *",
            "/usr/bin/python3 has no torch: not changed",
        ),
        # The first is in SGLang's rocm724 images. The overlay's pip must use neither.
        env={
            "PIP_CONSTRAINT": "/etc/sglang/constraints/torch-rocm.txt",
            "PIP_TARGET": "/opt/elsewhere",
        },
    ),
    "cuda": Case(
        "docker.io/overlay-tests/cuda:1",
        venv("/opt/venv"),
        "/opt/venv/bin:" + SYSTEM_PATH,
        {},
        (),
        ("2.13.0+cu130", None, "13.0"),
    ),
    "none": Case("docker.io/overlay-tests/none:1", "", SYSTEM_PATH, {}, ()),
}
SCRIPTS = ("overlay/install.sh", "overlay/install.py")
GOOD = [name for name, case in CASES.items() if case.pythons]
# Settings of an image that are for its own pip and Python, not for those of the build.
UNHELPFUL = {
    "PIP_PYTHON": "/opt/venv/bin/python3",
    "PIP_REQUIRE_VIRTUALENV": "1",
    "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONIOENCODING": "utf-16",
    "PYTHONPYCACHEPREFIX": "/opt/bytecode",
    "CDPATH": "/opt:/usr",
    # The names of variables of the script.
    "name": "a",
    "here": "b",
    "work": "c",
}
PRINTS = (
    "import atexit\n"
    "print('rocm 9.9 nothing /nowhere')\n"
    "atexit.register(print, 'none ? nothing /elsewhere')\n"
)


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    place = WORK / "overlay"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "w") as lock:
        # The images have real names: two runs would take them from each other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            opened = Store.open(place)
            opened.try_out()
        except CanNot as reason:
            pytest.skip(str(reason))
        yield opened
        opened.close()


def make_base(store: Store, name: str, work: Path) -> Image:
    case = CASES[name]
    context = work / name
    label_torch(context, *case.torch)
    label_torch(context / "other", "2.13.0+cpu", None)
    launch = context / "launch"
    launch.write_text(LAUNCH)
    launch.chmod(0o755)
    if name == "conda":
        python = find_python("3.10")
        if Path(python).resolve().parent == Path("/usr/bin"):
            pytest.skip("Python 3.10 is the distribution's here: no prefix of its own to copy")
        copy_prefix(python, context / "py_3.10")
        for package in ("yaml", "packaging"):
            # Without the files that were compiled for another Python: yaml does not need them.
            origin = Path(__import__(package).__file__ or "").parent
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(origin, context / package, ignore=ignore)
    for path in (context, *context.rglob("*")):
        if not path.is_symlink():
            os.utime(path, (0, 0))
    env = {**image_env.load().env, **case.env}
    if "-mi30x-" in case.reference:
        env = {**env, "GPU_ARCH": "gfx942", "GPU_ARCH_LIST": "gfx942"}
    lines = [f'ENV {key}="{value}"' for key, value in env.items()]
    recipe = (
        "COPY . /context\nWORKDIR /context\n"
        f"{case.recipe}\n"
        "RUN cp launch /usr/local/bin/launch && rm -r /context\n"
        "WORKDIR /sgl-workspace\n"
        f'ENV PATH={case.path} ODD="two words; $ \\"quoted\\" a=b"\n' + "\n".join(lines) + "\n"
        'ENTRYPOINT ["launch"]\nCMD ["python3"]\n'
    )
    return store.base(case.reference, recipe, context)


@pytest.fixture(scope="session")
def bases(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """The base images that were asked for, by name."""
    work = tmp_path_factory.mktemp("bases")

    class Made(dict[str, Image]):
        def __missing__(self, name: str) -> Image:
            made = self[name] = make_base(store, name, work)
            return made

    return Made()


@pytest.fixture(scope="session")
def context(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The context of "docker build ."."""
    place = tmp_path_factory.mktemp("context")
    for name in ("Dockerfile.overlay", ".dockerignore", *SCRIPTS):
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    (place / "dist").mkdir()
    shutil.copy(wheel, place / "dist")
    return place


def overlay(
    store: Store, context: Path, base: str, tag: str, *arguments: str, check: bool = True
) -> Result:
    done = store.bud(
        context,
        tag,
        *("-f", str(context / "Dockerfile.overlay")),
        *("--build-arg", f"BASE_IMAGE={base}", *arguments),
        check=check,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Built:
    case: Case
    base: Image
    image: Image
    output: Result
    # Nothing is written to this container.
    root: Path

    def run(self, *arguments: str, **options: Any) -> Result:
        return self.image.run(*arguments, **{"root": self.root, **options})

    def status(self, python: str, **options: Any) -> dict[str, Any]:
        command = (python, "-m", "rocm_autopatch", "status", "--no-torch", "--json")
        report: dict[str, Any] = json.loads(self.run(*command, **options).stdout)
        return report


@pytest.fixture(scope="session", params=GOOD)
def built(
    request: pytest.FixtureRequest, store: Store, bases: dict[str, Image], context: Path
) -> Iterator[Built]:
    case, base = CASES[request.param], bases[request.param]
    tag = f"localhost/overlay-tests/{request.param}"
    output = overlay(store, context, case.reference, tag)
    with store.container(tag) as root:
        yield Built(case, base, Image(store, tag), output, root)


def ours(lines: list[str]) -> list[str]:
    mark = "rocm_autopatch: "
    return [line[len(mark) :] for line in lines if line.startswith(mark)]


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in report["env"]}


# The image


def test_the_build_says_what_it_did(built: Built) -> None:
    said = ours(built.output.stdout.splitlines())
    assert len(said) == len(built.case.says)
    for line, expected in zip(said, built.case.says):
        start, star, _ = expected.partition("*")
        assert line.startswith(start) if star else line == expected
    assert ours(built.output.said) == []


def test_labels(built: Built) -> None:
    mark = "org.opencontainers.image."
    labels = {
        name.removeprefix(mark): value
        for name, value in built.image.config["Labels"].items()
        if name.startswith(mark)
    }
    assert labels == {
        "base.name": built.case.reference,
        "title": "rocm_autopatch overlay",
        "description": f"{built.case.reference} with rocm_autopatch",
        "licenses": "MIT AND LicenseRef-base-image",
    }


def test_the_rest_of_the_configuration_is_the_base_s(built: Built) -> None:
    before, after = dict(built.base.config), dict(built.image.config)
    before.pop("Labels", None)
    after.pop("Labels", None)
    assert after == before


def test_the_baseline_is_the_image_s_environment(built: Built) -> None:
    data = (built.root / "etc/rocm-autopatch/baseline").read_bytes()
    assert data.endswith(b"\0")
    lines = data.decode().rstrip("\0").split("\0")
    assert lines == sorted(built.base.config["Env"])
    assert 'ODD=two words; $ "quoted" a=b' in lines
    name = (built.root / "etc/rocm-autopatch/image").read_text()
    assert name == built.case.reference + "\n"


def test_what_is_added_and_nothing_else(built: Built, store: Store) -> None:
    with store.container(built.case.reference) as root:
        before = tree(root)
    with store.container(built.image.reference) as root:
        after = tree(root)
    # If a builder mounts files of its own, it leaves empty ones.
    mounted = {"/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/run/.containerenv"}
    added = after.keys() - before.keys() - mounted
    assert before.keys() <= after.keys()
    assert {path for path in before if before[path] != after[path]} - mounted == set()
    sites = [path[: -len("/rocm_autopatch")] for path in added if path.endswith("/rocm_autopatch")]
    assert len(sites) == len(built.case.pythons)
    for path in added:
        site = next((site for site in sites if path.startswith(site + "/rocm_autopatch")), None)
        script = path.endswith("/bin/rocm-autopatch")
        assert site or script or path.startswith(SITE_DIRECTORY), path
        mode, uid, gid, _ = after[path]
        assert (uid, gid) == (0, 0), path
        directory_or_script = (mode & 0o170000) == 0o040000 or script
        assert mode & 0o777 == (0o755 if directory_or_script else 0o644), path
    plans = [path for path in added if path.endswith("/rocm_autopatch/baked.plan")]
    assert len(plans) == sum(built.case.pythons.values())


def test_the_layers_are_small(
    built: Built, store: Store, context: Path, record_property: Callable[[str, object], None]
) -> None:
    below = len(built.base.layers())
    sizes = [layer["diff-size"] for layer in built.image.layers()[below:]]
    # Registries keep layers in this form, and hosts pull them.
    with store.container(built.case.reference) as root:
        before = tree(root)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path in sorted(tree(built.root).keys() - before.keys()):
            tar.add(built.root / path.lstrip("/"), path, recursive=False)
    (wheel,) = (context / "dist").glob("*.whl")
    pulled = [wheel.stat().st_size + 10_000, len(packed.getvalue())]
    record_property("bytes", sizes)
    print(f"\n{built.case.name}: layers of {sizes} bytes, {pulled} compressed")
    assert pulled[0] + pulled[1] / len(built.case.pythons) < 2_700_000
    assert sum(sizes) < 6_500_000 * len(built.case.pythons)


def test_bytecode_is_not_compared_with_times(built: Built) -> None:
    packages = list(built.root.glob("**/*-packages/rocm_autopatch"))
    assert len(packages) == len(built.case.pythons)
    for package in packages:
        for source in package.rglob("*.py"):
            (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")
            # PEP 552: a hash, and not to be checked.
            assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1


# Starts


@pytest.mark.parametrize(("user", "read_only"), USERS)
def test_a_start(built: Built, user: str, read_only: bool) -> None:
    for python, baked in built.case.pythons.items():
        done = built.run(python, "-c", SEEN, user=user, read_only=read_only)
        assert done.stdout == "None,None,None\n"
        # One of them is the entrypoint's own Python.
        named = f"policy safe applies (image: {built.case.reference}): "
        assert [line.startswith(named) for line in ours(done.said)] == [True, True]
        assert len(done.said) == 2
        report = built.status(python, user=user, read_only=read_only)
        assert report["errors"] == []
        assert report["active"] is True
        assert report["facts"]["image"]["value"] == built.case.reference
        assert report["baseline"] == f"{SITE_DIRECTORY}/baseline"
        assert report["baked"].endswith("/rocm_autopatch/baked.plan") is baked
        unread = "known issues are not listed: reading a policy needs PyYAML"
        assert [
            note for note in report["notes"] if not (note.startswith(unread) and not baked)
        ] == []
        row = rows(report)[MAX]
        assert (row["before"], row["after"], row["origin"]) == ("1", None, "image")


def test_what_a_user_gives(built: Built) -> None:
    for python in built.case.pythons:
        # A user's value that equals the image's counts as the image's.
        done = built.run(python, "-c", SEEN, env={MAX: "1"})
        assert done.stdout == "None,None,None\n"
        assert not any("a user set them" in line for line in done.said)
        given = {MAX: "0", DEBUG: "1"}
        child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEEN!r}])"
        done = built.run(python, "-c", child, env=given)
        assert done.stdout == "0,None,1\n"
        line = f"not changed, because a user set it, not the image: {MAX}, {DEBUG}"
        # The entrypoint's Python is a process tree of its own.
        assert ours(done.said).count(line) == 2
        found = rows(built.status(python, env=given))
        assert [found[name]["status"] for name in (MAX, DEBUG)] == ["given", "given"]
        assert [found[name]["origin"] for name in (MAX, DEBUG)] == ["user", "user"]


def test_off(built: Built) -> None:
    for python in built.case.pythons:
        done = built.run(python, "-c", SEEN, env={"ROCM_AUTOPATCH": "off"})
        assert (done.stdout, done.stderr) == ("1,1,None\n", "")


def test_the_other_ways_out(built: Built) -> None:
    for python in built.case.pythons:
        done = built.run(python, "-c", SEEN, env={"ROCM_AUTOPATCH": "observe"})
        assert done.stdout == "1,1,None\n"
        done = built.run(python, "-c", SEEN, env={"ROCM_AUTOPATCH_KEEP": MAX})
        assert done.stdout == "1,None,None\n"
        done = built.run(python, "-c", SEEN, env={"ROCM_AUTOPATCH_LOG": "quiet"})
        assert (done.stdout, done.stderr) == ("None,None,None\n", "")


def test_one_line_a_tree(built: Built) -> None:
    python = next(iter(built.case.pythons))
    many = (
        "import subprocess, sys\n"
        "for _ in range(3): subprocess.run([sys.executable, '-c', 'print(1)'])"
    )
    done = built.run(python, "-c", many)
    assert done.stdout == "1\n" * 3
    assert len(done.said) == 2


def test_the_system_s_python_without_torch_is_as_it_was(built: Built) -> None:
    if "/usr/bin/python3" in built.case.pythons:
        pytest.skip("it has torch here")
    code = "import sys; print('sitecustomize' in sys.modules, 'rocm_autopatch' in sys.modules)"
    done = built.run("/usr/bin/python3", "-c", f"{code}; {SEEN}")
    # Debian's sitecustomize still runs.
    assert done.stdout == "True False\n1,1,None\n"


def test_it_can_be_removed(built: Built) -> None:
    """By the commands of the page, as a user goes on by what the last one said."""
    page = (ROOT / "docs/overlay.md").read_text()
    remove = dict(re.findall(r"^```sh (remove\S*)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL))
    for python in built.case.pythons:
        with built.image.store.container(built.image.reference) as root:
            run = partial(built.image.run, root=root, check=False)
            env = {"PIP_ROOT_USER_ACTION": "ignore"}
            said = ""
            for name, goes_on in (
                ("remove", ""),
                ("remove-pep-668", "externally-managed-environment"),
                ("remove-without-pip", "No module named pip"),
            ):
                if goes_on in said:
                    command = remove[name].replace("/opt/venv/bin/python3", python)
                    done = run("-c", command, entrypoint=["sh"], env=env)
                    said = done.stderr if done.status else "done"
            assert done.status == 0, done.stderr
            done = built.image.run(python, "-c", SEEN, root=root)
            assert done.stdout == "1,1,None\n"
            # A container's other Pythons keep theirs.
            site = root / python[1:].removesuffix("/bin/python3")
            assert list(site.rglob("rocm_autopatch*")) == []


# Builds


def one_line(done: Result) -> str:
    assert done.status != 0
    lines = ours(done.said)
    assert len([line for line in lines if line.startswith("error: ")]) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[-1]


@pytest.mark.parametrize("name", ["venv", "conda"])
def test_the_same_inputs_make_the_same_layers(
    store: Store, bases: dict[str, Image], context: Path, tmp_path: Path, name: str
) -> None:
    base = bases[name]
    found = []
    for number in (1, 2):
        again = tmp_path / str(number)
        shutil.copytree(context, again)
        tag = f"localhost/overlay-tests/again{number}"
        # What differs between machines: times, a proxy, the order of the files.
        extra = ["--timestamp", "0", "--build-arg", f"https_proxy=http://machine{number}"]
        overlay(store, again, base.reference, tag, *extra)
        found.append([layer["diff-digest"] for layer in Image(store, tag).layers()])
    assert found[0] == found[1]
    # The times are as the builder wrote them, and no module is compiled again.
    done = Image(store, tag).run("python3", "-v", "-c", "pass")
    read = [line for line in done.said if "code object from" in line and "rocm_autopatch" in line]
    assert read
    assert all(".pyc" in line for line in read)


@pytest.fixture
def edited(context: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "context"
    shutil.copytree(context, copy)
    return copy


def test_a_torch_without_rocm(store: Store, bases: dict[str, Image], context: Path) -> None:
    base = bases["cuda"].reference
    done = overlay(store, context, base, "localhost/overlay-tests/cuda", check=False)
    assert one_line(done) == (
        "error: torch is not a ROCm build: 2.13.0+cu130 in /opt/venv/bin/python3; "
        "--build-arg ROCM_AUTOPATCH_ANY_TORCH=1 installs anyway"
    )
    tag = "localhost/overlay-tests/cuda-anyway"
    overlay(store, context, base, tag, "--build-arg", "ROCM_AUTOPATCH_ANY_TORCH=1")
    done = Image(store, tag).run("python3", "-c", SEEN)
    assert (done.stdout, done.stderr) == ("1,1,None\n", "")
    baseline = Image(store, tag).run("cat", f"{SITE_DIRECTORY}/baseline").stdout
    assert "ROCM_AUTOPATCH" not in baseline


def test_no_torch(store: Store, bases: dict[str, Image], context: Path) -> None:
    base = bases["none"].reference
    done = overlay(store, context, base, "localhost/overlay-tests/none", check=False)
    assert one_line(done) == f"error: no Python in {base} has torch"


def test_an_error_of_the_package(store: Store, bases: dict[str, Image], context: Path) -> None:
    bases["venv"]
    base = "localhost/overlay-tests/old-torch"
    with store.container(CASES["venv"].reference) as root:
        label_torch(root / "opt/venv/lib/python3.11/site-packages", "2.3.1+rocm6.0", "6.0.3")
        name = root_name(store, root)
        store.buildah("commit", "-q", name, base)
    done = overlay(store, context, base, "localhost/overlay-tests/none", check=False)
    assert one_line(done) == (
        "error: nothing to install for: "
        "/opt/venv/bin/python3 has torch 2.3.1+rocm6.0, which is older than 2.4"
    )


@pytest.fixture(scope="session")
def odd(store: Store, bases: dict[str, Image], tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image with environments in unusual places and states, and with unhelpful settings."""
    tag = "localhost/overlay-tests/odd"
    work = tmp_path_factory.mktemp("odd")
    name = store.buildah("from", "--pull-never", bases["two"].reference).stdout.strip()
    root = Path(store.buildah("mount", name).stdout.strip())
    rocm = "2.13.0+rocm7.0", HIP

    def library(environment: str, version: str = "3.11") -> Path:
        return root / environment / f"lib/python{version}/site-packages"

    # Distributions have their second Python so, without python3.
    copy_prefix(find_python("3.9"), work / "3.9")
    shutil.copytree(work / "3.9/lib/python3.9", root / "usr/lib/python3.9", symlinks=True)
    shutil.copy2(work / "3.9/bin/python3", root / "usr/bin/python3.9")
    for library_of_python in (work / "3.9/lib").glob("libpython3.9.so*"):
        shutil.copy2(library_of_python, root / "usr/lib")
    label_torch(library("usr", "3.9"), *rocm)
    copy_prefix(find_python("3.8"), root / "opt/old-python")
    for library_of_python in (root / "opt/old-python/lib").glob("libpython3.8.so*"):
        shutil.copy2(library_of_python, root / "usr/lib")
    label_torch(library("opt/old-python", "3.8"), *rocm)
    for place in ("home/some body/.venv", "srv/old-torch", "srv/prints"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        make = ("python3", "-m", "venv", "--without-pip", f"/{place}")
        subprocess.run(["chroot", root, *make], check=True)
    label_torch(library("home/some body/.venv"), *rocm)
    label_torch(library("srv/old-torch"), "2.3.1+rocm6.0", "6.0.3")
    label_torch(library("srv/prints"), *rocm)
    (library("srv/prints") / "sitecustomize.py").write_text(PRINTS)
    for package in ("yaml", "packaging"):
        source = root / "usr/lib/python3/dist-packages" / package
        shutil.copytree(source, library("srv/prints") / package)
    broken = root / "srv/broken/bin/python3"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    broken.chmod(0o755)
    options = [word for item in UNHELPFUL.items() for word in ("--env", "=".join(item))]
    store.buildah("config", *options, name)
    store.buildah("commit", "-q", name, tag)
    store.buildah("rm", name)
    return Image(store, tag)


def test_each_environment_of_an_odd_image(store: Store, odd: Image, context: Path) -> None:
    tag = "localhost/overlay-tests/odd-overlay"
    done = overlay(store, context, odd.reference, tag)
    said = [re.sub("; .*", "", line) for line in ours(done.stdout.splitlines())]
    torch = "has torch 2.13.0+rocm7.0: installed"
    baked = ["/opt/conda/envs/py_3.11/bin/python3", "/srv/prints/bin/python3"]
    # They have no PyYAML.
    unbaked = [
        "/opt/venv/bin/python3",
        "/home/some body/.venv/bin/python3",
        "/usr/bin/python3.9",
    ]
    assert sorted(said) == sorted(
        [
            *(f"{python} {torch} and baked" for python in baked),
            *(f"{python} {torch}" for python in unbaked),
            *(f"{python} lacks yaml,packaging: not baked" for python in unbaked),
            "/opt/conda/bin/python3 has torch 2.13.0+cpu, which is not a ROCm build: not changed",
            "/opt/old-python/bin/python3 is Python 3.8.18, which is older than 3.9: not changed",
            "/srv/broken/bin/python3 does not run: not changed: it is broken",
            "/srv/old-torch/bin/python3 has torch 2.3.1+rocm6.0, which is older than 2.4: not "
            "changed",
            "/usr/bin/python3 has no torch: not changed",
        ]
    )
    image = Image(store, tag)
    with store.container(tag) as root:
        recorded = (root / SITE_DIRECTORY[1:] / "baseline").read_text().rstrip("\0").split("\0")
        assert recorded == sorted(odd.config["Env"])
        # Nothing of the build stays.
        assert list(root.glob("tmp/*")) == []
        assert not (root / "opt/bytecode").exists()
        for python in (*baked, *unbaked):
            # Without the image's PYTHONINSPECT and the others.
            done = image.run(
                *("-i", "PATH=/usr/bin:/bin", f"{MAX}=1", python, "-c", SEEN),
                root=root,
                entrypoint=["env"],
            )
            assert "None,None,None\n" in done.stdout, python


def test_only_environments_that_are_too_old(store: Store, odd: Image, context: Path) -> None:
    base = "localhost/overlay-tests/all-old"
    with store.container(odd.reference) as root:
        for torch in root.glob("**/*-packages/torch"):
            if "old" not in str(torch.relative_to(root)):
                shutil.rmtree(torch)
        for torch in root.glob("home/*/.venv/lib/*/*-packages/torch"):
            shutil.rmtree(torch)
        store.buildah("commit", "-q", root_name(store, root), base)
    done = overlay(store, context, base, "localhost/overlay-tests/none", check=False)
    assert one_line(done) == (
        "error: nothing to install for: "
        "/opt/old-python/bin/python3 is Python 3.8.18, which is older than 3.9; "
        "/srv/old-torch/bin/python3 has torch 2.3.1+rocm6.0, which is older than 2.4"
    )


BY_HAND = ("/srv/hand/overlay/install.sh", "overlay/install.sh", "./install.sh", "install.sh")


@pytest.mark.parametrize("path", BY_HAND)
def test_by_hand(bases: dict[str, Image], store: Store, context: Path, path: str) -> None:
    """From any directory, by any path; what lies beside the script stays."""
    python = "/opt/venv/bin/python3"
    with store.container(bases["venv"].reference) as root:
        hand = root / "srv/hand/overlay"
        hand.mkdir(parents=True)
        (wheel,) = (context / "dist").glob("*.whl")
        for file in (wheel, *(context / name for name in SCRIPTS)):
            shutil.copy(file, hand)
        (hand / "mine").write_text("mine")
        # It is looked for beside the script, too.
        (hand / "rocm_autopatch-caches.tar.gz").write_bytes(b"nothing")
        where = "/srv/hand" if path.startswith("overlay") else "/srv/hand/overlay"
        command = f"cd {where} && exec sh {path}"
        env = {"ROCM_AUTOPATCH_BASE": CASES["venv"].name}
        run = partial(bases["venv"].run, "-c", command, root=root, entrypoint=["sh"], check=False)
        before = tree(root)
        done = run()
        assert one_line(done).startswith("error: ROCM_AUTOPATCH_BASE is not set: ")
        assert tree(root) == before
        (hand / "install.py").rename(hand / "aside")
        assert one_line(run(env=env)) == (
            "error: install.py is not beside the script, in /srv/hand/overlay"
        )
        assert tree(root).keys() == before.keys() ^ {
            f"/srv/hand/overlay/{name}" for name in ("install.py", "aside")
        }
        (hand / "aside").rename(hand / "install.py")
        done = run(env=env)
        assert one_line(done).startswith("error: the packed caches are for no Python of ")
        (hand / "rocm_autopatch-caches.tar.gz").unlink()
        (root / SITE_DIRECTORY[1:] / "caches.yaml").unlink()
        done = run(env=env)
        assert (done.status, ours(done.said)) == (0, [])
        assert sorted(file.name for file in hand.iterdir()) == [
            *("install.py", "install.sh", "mine", wheel.name),
        ]
        done = bases["venv"].run(python, "-c", SEEN, root=root)
        assert done.stdout == "None,None,None\n"


def test_an_image_without_coreutils(
    bases: dict[str, Image], store: Store, context: Path, tmp_path: Path
) -> None:
    """A sort or env that lacks the option: the script says so, and changes nothing."""
    with store.container(bases["venv"].reference) as root:
        before = tree(root)
        for name in ("sort", "env"):
            (tmp_path / name).write_text("#!/bin/sh\necho invalid option >&2\nexit 1\n")
            (tmp_path / name).chmod(0o755)
            done = bases["venv"].run(
                "/mnt/install.sh",
                root=root,
                entrypoint=["sh"],
                env={"ROCM_AUTOPATCH_BASE": "any"},
                mounts={"/mnt": context / "overlay", f"/usr/bin/{name}": tmp_path / name},
                check=False,
            )
            assert one_line(done) == ("error: env or sort of this image lacks the option -0 or -z")
        mounted = {"/mnt", "/usr/bin/sort", "/usr/bin/env"}
        assert {path for path, what in tree(root).items() if before.get(path) != what} <= mounted


def test_an_image_whose_python_is_broken(
    bases: dict[str, Image], store: Store, context: Path, wheel: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(context / "overlay", place)
    shutil.copy(wheel, place)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho before; echo it is broken >&2\nexit 3\n")
    broken.chmod(0o755)
    with store.container(bases["none"].reference) as root:
        done = bases["none"].run(
            "/mnt/install.sh",
            root=root,
            entrypoint=["sh"],
            env={"ROCM_AUTOPATCH_BASE": "any"},
            mounts={"/mnt": place, "/usr/bin/python3.11": broken},
            check=False,
        )
    assert one_line(done) == "error: no Python in any has torch"
    assert ours(done.stdout.splitlines()) == [
        "/usr/bin/python3 does not run: not changed: it is broken"
    ]


@pytest.mark.parametrize("version", ["2.7", "3.8", "3.9", "3.13"])
def test_any_python_may_go_on(version: str, wheel: Path, tmp_path: Path) -> None:
    """The first Python of an image that runs may be a very old one, and does nothing by itself."""
    runner, new = find_python(version), find_python("3.11")
    broken = tmp_path / "a broken one"
    broken.write_text("#!/bin/sh\nprintf 'before\\nit is br\\303\\266ken\\n' >&2\nexit 3\n")
    broken.chmod(0o755)
    old = find_python("3.8")
    release = subprocess.check_output([old, "-V"], text=True).split()[1]
    (tmp_path / "pythons").write_text(f"{broken}\n{old}\n{new}\n{new}\n")
    code = 'import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))'
    program = ROOT / "overlay" / "install.py"
    done = subprocess.run(
        [runner, "-S", "-c", code, program, tmp_path, tmp_path, wheel],
        env={"PATH": SYSTEM_PATH, "ROCM_AUTOPATCH_BASE": "any"},
        capture_output=True,
        encoding="utf-8",
    )
    assert ours(done.stdout.splitlines()) == [
        f"{broken} does not run: not changed: it is br\u00f6ken",
        f"{old} is Python {release}, which is older than 3.9: not changed",
        f"{new} has no torch: not changed",
    ]
    reason = f"nothing to install for: {old} is Python {release}, which is older than 3.9"
    assert (done.returncode, done.stderr) == (1, f"rocm_autopatch: error: {reason}\n")


def test_the_page_has_the_messages_of_the_script() -> None:
    page = (ROOT / "docs/overlay.md").read_text()
    errors = page.partition("**Errors.**")[2].partition("\n\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^- `(.*?)`: ", errors, re.MULTILINE)
    varies = "DIRECTORY FILES IMAGE LENDER PACKAGE PYTHON REASONS? TORCHES WHAT WHEEL"
    of_page = [re.sub(rf"\b({varies.replace(' ', '|')})\b", "X", text) for text in documented]
    script, program = ((ROOT / name).read_text() for name in SCRIPTS)
    texts = re.findall(r"\bdie (?:\\\n *)?\"(.*?)\"(?: ;;.*)?$", script, re.MULTILINE)
    assert len(texts) == len(re.findall(r"\bdie\b(?!\()", script))
    said = {re.sub(r"\$(\{.*?\}|\w+)", "X", text) for text in texts}
    for call in ast.walk(ast.parse(program)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "die":
            (text,) = (node for node in ast.walk(call.args[0]) if "%s" in str(literal(node)))
            said.add(literal(text).replace("%s", "X"))
    assert sorted(of_page) == sorted(said)


def literal(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_no_pip_at_all(store: Store, bases: dict[str, Image], context: Path) -> None:
    base = "localhost/overlay-tests/no-pip"
    with store.container(bases["two"].reference) as root:
        for pip in root.glob("**/*-packages/pip"):
            shutil.rmtree(pip)
        store.buildah("commit", "-q", root_name(store, root), base)
    done = overlay(store, context, base, "localhost/overlay-tests/none", check=False)
    assert one_line(done) == (
        "error: /opt/venv/bin/python3 has torch but no pip, and no other pip in the image can "
        "install for it"
    )


def root_name(store: Store, root: Path) -> str:
    for line in store.buildah("mount").stdout.splitlines():
        name, _, place = line.partition(" ")
        if place.strip() == str(root):
            return name
    raise AssertionError(f"{root} is not mounted")


def test_a_user_that_is_not_root(store: Store, bases: dict[str, Image], edited: Path) -> None:
    base = "localhost/overlay-tests/user"
    name = store.buildah("from", "--pull-never", bases["venv"].reference).stdout.strip()
    store.buildah("config", "--user", "65534", name)
    store.buildah("commit", "-q", name, base)
    store.buildah("rm", name)
    tag = "localhost/overlay-tests/user-overlay"
    done = overlay(store, edited, base, tag, check=False)
    assert one_line(done).startswith("error: the image's USER is not root: put 'USER root' before")
    # To do what the line says helps.
    file = edited / "Dockerfile.overlay"
    file.write_text(file.read_text().replace("\nRUN ", "\nUSER root\nRUN ") + "USER 65534\n")
    overlay(store, edited, base, tag)
    image = Image(store, tag)
    assert image.config["User"] == "65534"
    assert image.run("python3", "-c", SEEN, user="65534:65534").stdout == "None,None,None\n"


@pytest.mark.parametrize("built", ["venv"], indirect=True)
def test_packed_caches(store: Store, edited: Path, built: Built, tmp_path: Path) -> None:
    """What was compiled in one container is part of an image, and its containers start with it."""
    (python,) = built.case.pythons
    fill = f"""
import os, pathlib, subprocess, sys
place = pathlib.Path(os.environ["TRITON_CACHE_DIR"]).parent
(place / "triton" / "K").mkdir()
(place / "triton" / "K" / "k.hsaco").write_text("code")
pack = [{python!r}, "-m", "rocm_autopatch", "cache", "pack", "/out/rocm_autopatch-caches.tar.gz"]
sys.exit(subprocess.call([*pack, "--even-if-used"]))
"""
    on = {"ROCM_AUTOPATCH_CACHE": "on"}
    with store.container(built.image.reference) as root:
        built.image.run(python, "-c", fill, root=root, env=on, mounts={"/out": edited / "dist"})
    tag = "localhost/overlay-tests/caches"
    done = overlay(store, edited, CASES["venv"].reference, tag)
    (line,) = (line for line in ours(done.stdout.splitlines()) if line.startswith("caches: "))
    assert "/usr/local/share/rocm-autopatch/caches/torch-2.13.0" in line
    show = """
import os
path = os.environ["TRITON_CACHE_DIR"] + "/K/k.hsaco"
print(os.path.islink(path), open(path).read())
open(os.environ["TRITON_CACHE_DIR"] + "/new", "w").close()
"""
    image = Image(store, tag)
    assert image.run(python, "-c", show).stdout == "True code\n"
    seen = image.run(python, "-c", show, user="65534:65534", env={"HOME": "/tmp"})
    assert seen.stdout == "True code\n"
    # A read-only container needs a place that it can write.
    home = tmp_path / "home"
    home.mkdir()
    seen = image.run(python, "-c", show, read_only=True, mounts={"/root/.cache": home})
    assert seen.stdout == "True code\n"
    seen = image.run(python, "-c", "pass", read_only=True)
    assert any("no cache is kept: " in line for line in seen.said)


def test_caches_for_another_image(
    store: Store, bases: dict[str, Image], edited: Path, tmp_path: Path
) -> None:
    (edited / "dist" / "rocm_autopatch-caches.tar.gz").write_bytes(b"nothing")
    base = bases["venv"].reference
    done = overlay(store, edited, base, "localhost/overlay-tests/no-caches", check=False)
    assert one_line(done) == (
        f"error: the packed caches are for no Python of {base}; the lines above say why"
    )


def test_wheels_that_are_not_one(store: Store, bases: dict[str, Image], edited: Path) -> None:
    (wheel,) = (edited / "dist").iterdir()
    shutil.copy(wheel, edited / "dist" / "rocm_autopatch-0.0.9-py3-none-any.whl")
    base = bases["venv"].reference
    done = overlay(store, edited, base, "localhost/overlay-tests/none", check=False)
    assert one_line(done).startswith("error: expected exactly one wheel in dist/, found: ")


def test_an_overlay_of_an_overlay(store: Store, bases: dict[str, Image], context: Path) -> None:
    first, second = "localhost/overlay-tests/first", "localhost/overlay-tests/second"
    overlay(store, context, bases["venv"].reference, first)
    overlay(store, context, first, second)
    report = json.loads(
        Image(store, second).run("rocm-autopatch", "status", "--no-torch", "--json").stdout
    )
    assert report["errors"] == []
    assert report["baked"]
    assert report["facts"]["image"]["value"] == first
    assert rows(report)[MAX]["origin"] == "image"


# Without building


@pytest.fixture
def mounted(wheel: Path, tmp_path: Path) -> Path:
    """The directory that docs/overlay.md tells users to mount."""
    place = tmp_path / "mounted"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", place)
    for path in (tmp_path, place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place


@pytest.mark.parametrize(("user", "read_only"), USERS)
def test_mounted(bases: dict[str, Image], mounted: Path, user: str, read_only: bool) -> None:
    env = {"PYTHONPATH": "/opt/rocm-autopatch", "ROCM_AUTOPATCH_IMAGE": CASES["venv"].name}
    mounts = {"/opt/rocm-autopatch": mounted}
    run = partial(
        bases["venv"].run, "python3", "-c", SEEN, user=user, read_only=read_only, mounts=mounts
    )
    done = run(env=env)
    assert done.stdout == "None,None,None\n"
    assert len(done.said) == 2
    # No baseline was recorded.
    assert run(env={**env, MAX: "0"}).stdout == "None,None,None\n"


def test_mounted_with_a_baseline(bases: dict[str, Image], mounted: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    base = bases["venv"]
    (site / "baseline").write_text(base.run("-0", entrypoint=["env"]).stdout)
    (site / "image").write_text(CASES["venv"].name + "\n")
    mounts = {"/opt/rocm-autopatch": mounted, SITE_DIRECTORY: site}
    env = {"PYTHONPATH": "/opt/rocm-autopatch", POINTWISE: "0"}
    done = base.run("python3", "-c", SEEN, env=env, mounts=mounts)
    assert done.stdout == "None,0,None\n"
    assert ours(done.said)[0].endswith(f"because a user set it, not the image: {POINTWISE}")
    assert ours(done.said)[1].startswith(f"policy safe applies (image: {CASES['venv'].name}): ")


def one_pod() -> dict[str, Any]:
    """The Pod that docs/overlay.md names."""
    assert "`deploy/one-pod.yaml`" in (ROOT / "docs/overlay.md").read_text()
    pod: dict[str, Any] = yaml.safe_load((ROOT / "deploy/one-pod.yaml").read_text())
    return pod


def test_the_pod(bases: dict[str, Image], wheel: Path, tmp_path: Path) -> None:
    pod = one_pod()["spec"]
    image = bases["venv"]
    volumes = {volume["name"]: tmp_path / volume["name"] for volume in pod["volumes"]}
    for place in (tmp_path, *volumes.values()):
        place.mkdir(exist_ok=True)
        # With the mode that the kubelet gives an emptyDir.
        place.chmod(0o777)
    shutil.copy(wheel, volumes["wheel"])
    shutil.copy(ROOT / "sitecustomize_stub" / "sitecustomize.py", volumes["wheel"])
    for path in volumes["wheel"].iterdir():
        path.chmod(0o644)

    def run_container(container: dict[str, Any], *arguments: str, **env: str) -> Result:
        assert container["image"] == CASES["venv"].name
        mounts = {
            mount["mountPath"]: volumes[mount["name"]] / mount.get("subPath", "")
            for mount in container["volumeMounts"]
        }
        given = {row["name"]: row["value"] for row in container.get("env", [])}
        return image.run(
            *arguments,
            entrypoint=container.get("command"),
            user="65534:65534",
            read_only=True,
            env={**given, **env},
            mounts=mounts,
            read_only_mounts=[
                mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")
            ],
        )

    (prepare,), (model,) = pod["initContainers"], pod["containers"]
    done = run_container(prepare, *prepare.get("args", []))
    assert done.stdout.count("baked") >= 1, done.stderr
    done = run_container(model, "python3", "-c", SEEN, **{MAX: "0"})
    assert done.stdout == "0,None,None\n"
    status = run_container(
        model, "python3", "-m", "rocm_autopatch", "status", "--no-torch", "--json"
    )
    report = json.loads(status.stdout)
    assert report["errors"] == []
    assert report["baked"] == "/opt/rocm-autopatch/rocm_autopatch/baked.plan"
    assert report["facts"]["image"]["value"] == CASES["venv"].name
    assert report["baseline"] == f"{SITE_DIRECTORY}/baseline"


def test_the_pod_is_one(tmp_path: Path) -> None:
    kubernetes_validate.validate(one_pod(), "1.31", strict=True)


@pytest.fixture(scope="session")
def hook(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The context of deploy/image/Containerfile, with bytecode for the Python of the images."""
    place = tmp_path_factory.mktemp("hook") / "tree"
    lay_out = ROOT / "deploy/image/tree.py"
    subprocess.run([sys.executable, lay_out, wheel, place, find_python("3.11")], check=True)
    return place


def carrier(store: Store, hook: Path, target: str, name: str = "") -> Image:
    """The image that the Containerfile makes; *target* is one of its stages."""
    tag = f"localhost/overlay-tests/{name or target}"
    file = ROOT / "deploy/image/Containerfile"
    given = ("--build-arg", f"COPIER={store.debian()}", "--timestamp", "0")
    store.bud(hook, tag, "-f", file, "--target", target, *given)
    return Image(store, tag)


def test_the_hook_s_image(store: Store, hook: Path, tmp_path: Path) -> None:
    first = carrier(store, hook, "volume")
    with store.container(first.reference) as root:
        found = tree(root)
        assert found.keys() == {f"/{path.relative_to(hook)}" for path in hook.rglob("*")}
        assert {(uid, gid) for _, uid, gid, _ in found.values()} == {(0, 0)}
        assert (root / "rocm_autopatch/__pycache__/__init__.cpython-311.pyc").is_file()
    # Another checkout, another day: the same layers.
    again = shutil.copytree(hook, tmp_path / "again")
    for path in again.rglob("*"):
        os.utime(path)
    second = carrier(store, again, "volume", "volume-again")
    assert [row["diff-digest"] for row in first.layers()] == [
        row["diff-digest"] for row in second.layers()
    ]


def gpu_pod(**more: Any) -> dict[str, Any]:
    """A Pod that asks for a GPU; *more* is for its container."""
    container = {
        "name": "model",
        "image": CASES["venv"].name,
        "resources": {"limits": {"amd.com/gpu": "1"}},
        **more,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "model"},
        "spec": {"containers": [container]},
    }


@pytest.mark.parametrize(("user", "read_only"), USERS)
@pytest.mark.parametrize(
    ("variant", "copier"),
    [("image-volume", 0), ("init-container", 0), ("init-container", 1000680000)],
)
def test_an_admitted_pod(
    store: Store,
    bases: dict[str, Image],
    hook: Path,
    tmp_path: Path,
    variant: str,
    copier: int,
    user: str,
    read_only: bool,
) -> None:
    """The Pod is what a variant of deploy/kubernetes makes of one that only asks for a GPU."""
    image = bases["venv"]
    asked = gpu_pod(env=[{"name": "PYTHONPATH", "value": "/plugins"}])
    admitted = Policy(variant).admit(asked)
    (volume,), (model,) = admitted["spec"]["volumes"], admitted["spec"]["containers"]
    (mount,) = model["volumeMounts"]
    assert mount["name"] == volume["name"]
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "sitecustomize.py").write_text("print('plugin')\n")
    for place in (tmp_path, plugins):
        place.chmod(0o755)
    with contextlib.ExitStack() as stack:
        if "image" in volume:
            filled = stack.enter_context(store.container(carrier(store, hook, "volume").reference))
        else:
            filled = tmp_path / "emptydir"
            filled.mkdir()
            # With the mode that the kubelet gives an emptyDir.
            filled.chmod(0o777)
            (first,) = admitted["spec"]["initContainers"]
            context = first["securityContext"]
            assert "runAsUser" not in context
            image_with_cp = carrier(store, hook, "init-container")
            image_with_cp.run(
                entrypoint=first["command"],
                # OpenShift picks one, and root's group.
                user=f"{copier}:0" if copier else image_with_cp.config["User"],
                read_only=context["readOnlyRootFilesystem"],
                mounts={first["volumeMounts"][0]["mountPath"]: filled},
            )
        run = partial(
            image.run,
            user=user,
            read_only=read_only,
            env=environment(model),
            mounts={mount["mountPath"]: filled, "/plugins": plugins},
            read_only_mounts=[mount["mountPath"]],
        )
        done = run("python3", "-c", SEEN)
        # The entrypoint starts Python, too.
        assert done.stdout == "plugin\nplugin\nNone,None,None\n"
        named = f"policy safe applies (image: {CASES['venv'].name}): "
        assert [line.startswith(named) for line in ours(done.said)] == [True, True]
        assert len(done.said) == 2
        status = run(
            "-m", "rocm_autopatch", "status", "--no-torch", "--line", entrypoint=["python3"]
        )
        line = json.loads(status.stdout.removeprefix("plugin\n"))
        assert (line["active"], line["errors"]) == (True, 0)
        assert (line["image"], line["policy"]) == (CASES["venv"].name, "safe")


@pytest.mark.parametrize(("user", "read_only"), USERS)
def test_policies_of_the_fleet_and_of_a_namespace(
    store: Store,
    bases: dict[str, Image],
    wheel: Path,
    tmp_path: Path,
    user: str,
    read_only: bool,
) -> None:
    """The hook's image carries the first; a ConfigMap, as the kubelet mounts one, has the second.

    The image has a third in /etc/rocm-autopatch, which nothing hides.
    """

    def write(directory: Path, *names: str) -> None:
        directory.mkdir()
        rows = "".join(f"  {name}: {{set: {directory.name}}}\n" for name in names)
        (directory / "team.yaml").write_text(f"version: 1\nname: {directory.name}\nenv:\n{rows}")

    write(tmp_path / "fleet", "A", "B", "C")
    hook = tmp_path / "hook"
    lay_out = ROOT / "deploy/image/tree.py"
    command: list[str | Path] = [sys.executable, lay_out, wheel, hook, "--site", tmp_path / "fleet"]
    subprocess.run(command, check=True)
    volume = tmp_path / "volume"
    volume.mkdir()
    write(volume / "namespace", "B", "C")
    (volume / "namespace").rename(volume / "..2026_11_23")
    (volume / "..data").symlink_to("..2026_11_23")
    (volume / "team.yaml").symlink_to("..data/team.yaml")
    # With a Pod's fsGroup, the kubelet's directories have these modes.
    for path in (volume, volume / "..2026_11_23"):
        path.chmod(0o2777)
    (volume / "..2026_11_23" / "team.yaml").chmod(0o644)
    config = parameters()
    config["data"].update(
        namespacePolicies="policies", ROCM_AUTOPATCH_SITE="/opt/rocm-autopatch/site"
    )
    (model,) = Policy("image-volume").admit(gpu_pod(), config)["spec"]["containers"]
    sources = {"rocm-autopatch-hook": hook, "rocm-autopatch-policies": volume}
    mounts = {row["mountPath"]: sources[row["name"]] for row in model["volumeMounts"]}
    assert len(mounts) == 2
    code = "import os; print(*map(os.environ.get, 'ABC'))"
    with store.container(bases["venv"].reference) as root:
        run = partial(
            bases["venv"].run,
            root=root,
            user=user,
            read_only=read_only,
            env=environment(model),
            mounts=mounts,
            read_only_mounts=list(mounts),
        )
        done = run("-c", code, entrypoint=["python3"])
        assert done.stdout == "fleet namespace namespace\n"
        write(root / "etc/rocm-autopatch", "C")
        (root / "etc/rocm-autopatch/team.yaml").chmod(0o644)
        done = run("-c", code, entrypoint=["python3"])
        assert done.stdout == "fleet namespace rocm-autopatch\n"
        line = json.loads(
            run(
                "-m", "rocm_autopatch", "status", "--no-torch", "--json", entrypoint=["python3"]
            ).stdout
        )
        assert line["errors"] == []
        assert line["sites"] == [
            "/opt/rocm-autopatch/site",
            "/opt/rocm-autopatch-policies",
            SITE_DIRECTORY,
        ]
        # A namespace without the ConfigMap.
        for path in (volume / "team.yaml", volume / "..data"):
            path.unlink()
        done = run("-c", code, entrypoint=["python3"])
        assert done.stdout == "fleet fleet rocm-autopatch\n"


@pytest.fixture(scope="session")
def with_pythonpath(store: Store, bases: dict[str, Image]) -> Image:
    """An image that sets PYTHONPATH itself."""
    name = store.buildah("from", "--pull-never", bases["venv"].reference).stdout.strip()
    try:
        root = Path(store.buildah("mount", name).stdout.strip())
        (root / "srv/own-modules").mkdir(mode=0o755)
        (root / "srv/own-modules/own.py").write_text("print('own')\n")
        store.buildah("config", "--env", "PYTHONPATH=/srv/own-modules", name)
        store.buildah("commit", "-q", name, "localhost/overlay-tests/with-pythonpath")
    finally:
        store.buildah("rm", name)
    return Image(store, "localhost/overlay-tests/with-pythonpath")


@pytest.mark.parametrize(("user", "read_only"), USERS)
def test_the_image_s_own_pythonpath(
    store: Store, with_pythonpath: Image, hook: Path, user: str, read_only: bool
) -> None:
    with store.container(carrier(store, hook, "volume").reference) as volume:

        def run_admitted(config: dict[str, Any], *command: str) -> Result:
            (model,) = Policy("image-volume").admit(gpu_pod(), config)["spec"]["containers"]
            paths = [row["mountPath"] for row in model["volumeMounts"]]
            return with_pythonpath.run(
                *command[1:],
                entrypoint=command[:1],
                user=user,
                read_only=read_only,
                env=environment(model),
                mounts=dict.fromkeys(paths, volume),
                read_only_mounts=paths,
                check=False,
            )

        config = parameters()
        # A Pod's variable takes the place of the image's, and nothing in the container has that any
        # more: no file, no process's environment, no mount.
        search = (
            "cd /; grep -rlsF own-modules $(ls -A | grep -vx -e proc -e sys -e dev); "
            "grep -lsF own-modules /proc/[0-9]*/environ /proc/[0-9]*/mountinfo; echo searched"
        )
        assert run_admitted(config, "sh", "-c", search).stdout == "searched\n"
        done = run_admitted(config, "python3", "-c", "import own")
        assert done.said[-1] == "ModuleNotFoundError: No module named 'own'"

        # Beside the standard library, the hook needs no variable.
        config["data"]["pythonZips"] = "/usr/lib/python311.zip /opt/none/lib/python312.zip"
        done = run_admitted(config, "python3", "-c", f"import own; {SEEN}")
        assert done.stdout == "own\nNone,None,None\n"
        assert len(ours(done.said)) == len(done.said) == 1
        done = run_admitted(config, "python3", "-I", "-c", SEEN)
        assert done.stdout == "None,None,None\n"
        done = run_admitted(
            config, "env", "-i", "/opt/venv/bin/python3", "-m", "rocm_autopatch", "status"
        )
        assert done.stdout.startswith("safe applies")


def test_the_compose_file() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/overlay.md").read_text(), re.DOTALL)
    (service,) = yaml.safe_load(block)["services"].values()
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    text = (ROOT / "Dockerfile.overlay").read_text()
    assert f"ARG BASE_IMAGE={service['build']['args']['BASE_IMAGE']}\n" in text


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("hadolint", "Dockerfile.overlay"),
        ("hadolint", "deploy/image/Containerfile"),
        ("shellcheck", "overlay/install.sh"),
    ],
)
def test_lint(tool: str, file: str) -> None:
    command = [Path(sys.executable).with_name(tool), ROOT / file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


FULL = "docker.io/rocm/sgl-dev:v0.5.8-rocm700-mi35x-20260129"
# The image has no compiler, so this tests Dynamo and the mode table, but compiles no code.
PROGRAM = """
import json, threading, torch, torch._inductor.config as c
compiled = torch.compile(torch.nn.Linear(4, 4), backend="eager")
x = torch.ones(2, 4)
seen = []
thread = threading.Thread(target=lambda: seen.append([c.max_autotune, c.triton.cudagraph_trees]))
thread.start(); thread.join()
mode = dict(torch._TorchCompileInductorWrapper("reduce-overhead", None, None).config)
print(json.dumps([list(compiled(x).shape), seen, mode]))
"""


@pytest.fixture(scope="session")
def full(store: Store, context: Path) -> Image:
    """An image of full size: torch 2.13.0 for the CPU with a HIP label, but no HIP runtime."""
    if os.environ.get("ROCM_AUTOPATCH_TEST_OVERLAY") != "full":
        pytest.skip("set ROCM_AUTOPATCH_TEST_OVERLAY=full for an image of 1.2 GB")
    _, hip = hip_torch.create(WORK)
    name = store.buildah("from", "--pull-never", store.debian()).stdout.strip()
    root = Path(store.buildah("mount", name).stdout.strip())
    subprocess.run(["chroot", root, "python3", "-m", "venv", "/opt/venv"], check=True)
    site = root / "opt/venv/lib/python3.11/site-packages"
    subprocess.run(["cp", "-r", f"{hip_torch.site_packages(hip)}/.", site], check=True)
    variables = {**image_env.load().env, "PATH": "/opt/venv/bin:/usr/bin:/bin"}
    settings = [word for item in variables.items() for word in ("--env", "=".join(item))]
    store.buildah("config", *settings, name)
    store.buildah("commit", "-q", name, FULL)
    store.buildah("rm", name)
    overlay(store, context, FULL, "localhost/overlay-tests/full")
    return Image(store, "localhost/overlay-tests/full")


def test_status_with_torch(full: Image) -> None:
    done = full.run("/opt/venv/bin/python3", "-m", "rocm_autopatch", "status", "--json")
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["baked"] == "/opt/venv/lib/python3.11/site-packages/rocm_autopatch/baked.plan"
    assert report["facts"]["image"]["value"] == FULL
    assert {row["status"] for row in report["patches"]} == {"applied"}
    assert {row["status"] for row in report["config"]} == {"applied"}
    assert (rows(report)[MAX]["origin"], rows(report)[MAX]["status"]) == ("image", "applied")


@pytest.mark.parametrize(("user", "read_only"), [("0:0", False), ("65534:65534", True)])
def test_a_program(full: Image, tmp_path: Path, user: str, read_only: bool) -> None:
    # Nothing else can be written, but torch itself needs a directory for temporary files.
    tmp_path.chmod(0o777)
    done = full.run(
        *("/opt/venv/bin/python3", "-c", PROGRAM),
        user=user,
        read_only=read_only,
        mounts={"/tmp": tmp_path},
    )
    shape, seen, mode = json.loads(done.stdout)
    assert (shape, seen) == ([2, 4], [[False, False]])
    assert not mode.get("triton.cudagraphs")
    assert len([line for line in done.said if line.startswith("rocm_autopatch: ")]) == 1
