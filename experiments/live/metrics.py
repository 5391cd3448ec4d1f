# mypy: disable-error-code="import-not-found, no-any-return, misc, untyped-decorator"
"""``status --textfile`` read by the real node_exporter and Prometheus, and the alerts on it.

    python3 metrics.py CHECK

prints ``ok``, or what differs. run.py calls this in the root of the launchers.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launchers import HERE, HOOK, PROOF, Differs, expect, main, said, serve, sh, wait_for, write
from prometheus_client.parser import text_string_to_metric_families

STATUS = "python3 -m rocm_autopatch status --no-torch --textfile"
HOOKED = {"PYTHONPATH": HOOK}
RULES = "rocm_autopatch.rules.yml"
PORT = 9100
# Of the metrics, all but the time.
Metrics = dict[tuple[str, str], tuple[dict[str, str], float]]
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def exporter(directory: Path, port: int = PORT) -> None:
    """Start node_exporter for the files of a directory."""
    directory.mkdir(parents=True)
    only = f"--collector.disable-defaults --collector.textfile.directory={directory}"
    options = f"{only} --collector.textfile --web.listen-address=127.0.0.1:{port}"
    log = Path(f"{directory}.log")
    serve(f"prometheus-node-exporter {options}", log)
    wait_for("node_exporter", lambda: "Listening on" in log.read_text())


def scraped(port: int = PORT) -> Metrics:
    """What node_exporter has of ours: by metric and file, the other labels and the value."""
    found: Metrics = {}
    for family in text_string_to_metric_families(fetch(f"http://127.0.0.1:{port}/metrics")):
        for sample in family.samples:
            if sample.name.startswith("rocm_autopatch_"):
                labels = dict(sample.labels)
                key = (sample.name.removeprefix("rocm_autopatch_"), labels.pop("file"))
                expect("type", family.type, "gauge")
                found[key] = (labels, sample.value)
            elif sample.name == "node_textfile_scrape_error":
                expect(sample.name, sample.value, 0)
    return found


@check
def node_exporter() -> None:
    """It has what ``status --line`` says, also of two files, and odd values."""
    directory = Path("/run/metrics")
    exporter(directory)
    expect("before", scraped(), {})
    began = time.time()
    sh(f"{STATUS} {directory}/a.prom", HOOKED)
    expect("promtool", sh(f"promtool check metrics < {directory}/a.prom").stderr, "")
    (line,) = said(sh(PROOF, HOOKED).stdout)
    found = scraped()
    labels = {name: line[name] for name in ("policy", "image", "torch", "rocm", "gfx", "digest")}
    expect("info", found["info", "a.prom"], (labels, 1))
    expect("active", found["active", "a.prom"], ({}, 1))
    expect("errors", found["errors", "a.prom"], ({}, 0))
    _, checked = found["checked_timestamp_seconds", "a.prom"]
    expect("time", int(began) <= checked <= time.time(), True)

    odd = 'a"b\\c\nd\u202e\xe9'
    sh(f"{STATUS} {directory}/b.prom", {**HOOKED, "ROCM_AUTOPATCH_IMAGE": odd})
    sh(f"{STATUS} {directory}/c.prom", {**HOOKED, "ROCM_AUTOPATCH_POLICY": "absent"}, wrong=True)
    found = scraped()
    expect("image", found["info", "b.prom"][0]["image"], odd)
    # The collector reads one of two equal lines, so these would be lost.
    for name, value in (("a.prom", 1), ("b.prom", 1), ("c.prom", 0)):
        expect(f"active of {name}", found["active", name], ({}, value))
    expect("errors", found["errors", "c.prom"], ({}, 1))
    if "error gathering" in Path(f"{directory}.log").read_text():
        raise Differs(Path(f"{directory}.log").read_text())


@check
def killed() -> None:
    """kill -9 at each step of writing, and a full disk, leave what was there."""
    directory = Path("/run/metrics")
    exporter(directory)
    file = directory / "a.prom"
    sh(f"{STATUS} {file}", HOOKED)
    before, wanted = file.read_bytes(), scraped()
    for call in ("chmod", "rename"):
        trap = f"strace -f -qq -o /run/trace -e trace={call} -e inject={call}:signal=KILL"
        sh(f"{trap} {STATUS} {file}", {**HOOKED, "ROCM_AUTOPATCH": "off"}, wrong=True)
        expect(f"killed in {call}", "+++ killed by SIGKILL" in Path("/run/trace").read_text(), True)
        expect(f"the file, killed in {call}", file.read_bytes(), before)
    left = [path for path in directory.iterdir() if path != file]
    expect("unfinished files", len(left), 2)
    expect("what the exporter has", scraped(), wanted)

    small = Path("/run/small")
    small.mkdir()
    sh(f"mount -t tmpfs -o size=4k tmpfs {small}")
    sh(f"{STATUS} {small}/a.prom", HOOKED)
    before = (small / "a.prom").read_bytes()
    done = sh(f"{STATUS} {small}/a.prom", {**HOOKED, "ROCM_AUTOPATCH": "off"}, wrong=True)
    expect("a full disk", (done.returncode, "No space left" in done.stderr), (1, True))
    expect("what is on a full disk", [path.name for path in small.iterdir()], ["a.prom"])
    expect("the file on a full disk", (small / "a.prom").read_bytes(), before)


@check
def rules() -> None:
    """The rules are right, and alerts come when they should: promtool's own tests."""
    sh(f"promtool check rules --lint=all --lint-fatal {HERE}/{RULES}")
    sh(f"cd {HERE} && promtool test rules alerts.yml")


