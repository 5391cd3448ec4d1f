"""``rocm-autopatch help``: pages that are there, found by what messages cite and people type."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import yaml

from rocm_autopatch.cli import manual
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden

# How a message cites a page: by the command, or by the page's place in the repository.
CITED = re.compile(r"rocm-autopatch help ([a-z-]+(?:#[\w-]+)?)|docs/([a-z-]+)\.md(#[\w-]+)?")
FOR_READERS_OF_CODE = {"rocm_autopatch/__init__.py", "rocm_autopatch/cli/help.py"}


def texts(wheel: Path) -> Iterator[tuple[str, str]]:
    """What a wheel's files say: code without comments and docstrings, values of YAML."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and name not in FOR_READERS_OF_CODE:
                yield name, archive.read(name).decode()
            elif name.endswith(".yaml"):
                yield name, json.dumps(yaml.safe_load(archive.read(name)), default=str)


def test_what_is_cited_is_there(wheel: Path, python311: Interpreter) -> None:
    cited = {}
    for name, text in texts(wheel):
        # A literal may go on in the next line.
        for found in CITED.finditer(re.sub(r'"\n\s+f?"', "", text)):
            cited[found[1] or found[2] + (found[3] or "")] = name
    assert len(cited) > 15
    code = (
        "import json, sys; from rocm_autopatch.cli import manual\n"
        "print(json.dumps({one: [s.reference for s in manual.find_sections(one)]"
        " for one in sys.argv[1:]}))"
    )
    found = json.loads(python311.run("-c", code, *cited).stdout)
    for one, name in cited.items():
        assert found[one] == [one], f"{name} cites {one}, which the wheel has not"


def test_pages_of_a_wheel(wheel: Path, python311: Interpreter) -> None:
    """They are those of setup.cfg, in one file, which a Python without bz2 can't read."""
    said = ConfigParser()
    said.read(ROOT / "setup.cfg")
    listed = said["options.package_data"]["rocm_autopatch.pages"].split()
    code = (
        "import json, sys\n"
        "if sys.argv[1] == 'without': sys.modules['bz2'] = None\n"
        "from rocm_autopatch.cli import manual\n"
        "print(json.dumps({n: manual.page_sections(n)[0].lines for n in manual.page_names()}))"
    )
    found = json.loads(python311.run("-c", code, "with").stdout)
    assert found == {name[:-3]: (ROOT / "docs" / name).read_text().splitlines() for name in listed}
    assert python311.run("-c", code, "without").stdout == "{}\n"
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "/pages" in name] == [
            "rocm_autopatch/pages.bz2"
        ]


def test_each_way_to_name_a_section() -> None:
    wanted = "troubleshooting#a-compile-still-hangs"
    for text in (
        *(wanted, f"docs/{wanted}".replace("#", ".md#"), "troubleshooting A compile still hangs"),
        *("a compile still hangs", "troubleshooting still hangs", " compile  still  hangs "),
    ):
        assert [one.reference for one in manual.find_sections(text)] == [wanted], text
    assert [one.reference for one in manual.find_sections("watchdog.md")] == ["watchdog"]
    (row,) = manual.find_sections("docs/claims.md#memory-planning")
    assert len(row.lines) == 3
    assert "`memory-planning`" in row.lines[-1]


def test_each_link_between_pages_is_a_topic() -> None:
    """What a text has in brackets."""
    for name in manual.page_names():
        for target in re.findall(r"\]\(([a-z-]+\.md(?:#[\w-]+)?)\)", manual_text(name)):
            assert len(manual.find_sections(target)) == 1, f"{name} has {target}"


def manual_text(name: str) -> str:
    return "\n".join(manual.page_sections(name)[0].lines)


MARKDOWN = """# Title
One *two* **three** `four*five*` [six](watchdog.md#settings), [seven](https://example.org/x),
[CONTRIBUTING](../CONTRIBUTING.md), [glossary](glossary.md), ![a picture](startup.svg).

<!-- Nobody sees it. -->
1. First
   goes on.

   ```sh
   run  this
   ```
- second

> Quoted: [below](#below).

| name | what |
|---|---|
| <a id="a"></a>a | b \\| c |

| name | what | more |
|---|---|---|
| a | %s | |

## Below
    four
""" % ("long " * 30)


