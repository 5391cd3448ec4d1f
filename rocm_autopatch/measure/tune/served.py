"""A server and its client as one command: started, waited for, measured by the client, stopped.

A server is ready when a process of it listens on a TCP port. Or, if the user says how it is seen,
when a text is in its output, or when a URL answers.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rocm_autopatch.measure.ab import runner
from rocm_autopatch.measure.ab.numbers import NumberLabel, NumberPattern
from rocm_autopatch.measure.ab.runner import ENDED, FAILED, HUNG, ArmRunner, CommandEnd
from rocm_autopatch.support import processes

STARTED = NumberLabel("server start", "s")
_LISTENS = "0A"
_POLL_S = 0.05


class ServedRunner(ArmRunner):
    """Runs a *client* against a *server*, both with the environment of an arm.

    *ready* is a text of the server's output, a URL, or "" for a port on which it listens.
    The wall time of a run is the client's. How long the server took to be ready is the number
    STARTED. The limit is for each of the two.
    """

    def __init__(
        self,
        server: Sequence[str],
        ready: str,
        client: Sequence[str],
        limit_s: float,
        patterns: Sequence[NumberPattern],
    ) -> None:
        super().__init__(client, [], limit_s, patterns)
        self.server, self.ready = server, ready

    def execute(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[Path, Path],
        mark: str,
    ) -> CommandEnd:
        output = self.directory / "server"
        for file in streams:
            file.write_bytes(b"")  # If the server does not start, no client writes.
        try:
            with output.open("wb") as stream:
                began = time.perf_counter()
                server = processes.start(self.server, environment, stream, stream)
                trouble = self._wait_until_ready(server, output, mark)
                started = time.perf_counter() - began
            if trouble is not None:
                server.kill()
                return trouble
            found = self._run_client(program, environment, streams, mark)
            over = server.ends(0)
            if not over:
                server.kill()
            elif found.status == ENDED:
                return self._failed_end(
                    f"the server ended before the client: {processes.how_it_ended(server.status)}",
                    output,
                )
        finally:
            processes.end_left_over(mark, 0)
        return CommandEnd(
            found.seconds, found.status, found.reason, {STARTED: started}, found.last_lines
        )

    def _run_client(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[Path, Path],
        mark: str,
    ) -> CommandEnd:
        with streams[0].open("wb") as stdout, streams[1].open("wb") as stderr:
            command = processes.start(program, environment, stdout, stderr)
            if not command.ends(self.limit_s):
                command.kill()
                reason = f"the client did not end within {self.limit_s:g} s"
                return CommandEnd(command.seconds, HUNG, reason)
        if command.status:
            reason = f"the client: {processes.how_it_ended(command.status)}"
            return CommandEnd(command.seconds, FAILED, reason)
        return CommandEnd(command.seconds, ENDED)

    def _wait_until_ready(
        self, server: processes.RunningCommand, output: Path, mark: str
    ) -> CommandEnd | None:
        """Wait until the server is ready. What went wrong, None if nothing did."""
        seen = self._seen_in_output(output, mark)
        patience = time.monotonic() + self.limit_s
        while not seen():
            if server.ends(_POLL_S):
                return self._failed_end(
                    f"the server ended: {processes.how_it_ended(server.status)}", output
                )
            if time.monotonic() > patience:
                reason = f"the server was not ready within {self.limit_s:g} s"
                return self._failed_end(reason, output, HUNG)
        return None

    def _seen_in_output(self, output: Path, mark: str) -> Callable[[], bool]:
        if self.ready.startswith(("http://", "https://")):
            return lambda: _url_answers(self.ready)
        if self.ready:
            return lambda: self.ready in runner.read_tail(output)
        return lambda: _process_listens(mark)

    def _failed_end(self, reason: str, output: Path, status: str = FAILED) -> CommandEnd:
        return CommandEnd(0.0, status, reason, {}, runner.last_lines(runner.read_tail(output)))


def _url_answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status < 400)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _process_listens(mark: str) -> bool:
    """Whether a process that has *mark* in its environment listens on a TCP port."""
    sockets = set(_listening_sockets())
    for pid in processes.marked(mark):
        try:
            for entry in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{entry}") in sockets:
                    return True
        except OSError:
            pass  # It has ended meanwhile.
    return False


def _listening_sockets() -> Iterator[str]:
    """The sockets that listen on TCP, as links of descriptors name them."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENS:
                yield f"socket:[{fields[9]}]"
