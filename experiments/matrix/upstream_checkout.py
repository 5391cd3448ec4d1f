"""PyTorch's test/ of one version: a checkout that is there, or one that git fetches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ADDRESS = "https://github.com/pytorch/pytorch"


class CheckoutError(Exception):
    """There are no tests; the text says why, and what to do."""


def release(version: str) -> str:
    """The release that a version belongs to: 2.6.0 of ``2.6.0+rocm6.2`` and of ``2.6.0a0``."""
    found = re.match(r"\d+(\.\d+)+", version.strip())
    return found[0] if found else ""


def tag(version: str) -> str:
    """PyTorch's tag of the release that a torch is.

    Raises:
        CheckoutError: it is no release, such as 2.14.0.dev20261101+rocm7.0.
    """
    public = version.partition("+")[0]
    if not re.fullmatch(r"\d+\.\d+\.\d+", public):
        raise CheckoutError(
            f"torch {version} is no release, so PyTorch has no tag with its tests; "
            "give a directory with the tests of its commit (torch.version.git_version)"
        )
    return f"v{public}"


def version(checkout: Path) -> str:
    """What version.txt says, or "" if there is none."""
    path = checkout / "version.txt"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def given(checkout: Path) -> Path:
    """A checkout that the user has.

    Raises:
        CheckoutError: it has no test/.
    """
    if not (checkout / "test").is_dir():
        raise CheckoutError(f"{checkout} is no checkout of PyTorch: it has no directory test")
    return checkout.resolve()


def fetch(torch: str, address: str, directory: Path) -> Path:
    """Fetch the tests of *torch*'s tag, and nothing of its history; or find them in *directory*.

    Raises:
        CheckoutError: git or the tag is not there, the address does not answer, or it is
            something else than PyTorch.
    """
    name = tag(torch)
    target = directory / name
    if target.is_dir() and _git("-C", target, "remote", "get-url", "origin") == address:
        return target
    unfinished = directory / f"{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        options = ("--depth=1", "--filter=blob:none", "--sparse", f"--branch={name}")
        _git("clone", "--quiet", *options, "--", address, unfinished)
        # With what lies in the root itself, such as version.txt.
        _git("-C", unfinished, "sparse-checkout", "set", "test")
    except CheckoutError as problem:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckoutError(
            f"the tests of {name} can't be fetched from {address}: {problem}; give a "
            "directory with PyTorch's test/, or another address by --from"
        ) from None
    if not (unfinished / "test").is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckoutError(f"{name} of {address} has no directory test: is it PyTorch's?")
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    return target


def _git(*words: str | Path) -> str:
    try:
        # git must not ask for a password and wait.
        done = subprocess.run(
            ["git", "-c", "advice.detachedHead=false", *words],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise CheckoutError("there is no git on PATH") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        # The first one says why.
        raise CheckoutError(
            said[0].rstrip(".") if said else f"git ended with status {done.returncode}"
        )
    return done.stdout.strip()
