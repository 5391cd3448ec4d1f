"""Coverage in the interpreters that tests start: ``make coverage`` asks for it by a variable.

Tests start interpreters without the environment of their own, in directories of their own. So each
is told by a .pth file in its site-packages, which comes before ours by its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from surroundings import hip_torch

# A directory for the data. Anybody may write to it: some tests start processes of another user.
WANTED = os.environ.get("ROCM_AUTOPATCH_TEST_COVERAGE", "")
RUN = """\
[run]
branch = true
parallel = true
source_pkgs = rocm_autopatch
disable_warnings = no-data-collected, module-not-imported
data_file = {data}
"""
# It leaves the program's environment and sys.path as they were.
START = """\
import os, sys
sys.path.insert(0, {library!r})
os.environ["COVERAGE_PROCESS_START"] = {config!r}
import coverage
coverage.process_startup()
del os.environ["COVERAGE_PROCESS_START"], sys.path[0]
"""


def measure(python: Path, site_packages: Path) -> None:
    """Have each process of *python* measure our coverage, where that is asked for."""
    if not WANTED:
        return
    place = Path(WANTED)
    place.mkdir(exist_ok=True)
    place.chmod(0o1777)
    library = place / site_packages.parent.name
    with hip_torch.lock(place / "lock"):
        if not library.exists():
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
            subprocess.run([*pip, "--target", str(library), "coverage"], check=True)
            (place / "run.ini").write_text(RUN.format(data=place / "data"))
    start = START.format(library=str(library), config=str(place / "run.ini"))
    (site_packages / "a_coverage.pth").write_text(f"import sys; exec({start!r})\n")
