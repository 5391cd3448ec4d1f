"""What images, policies, variables, traces and names hold reaches no terminal as it is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.cli import terminal
from rocm_autopatch.policy import Problem
from tests.conftest import OLD_AND_NEW, ROOT, Interpreter
from tests.running import run_command

# An escape sequence, OSC 52 (it writes the clipboard), a C1 control, a bidi override, a line
# separator, a delete, a carriage return and a new line of what looks like output.
EVIL = "\x1b[31mE\x1b]52;c;cm0K\x07\x9b2J\u202e\u2028\x7f\rZ\nsafe applies: forged"
# A variable's name and an argument may hold any byte but 0.
SURROGATE = "\udcff"
FORGED = "safe applies: forged"


def harmful(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c not in "\n\t"}


def check(done: subprocess.CompletedProcess[str]) -> None:
    for text in (done.stdout, done.stderr):
        assert harmful(text) == set()
        assert not any(line.strip().startswith(FORGED) for line in text.splitlines())
    assert "Traceback" not in done.stderr


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    directory = tmp_path / "evil\x1b[31m\n\u202e"
    directory.mkdir()
    file = directory / "te\x1bam\x9b.yaml"
    quoted = json.dumps(EVIL)
    file.write_text(
        "version: 1\n"
        f"description: {quoted}\n"
        "env:\n"
        f"  PLAIN: {{set: {quoted}, why: {quoted}}}\n"
        "  GONE: {delete: true}\n"
        "config:\n  torch._inductor.config:\n"
        f"    triton.cudagraphs: {{pin: false, why: {quoted}}}\n"
    )
    return file


def run_harmless(
    python: Interpreter, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = run_command(python, *arguments, env=env, errors="replace")
    check(done)
    return done


class TestCommands:
    def test_status_and_explain(self, python311: Interpreter, policy: Path) -> None:
        env = {
            "ROCM_AUTOPATCH_POLICY": str(policy),
            "ROCM_AUTOPATCH_KEEP": f"a{EVIL},b",
            "ROCM_AUTOPATCH_IMAGE": f"team/image:{EVIL}",
            "GONE": EVIL + SURROGATE,
        }
        text = run_harmless(python311, "status", "--no-torch", env=env)
        assert "\\x1b" in text.stdout
        assert "\\udcff" in text.stdout
        found = json.loads(
            run_harmless(python311, "status", "--no-torch", "--json", env=env).stdout
        )
        # The variable comes out of JSON as it was.
        assert {row["name"]: row["before"] for row in found["env"]}["GONE"] == EVIL + SURROGATE
        assert found["facts"]["image"]["value"].startswith("team/image:\x1b[31mE")
        for name in ("PLAIN", "GONE", "cudagraphs", "no\x1b[31m\nthing"):
            run_harmless(python311, "explain", "--no-torch", name, env=env)
            run_harmless(python311, "explain", "--no-torch", "--json", name, env=env)
        env = {"ROCM_AUTOPATCH_SITE": f"/no{EVIL}", "ROCM_AUTOPATCH_GIVEN": EVIL}
        text = run_harmless(python311, "status", "--no-torch", env=env)
        assert "ROCM_AUTOPATCH_SITE: /no" in " ".join(text.stdout.split())
        run_harmless(python311, "policies", "show", "safe", env=env)
        run_harmless(python311, "check", env=env)

    def test_policies_and_check(self, python311: Interpreter, policy: Path) -> None:
        run_harmless(python311, "policies", "show", policy)
        found = json.loads(run_harmless(python311, "policies", "show", policy, "--json").stdout)
        assert ["PLAIN", "set", EVIL] in [row[:3] for row in found["env"]]
        run_harmless(python311, "policies", "show", "--image", EVIL)
        done = run_harmless(python311, "check", policy)
        key = json.dumps("k" + EVIL)
        policy.write_text(f"version: 1\n{key}: 1\nenv:\n  {key}: {{set: 1}}\nextends: {key}\n")
        done = run_harmless(python311, "check", policy)
        assert done.returncode == 1
        for line in done.stdout.splitlines():
            assert line.startswith(str(policy.parent.parent) + "/evil\\x1b[31m\\n\\u202e/"), line
        (row, *_) = json.loads(run_harmless(python311, "check", "--json", policy).stdout)
        assert row["file"] == str(policy)
        run_harmless(python311, "status", "--no-torch", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
        run_harmless(python311, "bake", "--policy", policy, "--out", policy.parent / "plan")
        run_harmless(python311, "bake", "--image", EVIL)

    def test_probe(self, python311: Interpreter, tmp_path: Path) -> None:
        env = {
            "TORCHINDUCTOR_MAX_AUTOTUNE": EVIL,
            "TRITON_X\x1b[31m\n": EVIL + SURROGATE,
            "TORCH_COMPILE_DEBUG": EVIL,
            "ROCM_AUTOPATCH_IMAGE": f"team/image:{EVIL}",
        }
        run_harmless(python311, "probe", env=env)
        found = json.loads(run_harmless(python311, "probe", "--json", env=env).stdout)
        values = {row["name"]: row["without"] for row in found["variables"]}
        assert values["TRITON_X\x1b[31m\n"] == EVIL + SURROGATE
        image = ("--image", "team/image:1")
        run_harmless(python311, "probe", "--record", tmp_path / "im\x1b\n.yaml", *image, env=env)
        run_harmless(python311, "probe", "--record", tmp_path / "no\x1b\n" / "x", *image, env=env)

    def test_ab(self, python311: Interpreter, tmp_path: Path) -> None:
        program = f"import sys; print({EVIL!r}, 'n\x1b[31m: 5 ms'); sys.exit({EVIL!r})"
        once = ("ab", "--repeat", "1", "--warmup", "0", "--caches", "cold", "--toggle")
        for toggle in (f"X={EVIL}", f"NO\x1b{EVIL}", f"X=1,2{EVIL}", "X\x1b\n=1"):
            command = (*once, toggle, "--", str(python311.path), "-c", program)
            run_harmless(python311, *command)
        run_harmless(
            python311, *once, f"X={EVIL}", "--json", "--", str(python311.path), "-c", program
        )
        run_harmless(python311, *once, "X=1", "--", f"no{EVIL}")

    def test_report_and_run(self, python311: Interpreter, tmp_path: Path) -> None:
        directory = tmp_path / "re\x1b[31m\nport"
        traces = directory / "trace"
        traces.mkdir(parents=True)
        row = {"pid": 1, "time": 1.0, "torch": EVIL, "command": ["p", EVIL], "traces": "trace"}
        (directory / "processes.jsonl").write_text(json.dumps(row) + "\n")
        sample = next((ROOT / "tests" / "data").rglob("*torch_trace*"), None)
        if sample and sample.suffix != ".gz":
            evil = json.dumps(EVIL)[1:-1]
            (traces / sample.name).write_text(sample.read_text().replace("program.py", evil))
        run_harmless(python311, "report", directory)
        found = json.loads(run_harmless(python311, "report", directory, "--json").stdout)
        assert found["directory"] == str(directory)
        run_harmless(python311, "report", directory, "--html", directory / "x\x1b\n.html")
        run_harmless(python311, "report", directory, "--html", tmp_path / "no\x1b\n" / "x.html")
        run_harmless(python311, "report", tmp_path / "no\x1b\nne")
        run_harmless(python311, "run", "--report", tmp_path / "a\x1b\n", "--", "true")
        run_harmless(python311, "run", "--report", tmp_path / "b", "--", f"no{EVIL}")
        run_harmless(python311, "run", "--trace", tmp_path / "no\x1b\n" / "t", "--", "true")

    @pytest.mark.parametrize("word", [EVIL, SURROGATE, "\x1b[31m"], ids=ascii)
    def test_wrong_usage(self, python311: Interpreter, word: str) -> None:
        for arguments in (
            (word,),
            ("status", word),
            ("status", "--assume", word),
            ("check", "--torch", word),
            ("bake", "--image", word),
            ("probe", "--import", word),
            ("ab", "--caches", word),
            ("completion", word),
        ):
            done = run_harmless(python311, *arguments)
            assert done.returncode == 2, arguments


ENCODINGS = (
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1:strict"},
)


@OLD_AND_NEW
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda env: "-".join(env.values()))
def test_any_encoding(python: Interpreter, encoding: Mapping[str, str], tmp_path: Path) -> None:
    policy = tmp_path / f"tëam{SURROGATE}.yaml"
    policy.write_text("version: 1\nenv: {GONE: {delete: true, why: 漢字}}\n", encoding="utf-8")
    env = {
        **encoding,
        "ROCM_AUTOPATCH_POLICY": str(policy),
        "GONE": f"ünïcode 漢字 {SURROGATE}",
        "TRITON_Ü": f"漢字 {SURROGATE}",
        "ROCM_AUTOPATCH_IMAGE": "team/ümage:漢字",
    }
    wrong = tmp_path / f"wröng{SURROGATE}.yaml"
    wrong.write_text("version: 1\nschlüssel: 漢字\n", encoding="utf-8")
    for arguments in (
        ("status", "--no-torch"),
        ("status", "--no-torch", "--json"),
        ("explain", "--no-torch", "GONE"),
        ("explain", "--no-torch", f"漢字{SURROGATE}"),
        ("policies",),
        ("policies", "show", str(policy)),
        ("check", str(wrong)),
        ("check", "--json", str(wrong)),
        ("probe",),
        ("probe", "--json"),
        ("run", "--report", str(tmp_path / f"ü{SURROGATE}"), "--", "true"),
        ("report", str(tmp_path / f"ü{SURROGATE}")),
        ("report", str(tmp_path / f"ü{SURROGATE}"), "--html", str(tmp_path / "ü.html")),
        ("report", str(tmp_path / f"none{SURROGATE}")),
        ("ab", "--toggle", "X=ü", "--repeat", "1", "--warmup", "0", "--", "true"),
        ("bake", "--policy", str(policy), "--out", str(tmp_path / f"ü{SURROGATE}.plan")),
        (f"ü{SURROGATE}",),
    ):
        done = run_harmless(python, *arguments, env=env)
        assert "UnicodeEncodeError" not in done.stdout + done.stderr, arguments


@pytest.mark.parametrize("name", [SURROGATE, "ü", "\x1b[31m\n"], ids=ascii)
def test_run_keeps_the_status(python311: Interpreter, name: str, tmp_path: Path) -> None:
    """Whatever the names are, whatever becomes of the summary."""
    for kind, command in enumerate(
        (
            ["sh", "-c", "exit 7"],
            # What is there afterwards is no report any more.
            ["sh", "-c", 'rm -r "$ROCM_AUTOPATCH_REPORT"; exit 7'],
            ["sh", "-c", 'echo "{" > "$ROCM_AUTOPATCH_REPORT/processes.jsonl"; exit 7'],
            ["sh", "-c", 'echo "[[1]]" > "$ROCM_AUTOPATCH_REPORT/processes.jsonl"; exit 7'],
            [
                *("sh", "-c"),
                'echo \'{"pid": {}, "time": [], "command": 1, "torch": 2, "traces": []}\' > '
                '"$ROCM_AUTOPATCH_REPORT/processes.jsonl"; exit 7',
            ],
        )
    ):
        directory = tmp_path / f"{kind}{name}"
        done = run_harmless(python311, "run", "--report", directory, "--", *command)
        assert done.returncode == 7, command


def run_without(
    python: Interpreter, stream: str, what: str, command: Sequence[str | Path], directory: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours in *directory* with a stream that is "closed", "full" or "broken".

    A broken one is a pipe without a reader.
    """
    read, write = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    script = 'exec "$@"'
    if what == "closed":
        script += {"stdout": " 1>&-", "stderr": " 2>&-"}[stream]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    streams[stream] = {"closed": subprocess.PIPE, "full": full, "broken": write}[what]
    done = subprocess.run(
        ["sh", "-c", script, "sh", python.path, "-m", "rocm_autopatch", *command],
        **streams,
        text=True,
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "ROCM_AUTOPATCH_LOG": "quiet",
        },
    )
    os.close(write)
    os.close(full)
    return done


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("what", ["closed", "full", "broken"])
@pytest.mark.parametrize("words", ["run --report r", "run", "cache warm"])
def test_a_command_keeps_its_status_with_no_stream(
    python311: Interpreter, stream: str, what: str, words: str, tmp_path: Path
) -> None:
    command = [*words.split(), "--", "sh", "-c", "touch ran; exit 7"]
    done = run_without(python311, stream, what, command, tmp_path)
    assert (done.returncode, (tmp_path / "ran").exists()) == (7, True), done


