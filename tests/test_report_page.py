"""A report that can be passed on: its head, one meaning of each word, and a page in a browser."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from rocm_autopatch.compile_report import page, session, summary
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.compile_report.model import (
    CompiledGraph,
    CompileReport,
    ProcessEnd,
    ReportHead,
    SourcePlace,
    TracedProcess,
)
from tests.chromium import Browser, browser
from tests.conftest import HIP, Interpreter, label_torch
from tests.messages import Golden
from tests.names import MI30X_IMAGE

WIDTHS = (1280, 400)
TAB = 9


def graph(number: int, seconds: float, **more: object) -> CompiledGraph:
    made = CompiledGraph(0, f"{number}/0", SourcePlace("/srv/model.py", 10 + number, f"f{number}"))
    made.start, made.seconds = 1_790_000_000.0 + 10 * number, seconds
    made.end = made.start + seconds
    made.phases = {"tracing": seconds / 4, "Inductor": seconds / 2}
    made.nodes, made.kernels, made.library = 20, 5, Counter({"extern_kernels.mm": 6})
    made.operations = Counter({"aten.mm": 6, "aten.relu": 3, "aten.view": 1})
    made.cache, made.finished = "miss", True
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def report() -> CompileReport:
    process = TracedProcess(4711, 0)
    process.command, process.torch = ("python", "serve.py"), "2.9.1+rocm7.2"
    found = CompileReport("/tmp/r", [process])
    found.graphs = [
        graph(0, 8.0),
        graph(1, 4.0, cache="hit"),
        graph(2, 2.0, id="2/1"),
        graph(3, 1.0, finished=False, last="inductor_output_code"),
    ]
    found.given_modes = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
    found.modes = [*found.given_modes]
    found.ends = [ProcessEnd(4711, "serve.py", "RuntimeError: no memory", SourcePlace("a.py", 3))]
    found.status = 1
    found.head = ReportHead(
        command=("python", "serve.py", "--port", "80 80"),
        began=1_790_000_000.0,
        hosts=("node-17",),
        version="0.1.0",
        pythons=("3.12.3",),
        policies=("safe < team",),
        facts={"image": (MI30X_IMAGE,), "rocm": ("7.2.0",), "gfx": ("gfx942",)},
        status=1,
        watched=True,
    )
    return found


def page_text(report: CompileReport) -> str:
    """The page's text, without marks."""
    html = page.html_page(report, {}).partition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_the_head(report: CompileReport, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    rows = dict(summary.head_rows(report))
    golden("\n".join(f"{name}: {value}" for name, value in rows.items()))
    text = "\n".join(summary.summary_lines(report))
    shown, data = page_text(report), summary.report_data(report)
    for name, value in rows.items():
        assert f"{name} {value}" in shown
        assert value.split()[0] in text
    assert data["head"]["command"] == ["python", "serve.py", "--port", "80 80"]
    assert data["head"]["ended"] == rows["ended"]
    assert data["given_modes"]["max-autotune"] == "max-autotune-no-cudagraphs"


@pytest.mark.parametrize(
    ("status", "watched", "ends", "said"),
    [
        (0, True, False, "well, with status 0"),
        (1, True, True, "with status 1: RuntimeError: no memory"),
        (137, True, False, "with status 137, as SIGKILL ends it"),
        (None, True, False, "not yet, or rocm-autopatch run was ended before it"),
        (None, False, False, "unknown: rocm-autopatch run did not start it, or could not note it"),
    ],
)
def test_how_it_ended(
    report: CompileReport, status: int | None, watched: bool, ends: bool, said: str
) -> None:
    report.head = ReportHead(status=status, watched=watched)
    report.ends = report.ends if ends else []
    assert dict(summary.head_rows(report))["ended"] == said


def test_one_meaning_of_kernels(report: CompileReport) -> None:
    """Kernels are Inductor's; what it calls of libraries is counted beside them."""
    (row,) = (one for one in summary.report_data(report)["graphs"] if one["id"] == "0/0")
    assert (row["kernels"], sum(row["library"].values())) == (5, 6)
    lines = [*summary.summary_lines(report)]
    (number,) = (at for at, line in enumerate(lines) if " kernels " in line)
    named = dict(zip(lines[number].split(), lines[number + 1].split()))
    assert (named["kernels"], named["library"]) == ("5", "6")
    html = page.html_page(report, {})
    heads = re.findall(r"<button type=.button.>([^<]*)<", html.partition('id="graphs"')[2])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html.partition('id="graphs"')[2])
    on_page = dict(zip(heads, cells))
    assert (on_page["kernels"], on_page["library"]) == ("5", "6")


def test_what_is_told(python311: Interpreter, tmp_path: Path) -> None:
    """By the command and by a process that imports torch: here a stand-in with torch's logging."""
    directory = tmp_path / "report"
    label_torch(tmp_path / "stand-in", "2.13.0+rocm7.0", HIP)
    logging = tmp_path / "stand-in" / "torch" / "_logging"
    logging.mkdir()
    (logging / "__init__.py").touch()
    handler = "class LazyTraceHandler:\n    def emit(self, record): pass\n    handleError = emit\n"
    (logging / "_internal.py").write_text(handler)
    program = "import torch, torch._logging._internal; raise KeyError('gone')"
    done = python311.run(
        *("-m", "rocm_autopatch", "run", "--report", directory, "--"),
        *(python311.path, "-c", program, "--token", "hf_" + "A" * 34),
        env={
            "PYTHONPATH": str(tmp_path / "stand-in"),
            "ROCM_AUTOPATCH_ASSUME": f"image={MI30X_IMAGE}",
        },
        check=False,
    )
    assert done.returncode == 1
    rows = dict(summary.head_rows(gather_report(directory)))
    assert rows["command"].endswith("--token (masked)") or "(masked)" in rows["command"]
    assert rows["image"] == MI30X_IMAGE
    assert rows["policy"] == "safe"
    assert rows["ended"] == "with status 1: KeyError: 'gone'"
    assert re.fullmatch(
        r"torch 2\.13\.0\+rocm7\.0, HIP 7\.0\.51831-a3e329ad8, Python 3\.\d+\.\d+, "
        r"rocm_autopatch \S+",
        rows["versions"],
    )
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", rows["began"])
    assert "command  " in done.stderr


