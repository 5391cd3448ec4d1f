"""PyTorch's structured trace (TORCH_TRACE), as a stream of events.

A file is text. Each event has a head line, `V1121 19:13:29.512000 PID FILE:LINE] {JSON}`, and the
lines of its payload, each after a tab. A file may be gigabytes long, end in the middle of a line,
and hold lines of several processes (up to torch 2.11, a fork writes to its parent's file). So
events are read one by one. What can't be read is counted and left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rocm_autopatch.patches.cache_misses import CHANGED

PATTERN = "dedicated_log_torch_trace_*.log"
_HEAD = re.compile(
    rb"[VIWECF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) (\d+) [^\]]*\] (\{.*)", re.DOTALL
)
# A longer payload, in bytes, is cut. The text of a graph with ten thousand nodes has 5 MB.
LONGEST_PAYLOAD = 1 << 26
_LONGEST_LINE = 1 << 26

# The names of events that the report reads. An artifact has a name of its own.
METRICS = ("compilation_metrics", "bwd_compilation_metrics")
GRAPHS = (
    *("inductor_post_grad_graph", "aot_inference_graph", "aot_forward_graph"),
    *("aot_backward_graph", "dynamo_output_graph"),
)
CACHES = ("fx_graph_cache", "aotautograd_cache")
_WITH_PAYLOAD = (
    *GRAPHS,
    "inductor_output_code",
    "dynamo_cpp_guards_str",
    "dynamo_graph_break_reason",
    "recompile_reasons",
    "chromium_event",
    "torch_version",
    CHANGED,
)


@dataclass(frozen=True)
class TraceEvent:
    """One event. The name is the artifact's, if it is one. A missing payload is ""."""

    name: str
    data: Any
    payload: str
    process: int
    time: float  # seconds since 1970
    compile: str  # "9/1": the second compile of the tenth code object; "" outside of a compile
    rank: int | None


@dataclass
class TraceFile:
    """A trace file while it is read, and what was found out about it."""

    path: Path
    corrupt: int = 0  # lines that are neither an event nor a payload
    cut: bool = False  # whether it ends in the middle of a line
    size: int = 0  # bytes that were read
    strings: dict[int, str] = field(default_factory=dict)

    def events(self) -> Generator[TraceEvent, None, None]:
        """The events that the report needs. Raises OSError if the file can't be read."""
        year = datetime.fromtimestamp(self.path.stat().st_mtime).year
        with open(self.path, "rb") as stream:
            head: tuple[re.Match[bytes], str, dict[str, Any]] | None = None
            payload: list[bytes] = []
            size = 0
            line = b"\n"
            for line in iter(partial(stream.readline, _LONGEST_LINE), b""):
                self.size += len(line)
                if line[0] == 9:  # a tab
                    if head is not None and size < LONGEST_PAYLOAD:
                        payload.append(line[1:])
                        size += len(line)
                    continue
                if head is not None:
                    if head[1] != "chromium_event" or any(b"autotun" in text for text in payload):
                        yield self._parse_event(head, payload, year)
                    head, payload, size = None, [], 0
                match = _HEAD.match(line)
                if match is not None and match[8].startswith(b'{"chromium_event"'):
                    # Eight of ten heads are of this kind. The payload tells if one is needed.
                    head = (match, "chromium_event", {})
                    continue
                data = _parse_payload(match[8]) if match else None
                if match is None or not isinstance(data, dict) or not data:
                    self.corrupt += bool(line.strip())
                    continue
                name = self._artifact_name(data)
                if name in _WITH_PAYLOAD or name.startswith(CACHES):
                    head = (match, name, data)
                elif name in METRICS or name == "dynamo_start":
                    yield self._parse_event((match, name, data), [], year)
            if head is not None:
                # Any last event is given: it tells what a killed process did last.
                yield self._parse_event(head, payload, year)
            self.cut = not line.endswith(b"\n")

    def _artifact_name(self, data: dict[str, Any]) -> str:
        # The name comes first, before rank and the compile's id.
        name, about = next(iter(data.items()))
        if name == "artifact" and isinstance(about, dict):
            return str(about.get("name", ""))
        if name == "str" and isinstance(about, list) and len(about) == 2:
            # A file name is written once. Later events have its number.
            self.strings[about[1]] = str(about[0])
        return str(name)

    def _parse_event(
        self, head: tuple[re.Match[bytes], str, dict[str, Any]], payload: list[bytes], year: int
    ) -> TraceEvent:
        match, name, data = head
        data = data or _parse_payload(match[8]) or {"": None}
        month, day, hour, minute, second = (int(match[i]) for i in range(1, 6))
        try:
            when = datetime(year, month, day, hour, minute, second).timestamp()
        except ValueError:
            when = 0.0
        frame = data.get("frame_id")
        graph = "" if frame is None else f"{frame}/{data.get('frame_compile_id', 0)}"
        if data.get("compiled_autograd_id") is not None:
            graph = f"!{data['compiled_autograd_id']}{'/' if graph else ''}{graph}"
        return TraceEvent(
            name=name,
            data=next(iter(data.values())),
            payload=b"".join(payload).decode("utf-8", "replace"),
            process=int(match[7]),
            time=when + int(match[6]) / 10 ** len(match[6]),
            compile=graph,
            rank=data.get("rank"),
        )


def _parse_payload(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
