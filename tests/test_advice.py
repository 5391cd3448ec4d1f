"""What our messages and pages advise: that it can be done, and does what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

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
