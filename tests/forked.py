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
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Interpreter

# Follows the beginning. The process reads one request a line, and ends after the last one. A fork
# leaves the loop, and runs its program at the top of __main__, as -c does or as a file is run.
GOES_ON = """
import atexit, gc, json, os, signal, sys
# What a collector writes to, each fork would have to copy.
gc.freeze()
print("begun", flush=True)
while asked := sys.stdin.readline():
    fork = os.fork()
    if not fork:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
if asked:
    asked = json.loads(asked)
    signal.alarm(300)
    for fd, path in enumerate(("/dev/null", asked["stdout"], asked["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.update(asked["env"])
    sys.argv[1:] = asked["arguments"]
    if asked["file"]:
        __file__ = sys.argv[0] = asked["file"]
        sys.path[0] = os.path.dirname(__file__)
    # A line has the number that it would have after the beginning.
    program = "\\n" * asked["line"] + asked["program"]
    exec(compile(program, asked["file"] or "<string>", "exec"))
# To take all modules apart, as the interpreter does at its end, takes longer than most programs.
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
# So many processes are kept for more programs: each has some 300 MB.
KEPT = 5


class Begun:
    """A process that has run a beginning."""

    def __init__(self, python: Interpreter, beginning: str, env: Mapping[str, str]) -> None:
        self.line = beginning.count("\n")
        self.directory = tempfile.TemporaryDirectory()
        self.said = Path(self.directory.name, "said")
        with open(self.said, "w") as stderr:
            self.process = subprocess.Popen(
                [python.path, "-c", beginning + GOES_ON],
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

    def run(self, program: str, **asked: Any) -> subprocess.CompletedProcess[str]:
        streams = [Path(self.directory.name, name) for name in ("stdout", "stderr")]
        for path in streams:
            path.write_text("")
        stdout, stderr = map(str, streams)
        asked.update(program=program, line=self.line, stdout=stdout, stderr=stderr)
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


def run(
    python: Interpreter,
    beginning: str,
    program: str,
    *arguments: str,
    env: Mapping[str, str],
    later: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program that may use all names of *beginning*, with *env* for both.

    *later* are variables that are set only after the beginning. *file* is where the program seems
    to be: tracebacks and ``sys.argv`` name it.
    """
    key = (python.path, beginning, *sorted(env.items()))
    begun = _begun.pop(key, None) or Begun(python, beginning, env)
    _begun[key] = begun
    while len(_begun) > KEPT:
        _begun.pop(next(iter(_begun))).close()
    name = str(file) if file else ""
    done = begun.run(program, arguments=arguments, env=dict(later or {}), file=name)
    if done.returncode:
        raise AssertionError(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def close() -> None:
    """End all processes: other tests may change the files that those have read."""
    while _begun:
        _begun.popitem()[1].close()
