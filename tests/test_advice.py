"""What our messages and pages advise: that it can be done, and does what is said of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocm_autopatch import switches
from rocm_autopatch.patches.watchdog import phases
from tests import advice
from tests.conftest import Interpreter

ROOT = Path(__file__).resolve().parents[1]


def texts() -> dict[str, str]:
    """All that a user may read of us: messages, policies and pages, by their path."""
    found = [*ROOT.glob("*.md"), ROOT / "Dockerfile.overlay"]
    for directory in ("rocm_autopatch", "policies", "docs", "overlay", "deploy", "demo", "tools"):
        for ending in ("py", "md", "yaml", "sh", "css", "js"):
            found += (ROOT / directory).rglob(f"*.{ending}")
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


def test_nothing_is_installed_by_our_name() -> None:
    """No index has it: whoever registers the name would run in our users' containers."""
    by_name = re.compile(r"(pip|uv|pipx)\s[^\n`]*\binstall\s[^\n`]*\brocm[-_]autopatch\b(?![-/.])")
    split = re.compile(
        r"\binstall\s+(-\S+\s+)*rocm[-_]autopatch\b(?![-/.]| again)|rocm_autopatch\[\w"
    )
    wrong = [
        f"{name}: {found[0]!r}"
        for name, text in texts().items()
        if name != "CHANGELOG.md"
        for pattern in (by_name, split)
        for found in pattern.finditer(text)
    ]
    assert wrong == []


# Variables that a message says to set or to unset, and what it calls of torch.
SET = re.compile(r"\b(?:un)?set (?:the |both )?([A-Z][A-Z0-9]*_[A-Z0-9_]+|CXX)\b|(TORCH_LOGS)=")
CALL = re.compile(r"\b(torch\.[a-z_]\w*(?:\.\w+)*)")
# Where advice names parts of torch. Elsewhere such a name is a module that is patched.
CALLS = (
    "compile_report/advice.py",
    *("patches/watchdog/phases.py", "patches/watchdog/description.py"),
    "patches/watchdog/libraries.py",
)


def messages(path: Path) -> Iterator[str]:
    """The texts in a file, without docstrings."""
    if path.suffix == ".yaml":
        yield path.read_text(encoding="utf-8")
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    pieces: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            pieces.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            pieces |= {id(part) for part in parts}
            yield " ".join(str(part.value) for part in parts)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in pieces
        ):
            yield node.value


def advised() -> dict[str, str]:
    """What our messages tell users to set and to call, and in which file."""
    package = ROOT / "rocm_autopatch"
    found = {}
    files = [*package.rglob("*.py"), *package.rglob("*.yaml"), ROOT / "policies" / "images.yaml"]
    for path in files:
        name = str(path.relative_to(package.parent)).removeprefix("rocm_autopatch/")
        for text in messages(path):
            found.update({one[1] or one[2]: name for one in SET.finditer(text)})
            if name in CALLS and " " in text and "\\" not in text:
                found.update({one[1]: name for one in CALL.finditer(text)})
    return {one: name for one, name in found.items() if not one.startswith("ROCM_AUTOPATCH")}


def test_all_advice_has_a_trial() -> None:
    found = advised()
    assert {"TORCHDYNAMO_DISABLE", "torch._dynamo.mark_dynamic"} <= {*found}
    assert {one: name for one, name in found.items() if one not in advice.COVERED} == {}
    # The watchdog puts these names into its lines.
    every = {phase for row in switches.SWITCHES for phase in row.stops}
    assert "candidates" in every
    for phase in every:
        assert phase in phases.PHASES
        for key, variable in switches.switches_that_stop(phase):
            assert key in advice.PINS
            assert variable in ("", *advice.UNSET)


@pytest.mark.parametrize("name", advice.TRIALS)
@pytest.mark.parametrize("full", [(), ("full",)], ids=["", "fullgraph"])
def test_it_does_what_is_said(torch_python: Interpreter, name: str, full: tuple[str, ...]) -> None:
    """On the suite's torch. experiments/matrix/advice_versions.py has the oldest and the newest."""
    env = {"ROCM_AUTOPATCH": "off", **advice.ENVIRONMENT.get(name, {})}
    done = torch_python.run(advice.__file__, name, *full, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert advice.SAID.get(name, "") in done.stderr


def test_why_it_is_not_the_other_switch(torch_python: Interpreter) -> None:
    """From torch 2.13 on, fullgraph=True dies of TORCH_COMPILE_DISABLE (pytorch#181247)."""
    env = {"ROCM_AUTOPATCH": "off", "TORCH_COMPILE_DISABLE": "1"}
    done = torch_python.run(advice.__file__, "uncompiled", "full", env=env, check=False)
    assert done.returncode != 0
    assert "found no compiled frames" in done.stderr