@pytest.mark.parametrize("what", ["closed", "full", "broken"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        *(("", 2), ("stauts", 2), ("run", 2), ("cache", 2), ("diff /dev/null /dev/null", 2)),
        *(("report nothing", 1), ("run -- no-such-command", 127), ("--version", 0)),
    ],
)
def test_the_status_does_not_need_stderr(
    python311: Interpreter, what: str, words: str, status: int, tmp_path: Path
) -> None:
    done = run_without(python311, "stderr", what, words.split(), tmp_path)
    assert done.returncode == status


@pytest.mark.parametrize("what", ["full", "broken"])
@pytest.mark.parametrize("words", ["status", "--version", "--help", "status --help"])
def test_what_stdout_does_not_take(
    python311: Interpreter, what: str, words: str, tmp_path: Path
) -> None:
    done = run_without(python311, "stdout", what, words.split(), tmp_path)
    said = "rocm-autopatch: stdout: No space left on device\n" if what == "full" else ""
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("words", ["run -- true", "probe"])
def test_no_directory_for_temporary_files(
    python311: Interpreter, words: str, tmp_path: Path
) -> None:
    script = 'ulimit -f 0; "$@" 2>&1 | cat'
    done = subprocess.run(
        ["sh", "-c", script, "sh", python311.path, "-m", "rocm_autopatch", *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    first = done.stdout.splitlines()[0]
    assert "No usable temporary directory found in" in first
    assert first.endswith(": set TMPDIR to another directory")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        *(("run -- sh -c 'exit 7'", 7), ("policies", 0), ("--version", 0), ("diff a b", 2)),
        *(("run --report r -- true", 1), ("check a.yaml", 1), ("bundle", 1), ("stauts", 2)),
    ],
)
def test_the_working_directory_is_gone(
    python311: Interpreter, words: str, status: int, tmp_path: Path
) -> None:
    gone, script = tmp_path / "gone", 'cd "$0" && rmdir "$0" && exec "$@"'
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", script, gone, python311.path, "-m", "rocm_autopatch", *shlex.split(words)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "ROCM_AUTOPATCH_LOG": "quiet", "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr


