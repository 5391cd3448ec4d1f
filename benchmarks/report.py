"""What the compile report costs during a compile, and how long it takes to read a long one.

    python -m benchmarks.report overhead --python VENV/bin/python [--rounds 7]
    python -m benchmarks.report reading TRACE [--graphs 10000]

``overhead`` compiles one program in fresh processes with cold caches, in turn without and with the
report. It prints the seconds of the compiles and their ratio. VENV has torch and the wheel.
``reading`` copies a real trace many times, as if the processes of a longer command had written it,
and reads the copies. It says how much disk it needs.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.compile_report import page, summary
from rocm_autopatch.compile_report.gather import gather_report

# Eight graphs and a backward, with a few breaks, as in real programs.
PROGRAM = """
import time, torch
def block(x, w, n):
    return torch.softmax(x @ w + n, -1).relu()
def broken(x, w):
    y = block(x, w, 1)
    torch._dynamo.graph_break()
    return block(y, w, 2)
w = torch.ones(32, 32, requires_grad=True)
started = time.perf_counter()
for n in range(3):
    torch._dynamo.reset()
    torch.compile(broken)(torch.ones(8 + n, 32), w).sum().backward()
print(time.perf_counter() - started)
"""


def overhead(python: str, rounds: int) -> None:
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(rounds):
        ways = ("without", "with") if number % 2 else ("with", "without")
        for way in ways:
            with tempfile.TemporaryDirectory() as scratch:
                env = {"PATH": os.environ["PATH"], "HOME": scratch, "ROCM_AUTOPATCH_LOG": "quiet"}
                env["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/cache"
                if way == "with":
                    env["ROCM_AUTOPATCH_REPORT"] = f"{scratch}/report"
                done = subprocess.run(
                    [python, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, check=True, text=True
                )
            seconds[way].append(float(done.stdout))
    for way, measured in seconds.items():
        each = ", ".join(f"{one:.1f}" for one in measured)
        print(f"{way:8} {each}: median {statistics.median(measured):.2f} s")
    ratios = [one / other for one, other in zip(seconds["with"], seconds["without"])]
    print(
        f"ratio with/without: of medians "
        f"{statistics.median(seconds['with']) / statistics.median(seconds['without']):.3f}, "
        f"of each round {min(ratios):.2f} to {max(ratios):.2f}"
    )


def reading(trace: Path, graphs: int) -> None:
    text = trace.read_text(encoding="utf-8", errors="replace")
    parts = re.split(r'(?<="frame_id": )(\d+)', text)
    frames = [int(part) for part in parts[1::2]]
    count = 1 + max(frames)
    with tempfile.TemporaryDirectory() as scratch:
        once = Path(scratch, "once")
        once.mkdir()
        target = once / trace.name
        target.write_text(text, encoding="utf-8")
        each = len(gather_report(once).graphs)
        target.unlink()
        with open(target, "w", encoding="utf-8") as stream:
            for number in range(-(-graphs // each)):
                parts[1::2] = [str(frame + number * count) for frame in frames]
                stream.write("".join(parts))
        del text, parts, frames
        started, worked = time.perf_counter(), time.process_time()
        report = gather_report(once)
        read, worked = time.perf_counter(), time.process_time() - worked
        lines = sum(1 for _ in summary.summary_lines(report))
        shown = time.perf_counter()
        html = len(page.html_page(report, {}))
        done = time.perf_counter()
    print(
        f"{len(report.graphs):,} graphs, {report.size / 1e6:,.0f} MB of trace: read in "
        f"{read - started:.1f} s ({worked:.1f} s of CPU), summary of "
        f"{lines} lines in {shown - read:.1f} s, page of {html / 1e6:.1f} MB in "
        f"{done - shown:.1f} s, peak of the process {peak():.0f} MB"
    )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("overhead")
    one.add_argument("--python", required=True)
    one.add_argument("--rounds", type=int, default=7)
    other = parts.add_parser("reading")
    other.add_argument("trace", type=Path)
    other.add_argument("--graphs", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.part == "overhead":
        overhead(arguments.python, arguments.rounds)
    else:
        reading(arguments.trace, arguments.graphs)


if __name__ == "__main__":
    main()
