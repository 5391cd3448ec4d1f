"""g++ for tests with a real torch: what it has made once of a text, it gives again.

In each empty cache torch compiles some programs, to see what the processor can do, and tests have
hundreds of empty caches. ``ccache`` keeps no library, and torch compiles and links in one command.

``install(directory, kept)`` writes the command; torch finds it as g++ in PATH.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

# Torch asks for the version of its compiler, and for its name.
COMMAND = """#!/bin/sh
exec {python} -IS {here} {real} {kept} "$@"
"""


def install(directory: Path, kept: Path) -> None:
    """Write ``g++`` into *directory*. What it makes is kept in *kept*, for later runs, too."""
    real = shutil.which("g++")
    assert real is not None, "torch needs g++; make system installs it"
    directory.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    words = {"python": sys.executable, "here": __file__, "real": real, "kept": kept.absolute()}
    text = COMMAND.format(**{name: shlex.quote(str(word)) for name, word in words.items()})
    written = directory / f"g++.{os.getpid()}"
    written.write_text(text)
    written.chmod(0o755)
    written.replace(directory / "g++")


def of(arguments: list[str]) -> tuple[str, str] | None:
    """The text to compile and the file to write, where there is one of each. None for a header
    that is compiled ahead: torch keeps it for all caches."""
    if "c++-header" in arguments:
        return None
    outputs = [after for word, after in zip(arguments, arguments[1:]) if word == "-o"]
    followed = {"-o", "-include", "-x", "-D", "-I", "-L"}
    texts = [
        word
        for before, word in zip(["", *arguments], arguments)
        if before not in followed and word.endswith((".cpp", ".hpp", ".h"))
    ]
    return (texts[0], outputs[0]) if len(texts) == len(outputs) == 1 else None


def main(real: str, kept: str, *arguments: str) -> int:
    found = of([*arguments])
    if found is None:
        os.execv(real, [real, *arguments])
    text, output = found
    status = os.stat(real)
    same = [word for word in arguments if word not in found]
    with open(text, "rb") as stream:
        content = stream.read()
    key = hashlib.sha256(
        repr((real, status.st_mtime_ns, status.st_size, same)).encode() + content
    ).hexdigest()
    entry = os.path.join(kept, key)
    if not os.path.exists(entry):
        done = subprocess.run([real, *arguments])
        if done.returncode == 0:
            put(output, entry)
        return done.returncode
    put(entry, output)
    return 0


def put(source: str, target: str) -> None:
    """Copy whole or not at all: other processes look for it."""
    part = f"{target}.{os.getpid()}"
    try:
        shutil.copy(source, part)
        os.replace(part, target)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        if not os.path.exists(target):
            raise


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
