"""The Python files of torch wheels, their config modules without the rest of torch, and tables.

A script of this folder is called with DIRECTORY [VERSION ...]. DIRECTORY/VERSION/torch holds the
Python files of a torch wheel. A version that is missing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

VERSIONS = ["2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1"]
VERSIONS += ["2.13.0", "2.14.1", "2.15.0"]
WHEEL = ["--only-binary=:all:", "--platform=macosx_11_0_arm64", "--platform=macosx_14_0_arm64"]
WHEEL += ["--python-version=3.11", "--implementation=cp", "--abi=cp311"]  # the smallest there are

INDUCTOR, DYNAMO = "torch._inductor.config", "torch._dynamo.config"
COMPILER = "torch.compiler.config"
PACKAGES = ("torch", "torch.utils", "torch._inductor", "torch._dynamo", "torch.compiler")
MOCKS = ("version", "_utils_internal", "_inductor.custom_graph_pass", "_inductor.choices")


def directories(description: str) -> tuple[list[Path], str]:
    """The directories of the versions that a script is called with, and what child() asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("directory", type=Path, help="the directory of unpacked versions")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    found = [asked.directory.resolve() / name for name in asked.versions]
    for directory in found:
        if not directory.is_dir():
            fetch(directory)
    return found, asked.child


def child(directory: Path, what: str, env: Mapping[str, str]) -> Any:
    """What this script prints as JSON for one version, in a process of its own."""
    command = [sys.executable, "-B", "-Wignore", sys.argv[0], "--child", what]
    command += [str(directory.parent), directory.name]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def table(
    found: Mapping[str, Mapping[str, str]], expected: Callable[[str], Mapping[str, str]]
) -> int:
    """Print a line for each fact. The exit status is 1 if a version is not as *expected*."""
    wrong = False
    width = max(map(len, expected("0.0")))
    for name in expected("0.0"):
        said = {version: some[name] for version, some in found.items()}
        wanted = {version: expected(version)[name] for version in found}
        wrong = not show(f"{name:{width}}", said, wanted) or wrong
    return int(wrong)


def facts_table(
    description: str,
    make: Callable[[Path], Any],
    facts: Mapping[str, Callable[[Any], str]],
    expected: Callable[[str], Mapping[str, str]],
) -> int:
    """The same for *facts* that are read from what *make* makes of each version's directory."""
    versions, _ = directories(description)
    sources = {directory.name: make(directory) for directory in versions}
    found = {
        version: {name: read(source) for name, read in facts.items()}
        for version, source in sources.items()
    }
    return table(found, expected)


def fetch(directory: Path) -> None:
    """Download a torch wheel, and keep its Python files."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"--dest={scratch}"]
        subprocess.run([*pip, *WHEEL, f"torch=={directory.name}"], check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(f"{scratch}/py", [n for n in wheel.namelist() if n.endswith(".py")])
        os.rename(f"{scratch}/py", directory)


def load(directory: Path) -> None:
    """Import the config modules of the torch in *directory*, in packages that are mocks."""
    torch: Any = mock.MagicMock()
    for name in (*PACKAGES, *(f"torch.{name}" for name in MOCKS)):
        stub = torch
        for part in name.split(".")[1:]:
            stub = getattr(stub, part)
        stub.__class__, stub.__spec__, sys.modules[name] = ModuleType, None, stub
        if name in PACKAGES:
            stub.__path__ = [str(directory.joinpath(*name.split(".")))]
    torch.__file__, torch.__version__ = str(directory / "torch" / "__init__.py"), directory.name
    torch.version.hip = "7.0"
    torch._utils.cpu_count.return_value = 8
    torch._utils_internal.justknobs_check = lambda name, default=True: default
    torch._utils_internal.justknobs_getval_int.return_value = 0
    torch._inductor.choices.inductor_choices_cache_key = repr
    with suppress(ModuleNotFoundError):  # torch 2.4 and 2.5 have none
        importlib.import_module(COMPILER)
    importlib.import_module(INDUCTOR)
    dynamo: Any = importlib.import_module(DYNAMO)
    # The save_config of 2.4 and 2.5 leaves out a key, and fails because it is not there.
    if directory.name.startswith(("2.4.", "2.5.")):
        dynamo._save_config_ignore.intersection_update(dynamo._config)


def show(name: str, said: dict[str, str], wanted: dict[str, str]) -> bool:
    """Print what was found, by spans of versions. Returns whether everything is as wanted."""
    spans: list[tuple[str, list[str]]] = []
    for version, what in said.items():
        marked = what if what == wanted[version] else "! " + what
        if not spans or spans[-1][0] != marked:
            spans.append((marked, []))
        spans[-1][1].append(version)
    texts = (f"{what} ({' to '.join(dict.fromkeys((v[0], v[-1])))})" for what, v in spans)
    print(name, ", ".join(texts))
    return said == wanted
