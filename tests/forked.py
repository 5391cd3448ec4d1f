"""Programs that begin alike: a process runs the beginning once, and each goes on in a fork of it.

Importing torch with Dynamo and Inductor takes 4 s of CPU time, and most programs of the tests
need less than one after it. A fork has the modules, the settings and our record as they are after
the beginning, and nothing of what another program did. What looks at a start or at an import of
torch needs a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.programs import program_file

if TYPE_CHECKING:
    from tests.conftest import Interpreter

# So many processes are kept for more programs: each has some 300 MB.
KEPT = 5


class Begun:
    """A process that has run a beginning."""

    def __init__(self, python: Interpreter, beginning: str, env: Mapping[str, str]) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.said = Path(self.directory.name, "said")
        with open(self.said, "w") as stderr:
            self.process = subprocess.Popen(
                [python.path, program_file("forked/serve.py"), beginning],
                env=python.environment(env),
                cwd=python.path.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        limit = threading.Timer(300, self.process.kill)
        limit.start()
        try:
            assert self._answer() == "begun"
        except AssertionError:
            self.process.kill()
            self.close()
            raise
        finally:
            limit.cancel()

    def _answer(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the beginning failed:\n{self.said.read_text()}")
        return line.rstrip("\n")

    def run(self, **asked: Any) -> subprocess.CompletedProcess[str]:
        streams = [Path(self.directory.name, name) for name in ("stdout", "stderr")]
        for path in streams:
            path.write_text("")
        stdout, stderr = map(str, streams)
        asked.update(stdout=stdout, stderr=stderr)
        assert self.process.stdin
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        status = int(self._answer())
        # What the beginning said belongs to each of its programs.
        said = self.said.read_text() + streams[1].read_text()
        return subprocess.CompletedProcess([], status, streams[0].read_text(), said)

    def close(self) -> None:
        self.process.communicate()
        self.directory.cleanup()


# The processes that can be forked, the one that was used last at the end.
_begun: dict[tuple[object, ...], Begun] = {}


def say_failure(what: str, done: subprocess.CompletedProcess[str]) -> str:
    """What was expected of a program that has failed, and all that it wrote.

    pytest shows the first line once more in its summary, so that has the last line of stderr.
    """
    last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    short = textwrap.shorten(what, 40, placeholder=" ...")
    said = f"{last} (status {done.returncode}, not 0, of {short})"
    return f"{said}\n{done.stdout}\n{done.stderr}"


def run(
    python: Interpreter,
    beginning: str,
    code: str | Path,
    *arguments: str,
    env: Mapping[str, str],
    later: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program after *beginning*, with *env* for both.

    *code* is the program's file, or a text that may use all names of *beginning*, which stands
    before it in *file*: tracebacks and ``sys.argv`` name it. *later* are variables that are set
    only after the beginning.
    """
    line = beginning.count("\n")
    if isinstance(code, Path):
        file, line = code, 0
        code = code.read_text(encoding="utf-8")
    key = (python.path, beginning, *sorted(env.items()))
    begun = _begun.pop(key, None) or Begun(python, beginning, env)
    _begun[key] = begun
    while len(_begun) > KEPT:
        _begun.pop(next(iter(_begun))).close()
    done = begun.run(
        program=code,
        line=line,
        file=str(file) if file else "",
        arguments=arguments,
        env=dict(later or {}),
    )
    if done.returncode:
        __tracebackhide__ = True  # for pytest: the test's own line stands above the message
        raise AssertionError(say_failure(file.name if file else "the program", done))
    return done


def close() -> None:
    """End all processes: other tests may change the files that those have read."""
    while _begun:
        _begun.popitem()[1].close()