def test_plain_text(golden: Golden) -> None:
    page = manual.PageSection("commands", "", "Title", tuple(MARKDOWN.splitlines()))
    golden("\n".join(manual.section_lines(page)))


def test_nothing_of_markdown_is_left() -> None:
    for name in manual.page_names():
        for line in manual.section_lines(manual.page_sections(name)[0]):
            plain = re.sub(r"`[^`]*`", "", line)
            if not line.startswith("  "):
                assert not re.search(r"\]\(|\*\*|<a id|^#+ |```", plain), f"{name}: {line}"


def run_help(python: Interpreter, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python.run("-m", "rocm_autopatch", "help", *words, env=env, check=False)


def test_what_is_printed(python311: Interpreter, golden: Golden) -> None:
    for topic in ("watchdgo", "watchdog setings", "nothing at all"):
        done = run_help(python311, *topic.split())
        golden(f"{done.returncode}\n{done.stdout}{done.stderr}", topic)
    refused = run_help(python311, "watchdog", "zzz")
    assert refused.returncode == 1
    assert "the page watchdog has no section 'zzz'; it has: " in refused.stderr
    listed = run_help(python311)
    assert re.search("^  watchdog +The watchdog: ", listed.stdout, re.MULTILINE)
    done = run_help(python311, "watchdog", "settings")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Settings\n--------\n")
    assert "\x1b" not in done.stdout


def test_the_options_of_a_command(python311: Interpreter) -> None:
    done = run_help(python311, "stacks")
    assert (done.returncode, done.stdout[:28]) == (0, "usage: rocm-autopatch stacks")


def test_as_json(python311: Interpreter) -> None:
    pages = json.loads(run_help(python311, "--json").stdout)
    with_settings = next(row for row in pages if row["topic"] == "watchdog")
    assert "watchdog#settings" in with_settings["sections"]
    (row,) = json.loads(run_help(python311, "--json", "watchdog#settings").stdout)
    assert row["title"] == "Settings"


def test_without_yaml(bare: Interpreter, python311: Interpreter, tmp_path: Path) -> None:
    shutil.copytree(python311.site_packages / "rocm_autopatch", tmp_path / "rocm_autopatch")
    done = run_help(bare, "commands", PYTHONPATH=str(tmp_path))
    assert "What is read" in done.stdout, done.stderr


def on_terminal(python: Interpreter, *words: str, **env: str) -> str:
    """What a terminal shows."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [python.path, "-m", "rocm_autopatch", "help", *words],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=python.environment({"TERM": "xterm", **env}),
        cwd=python.path.parent,
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                shown += os.read(controller, 65536)
            except OSError:
                break
        assert process.wait() == 0
    os.close(controller)
    return shown.decode()


def test_the_pager(python311: Interpreter, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED $1 $LESS; head -n 1\n")
    pager.chmod(0o755)
    shown = on_terminal(python311, "watchdog", PAGER=f"{pager} -x")
    assert shown.splitlines() == ["PAGED -x -FRX", "THE WATCHDOG: A COMPILE THAT LASTS"]
    # No pager: it can't be run, or the terminal can't have one.
    for env in ({"PAGER": "/nowhere/at-all"}, {"PAGER": str(pager), "TERM": "dumb"}):
        assert "ROCM_AUTOPATCH_WATCHDOG=10" in on_terminal(python311, "watchdog", **env)


def test_no_pager_from_the_working_directory(python311: Interpreter, tmp_path: Path) -> None:
    (python311.path.parent / "less").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    try:
        (python311.path.parent / "less").chmod(0o755)
        shown = on_terminal(python311, "watchdog", PATH=":.:/nowhere")
    finally:
        (python311.path.parent / "less").unlink()
    assert "ROCM_AUTOPATCH_WATCHDOG=10" in shown
    assert not (tmp_path / "ran").exists()