def test_a_report_of_an_earlier_release(tmp_path: Path) -> None:
    """It has neither the command nor what a mode was given as."""
    lines = [
        {
            "pid": 1,
            "parent": 0,
            "time": 9.0,
            "command": ["a.py"],
            "torch": "2.9",
            "traces": "trace",
        },
        {"pid": 1, "mode": "max-autotune"},
        {"status": 0},
    ]
    (tmp_path / "processes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    rows = dict(summary.head_rows(gather_report(tmp_path)))
    assert rows["modes"] == "max-autotune (as asked)"
    assert rows["ended"] == "well, with status 0"
    assert (rows["command"], rows["image"]) == ("a.py", "not named")
    assert "policy" not in rows


@pytest.mark.parametrize(
    "line",
    [
        {"run": 5},
        {"run": {"time": "x", "command": ["a"]}},
        {"run": {"time": 1, "command": 5}},
        {"run": {"time": 1e300, "command": [["a"], None], "host": {}, "version": []}},
        {"pid": 1, "time": "x", "command": [], "torch": "", "traces": ""},
        {
            "pid": 1,
            "time": 9,
            "command": [],
            "torch": "",
            "traces": "",
            "facts": 7,
            "hip": {"a": 1},
        },
        {"pid": 1, "mode": "m", "given": {"a": []}},
    ],
)
def test_a_line_that_somebody_else_wrote(tmp_path: Path, line: object) -> None:
    (tmp_path / "processes.jsonl").write_text(json.dumps(line) + "\n")
    report = gather_report(tmp_path)
    assert [*summary.summary_lines(report)]
    assert page.html_page(report, {})
    assert json.dumps(summary.report_data(report))


def test_a_command_that_is_not_found(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    session.prepare_environment(tmp_path, None, environ)
    with pytest.raises(session.NotRun):
        session.run_command(["/nowhere/at-all"], environ)
    assert dict(summary.head_rows(gather_report(tmp_path)))["command"] == "/nowhere/at-all"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as found:
        yield found


TEXTS = """
const found = [];
for (const one of document.querySelectorAll("svg text, .bars span, dd, td, .numbers span, pre")) {
  const box = one.getBoundingClientRect();
  if (!box.width) continue;
  const scale = one.ownerSVGElement ? one.getScreenCTM().a : 1;
  found.push([one.textContent.slice(0, 40), parseFloat(getComputedStyle(one).fontSize) * scale]);
}
return found;
"""
CONTRASTS = """
const light = text => {
  const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = light(getComputedStyle(document.querySelector(".plot")).backgroundColor);
const found = [];
for (const one of document.querySelectorAll(".bars span, .bars rect, .plot svg text")) {
  const style = getComputedStyle(one);
  const its = light(one.tagName === "SPAN" ? style.color : style.fill);
  found.push([one.getAttribute("class") ?? "",
              (Math.max(back, its) + 0.05) / (Math.min(back, its) + 0.05)]);
}
return found;
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser(
    report: CompileReport, chrome: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    html = tmp_path / "page.html"
    html.write_text(page.html_page(report, {}), encoding="utf-8")
    chrome.open(html.as_uri())
    chrome.dark(dark)
    picture = chrome.screenshot(width)
    (tmp_path / "page.png").write_bytes(picture)
    assert int.from_bytes(picture[16:20], "big") == width
    # The page as a whole is never moved sideways: only tables and the bars over time are.
    assert chrome.run_script("return document.documentElement.scrollWidth") <= width
    small = [one for one in chrome.run_script(TEXTS) if one[1] < 11]
    assert small == []
    for name, contrast in chrome.run_script(CONTRASTS):
        # 4.5 for text and 3 for what is no text; the phases stand in words, too.
        assert contrast >= (4.5 if not name or name == "dim" else 2), (name, contrast)


def test_by_keyboard(report: CompileReport, chrome: Browser, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    html.write_text(page.html_page(report, {}), encoding="utf-8")
    chrome.open(html.as_uri())
    chrome.width(400)
    reached = []
    for _ in range(40):
        chrome.press("Tab", TAB)
        reached.append(
            chrome.run_script(
                "const at = document.activeElement;"
                "return at.getAttribute('aria-label') || at.textContent.slice(0, 30)"
            )
        )
    wanted = ("compiles over time", "Graphs", "filter graphs", "graphs", "kernels", "operations")
    assert [one for one in wanted if one not in reached] == []


def test_without_colour(report: CompileReport) -> None:
    html = page.html_page(report, {})
    # Each state has a bar of a kind of its own, and each phase stands in words.
    assert set(re.findall(r'<rect class="(miss|hit|hatched|crossed)"', html)) == {
        *("miss", "hit", "hatched", "crossed")
    }
    assert html.count("<pattern ") == 2
    assert "8.00 s: tracing 2.00, Inductor 4.00, unfinished 2.00" in html
