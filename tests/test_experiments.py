"""experiments/: its manifest, its runner, and that nothing there is forgotten."""

from __future__ import annotations

import ast
import datetime
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.__main__ import (
    MANIFEST,
    NONE_YET,
    NOT_SAID,
    Experiment,
    ExperimentError,
    nameless,
    read_manifest,
)
from tests.conftest import ROOT

EXPERIMENTS = read_manifest()
FOLDER = ROOT / "experiments"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# A module by its name, or a file by its path.
NAMED = re.compile(
    r"-m ((?:experiments|benchmarks)[\w.]*)|\b((?:experiments|benchmarks|tests)/\S+)"
)
ROW: dict[str, Any] = {
    "purpose": "a try",
    "command": "python -c ''",
    "needs": {},
    "minutes": 1,
    "last_run": NONE_YET,
    "machine": NONE_YET,
    "result": NONE_YET,
}
each = pytest.mark.parametrize("name", EXPERIMENTS)


def module(name: str) -> Path:
    """The file of a module of this checkout."""
    file = ROOT.joinpath(*name.split("."))
    return file / "__main__.py" if file.is_dir() else file.with_suffix(".py")


def recipe(target: str) -> str:
    """The lines of a target of the Makefile. Fails if it has none."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    return found[1]


def files(command: str) -> list[Path]:
    """The files of this checkout that a command runs, also by way of make."""
    text = recipe(command.split()[1]) if command.startswith("make ") else command
    return [module(name) if name else ROOT / path for name, path in NAMED.findall(text)]


def manifest(directory: Path, **row: Any) -> Path:
    """A manifest of one experiment, "tiny"."""
    file = directory / "manifest.yaml"
    file.write_text(yaml.safe_dump({"tiny": {**ROW, **row}}), encoding="utf-8")
    return file


def run_experiments(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments", *words], cwd=ROOT, capture_output=True, text=True
    )


@each
def test_what_it_runs_exists(name: str) -> None:
    one = EXPERIMENTS[name]
    found = files(one.command)
    assert found, one.command
    assert not [path for path in found if not path.exists()]
    first = one.command.split()[0]
    assert first in ("python", "make") or first.startswith(".work/")


@each
def test_its_entry_can_be_read(name: str) -> None:
    one = EXPERIMENTS[name]
    assert re.fullmatch("[a-z]+(?:-[a-z]+)*", name)
    assert one.purpose == one.purpose.strip()
    assert not one.purpose.endswith(".")
    assert len(one.purpose) < 100
    assert one.minutes is None or one.minutes > 0
    assert isinstance(one.last_run, datetime.date) or one.last_run in (NONE_YET, NOT_SAID)
    if one.last_run == NONE_YET:
        assert one.machine == one.result == NONE_YET


@each
def test_its_result_says_the_date(name: str) -> None:
    """The page or the file that the manifest names has the section, and the day of the last run."""
    one = EXPERIMENTS[name]
    if one.result == NONE_YET:
        return
    path, _, anchor = one.result.partition("#")
    text = (ROOT / path).read_text(encoding="utf-8")
    headings = [re.sub(r"[^\w -]", "", h.lower()) for h in re.findall(r"^#+ (.+)$", text, re.M)]
    assert not anchor or anchor in [heading.replace(" ", "-") for heading in headings]
    if path.endswith(".json"):
        assert json.loads(text)["date"] == str(one.last_run)
    elif isinstance(one.last_run, datetime.date):
        days = re.findall(r"(\d{4}-\d\d-)(\d\d)(?: and (\d\d)\b)?", text)
        assert str(one.last_run) in {month + day for month, *two in days for day in two}


def scripts() -> Iterator[Path]:
    """What in experiments/ can be run; programs that frameworks run are data of theirs."""
    for path in sorted(FOLDER.rglob("*.py")):
        if "programs" in path.parts or path == FOLDER / "__main__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        conditions = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
        asks = any("__main__" in condition for condition in conditions)
        if asks or "main" in functions or path.name == "__main__.py":
            yield path


def reached(experiments: Mapping[str, Experiment]) -> set[Path]:
    """What the commands run, and what those start or import; a word of a docstring is no use."""
    found: set[Path] = set()
    new = {path for one in experiments.values() for path in files(one.command)}
    while new:
        found |= new
        new = {path for user in new if user.suffix == ".py" for path in used(user)} - found
        new = {path for path in new if path.is_file()}
    return found


def used(user: Path) -> Iterator[Path]:
    """The files of experiments/ that a file imports, or names in a string."""
    tree = ast.parse(user.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] + [str(node.module)]
        yield from (ROOT / f"{name.replace('.', '/')}.py" for name in names)
        yield from (user.with_name(f"{name.partition('.')[0]}.py") for name in names)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from (user.with_name(name) for name in re.findall(r"\b\w+\.py\b", node.value))
            if node.value.isidentifier():
                yield user.with_name(f"{node.value}.py")


def test_no_script_is_forgotten() -> None:
    all_of_them = set(scripts())
    assert len(all_of_them) > 40
    assert not all_of_them - reached(EXPERIMENTS)


@pytest.mark.parametrize("name", ["capture", "compare", "donated-buffer", "claims", "rejoins"])
def test_a_script_without_an_entry_is_seen(name: str) -> None:
    others = {other: one for other, one in EXPERIMENTS.items() if other not in (name, "live")}
    (script,) = files(EXPERIMENTS[name].command)
    assert set(scripts()) - reached(others) == {script}


def test_the_list_has_all_of_each() -> None:
    done = run_experiments()
    assert done.returncode == 0
    for one in EXPERIMENTS.values():
        assert re.search(rf"^{one.name} .* min  {re.escape(one.purpose)}$", done.stdout, re.M)
        assert f"needs: {one.needs.words()}" in done.stdout


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data-paralel", "did you mean data-parallel?"),
        ("qqq", "python -m experiments lists them."),
    ],
)
def test_a_wrong_name(name: str, hint: str) -> None:
    done = run_experiments(name)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"experiments: There is no experiment {name!r}: {hint}\n"


@pytest.mark.parametrize(
    ("program", "status"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)],
)
@pytest.mark.parametrize("keep", [(), ("--keep",)])
def test_the_status_is_the_experiment_s(
    tmp_path: Path, program: str, status: int, keep: tuple[str, ...]
) -> None:
    file = manifest(tmp_path, command=f'python -c "{program}"')
    done = run_experiments("--manifest", file, *keep, "tiny")
    assert done.returncode == status
    assert f"tiny: exit status {status} after " in done.stderr
    assert (tmp_path / "results" / "tiny.json").exists() == bool(keep)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_with_its_experiment(tmp_path: Path, number: int, status: int) -> None:
    """Ctrl-C goes to both, SIGTERM to the runner alone: nothing goes on, and the result is kept."""
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    file = manifest(tmp_path, command=shlex.join(["python", "-c", program]))
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "--manifest", file, "--keep", "tiny"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"tiny: exit status {status} after " in said
    assert json.loads((tmp_path / "results" / "tiny.json").read_text())["status"] == status
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_reader_that_leaves_ends_nothing(tmp_path: Path) -> None:
    program = "import sys; [print('x' * 999) for _ in range(999)]; print('the end')"
    file = manifest(tmp_path, command=shlex.join(["python", "-c", program]))
    words = [sys.executable, "-m", "experiments", "--manifest", str(file), "--keep", "tiny"]
    line = f"{shlex.join(words)} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"x")
    assert json.loads((tmp_path / "results" / "tiny.json").read_text())["output"][-1] == "the end"


def test_each_result_is_one_of_an_experiment() -> None:
    found = sorted((FOLDER / "results").glob("*.json"))
    assert found
    for file in found:
        assert EXPERIMENTS[file.stem].result == f"experiments/results/{file.name}"
        assert json.loads(file.read_text(encoding="utf-8"))["name"] == file.stem


def test_options_and_words_reach_the_command(tmp_path: Path) -> None:
    file = manifest(tmp_path, command="python -c 'import sys; print(sys.argv[1:])' PYTHON WORK")
    done = run_experiments("--manifest", file, "tiny", "--runs", "3", "a b")
    place = ROOT / ".work" / "experiments" / "tiny"
    words = [sys.executable, ".work/experiments/tiny", "--runs", "3", "a b"]
    assert done.stdout == f"{words}\n"
    assert place.is_dir()
    place.rmdir()


def test_what_is_kept(tmp_path: Path) -> None:
    program = (
        "import os, socket, sys, time; time.sleep(0.2); [print('line', n) for n in range(30)]; "
        "print(chr(27) + '[31mred on', socket.gethostname(), flush=True); "
        "print('see https://example.org/a/b', file=sys.stderr, flush=True); "
        "print(sys.executable, os.getcwd(), sys.argv[1:])"
    )
    command = shlex.join(["python", "-c", program])
    file = manifest(tmp_path, command=command)
    done = run_experiments("--manifest", file, "tiny", "--keep", "--out", str(tmp_path / "x.md"))
    assert done.returncode == 0, done.stderr
    assert "line 0\n" in done.stdout
    text = (tmp_path / "results" / "tiny.json").read_text(encoding="utf-8")
    kept = json.loads(text)
    assert set(kept) == {
        *("name", "date", "python", "torch", "machine", "command", "status", "seconds", "output")
    }
    assert kept["command"] == f"{command} --out DIRECTORY/x.md"
    assert abs(datetime.date.fromisoformat(kept["date"]) - datetime.date.today()).days < 2
    assert kept["python"] == ".".join(map(str, sys.version_info[:3]))
    assert kept["status"] == 0
    assert 0.2 <= kept["seconds"] < 60
    assert set(kept["machine"]) == {"cpu", "cores", "gpus"}
    assert kept["machine"]["cores"] >= 1
    assert len(kept["output"]) == 20
    assert kept["output"][-3:-1] == ["red on HOST", "see https://example.org/a/b"]
    assert kept["output"][-1].endswith(" DIRECTORY ['--out', 'DIRECTORY/x.md']")
    for path in (str(ROOT), str(tmp_path), str(Path.home()), sys.executable):
        assert path not in text
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["tiny.json"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{ROOT}/tests/a.py:3", "tests/a.py:3"),
        (f"in {ROOT}", "in DIRECTORY"),
        ("/usr/lib:/opt/x y", "DIRECTORY/lib:DIRECTORY/x y"),
        ("file:///srv/secret/x", "DIRECTORY/x"),
        ("'/srv/a', \"/srv/b\" (/srv/c)", "'DIRECTORY/a', \"DIRECTORY/b\" (DIRECTORY/c)"),
        (f"{Path.home()}/a b", "DIRECTORY/a b"),
        ("3/4 a/b https://example.org/a/b ../x /", "3/4 a/b https://example.org/a/b ../x /"),
        (f"on {socket.gethostname()}: 1", "on HOST: 1"),
        (f"http://{socket.gethostname()}:80/x", "http://HOST:80/x"),
    ],
)
def test_no_machine_is_named(text: str, kept: str) -> None:
    assert nameless(text) == kept


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"packages": ["json", "no_such_package"]}, "tiny needs no_such_package: run it by "),
        ({"given": "FILE, a trace"}, "tiny needs an option: FILE, a trace\n"),
    ],
)
def test_what_is_missing_is_said_before(
    tmp_path: Path, needs: Mapping[str, Any], said: str
) -> None:
    done = run_experiments(
        "--manifest", manifest(tmp_path, command="python -c 'print(1)'", needs=needs), "tiny"
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"experiments: {said}")
    assert done.stderr.count("\n") == 1


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    done = run_experiments(
        "--manifest", manifest(tmp_path, command="no-such-command"), "--keep", "tiny"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "experiments: no-such-command can't be started: No such file or directory\n"
    )
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "is no mapping of names to experiments"),
        ("a: 1", "a is no mapping"),
        ("a: {", "can't be read: "),
        (yaml.safe_dump({"a": {**ROW, "nightl": True}}), "a: unknown: nightl"),
        (yaml.safe_dump({"a": {"purpose": "x", "needs": {}}}), "a: missing: command, last_run, "),
        (yaml.safe_dump({"a": {**ROW, "needs": {"gpu": 1}}}), "a: needs: unknown: gpu"),
        (yaml.safe_dump({"a": {**ROW, "needs": None}}), "a: needs is no mapping"),
    ],
)
def test_a_wrong_manifest(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ExperimentError, match=re.escape(said)):
        read_manifest(file)


def test_the_manifest_has_comments_for_its_keys() -> None:
    """Each key of an entry is one of Experiment's; the loader rejects others."""
    rows = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    assert all(isinstance(EXPERIMENTS[name], Experiment) for name in rows)
    assert {name for name, one in EXPERIMENTS.items() if one.nightly} == {"matrix", "torture"}


def test_each_planted_fault_has_its_place() -> None:
    """A fault whose text is gone from its file would not be tried."""
    for row in yaml.safe_load((FOLDER / "mutants.yaml").read_text(encoding="utf-8")):
        text = (ROOT / row["file"]).read_text(encoding="utf-8")
        assert text.count(row["before"]) == 1, row
        for test in row["tests"]:
            assert (ROOT / test.partition("::")[0]).exists(), row