PROMETHEUS = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s/rules.yml]
scrape_configs:
  - job_name: node
    static_configs: [{targets: [127.0.0.1:9101, 127.0.0.1:9102]}]
"""


@check
def prometheus() -> None:
    """A Prometheus that reads two machines: equal, then one has another policy, then none."""
    for number in (1, 2):
        exporter(Path(f"/run/n{number}"), 9100 + number)
        sh(f"{STATUS} /run/n{number}/a.prom", HOOKED)
    work = Path("/run/prometheus")
    # Without the 15 minutes in which it must be so: promtool's tests have these.
    text = (HERE / RULES).read_text()
    write(work / "rules.yml", text.replace("for: 15m", "for: 0s"))
    write(work / "prometheus.yml", PROMETHEUS % work)
    options = f"--config.file={work}/prometheus.yml --storage.tsdb.path={work}/data"
    options += " --web.listen-address=127.0.0.1:9090"
    serve(f"prometheus {options}", work / "log")
    digests = "count(count by (digest) (rocm_autopatch_info))"
    wait_for("one digest", lambda: value(digests) == "1", 60)
    wait_for("two machines", lambda: value("count(rocm_autopatch_info)") == "2", 60)
    expect("alerts", alerts(), [])
    sh(f"{STATUS} /run/n2/a.prom", {**HOOKED, "ROCM_AUTOPATCH_POLICY": "debug"})
    differ = ("RocmAutopatchMachinesDiffer", "Machines compile under 2 different settings")
    wait_for("an alert", lambda: alerts() == [differ], 60)
    sh(f"{STATUS} /run/n2/a.prom", {**HOOKED, "ROCM_AUTOPATCH": "off"})
    summary = "127.0.0.1:9102: no policy applies, a part failed, or nobody looked for a day"
    both = [differ, ("RocmAutopatchNotInForce", summary)]
    wait_for("both alerts", lambda: alerts() == both, 60)
    sh(f"{STATUS} /run/n2/a.prom", HOOKED)
    wait_for("no alert", lambda: alerts() == [], 60)


def ask(path: str) -> Any:
    try:
        return json.loads(fetch(f"http://127.0.0.1:9090/api/v1/{path}"))["data"]
    except OSError:
        return {}  # It is not up yet.


def value(query: str) -> str:
    rows = ask("query?" + urllib.parse.urlencode({"query": query})).get("result", [])
    return rows[0]["value"][1] if rows else ""


def alerts() -> list[tuple[str, str]]:
    return sorted(
        (one["labels"]["alertname"], one["annotations"]["summary"])
        for one in ask("alerts").get("alerts", [])
        if one["state"] == "firing"
    )


if __name__ == "__main__":
    sys.exit(main(CHECKS))