def test_a_page_with_names_that_are_no_unicode(tmp_path: Path, python311: Interpreter) -> None:
    directory = tmp_path / f"r{SURROGATE}"
    directory.mkdir()
    row = {"pid": 1, "time": 1.0, "torch": "2", "command": [f"p{SURROGATE}"], "traces": "trace"}
    (directory / "processes.jsonl").write_text(json.dumps(row) + "\n")
    page = tmp_path / f"p{SURROGATE}.html"
    assert run_harmless(python311, "report", directory, "--html", page).returncode == 0
    assert "\\udcff" in page.read_text(encoding="utf-8")


class TestTheStream:
    def test_a_colour_cant_be_forged(self) -> None:
        stream = terminal.HarmlessWriter(None)
        assert stream.harmless(terminal.colour("31", "\x1b[32mx")) == "\x1b[31m\\x1b[32mx\x1b[0m"
        for forged in (f"<{'0' * 32}:31>", "<:31>", "\x1b[31m"):
            assert "\x1b" not in stream.harmless(forged)

    def test_lines_and_tabs_stay(self) -> None:
        stream = terminal.HarmlessWriter(None)
        assert stream.harmless("a\tb\nc\r\n") == "a\tb\nc\\r\n"
        assert stream.harmless("漢字 ü") == "漢字 ü"

    def test_a_problem_is_one_line(self) -> None:
        problem = Problem(f"f{EVIL}", 1, 1, f"p{EVIL}", f"m{EVIL}")
        assert str(problem).isprintable()
