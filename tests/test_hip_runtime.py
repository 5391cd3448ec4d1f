"""ROCm's own libraries as facts, laid out as packages lay them out; none of them is opened.

Names and link texts are those of the packages named beside them. The real packages are tried by
``make live`` (experiments/live/hip_runtime.py).
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocm_autopatch.image import clues
from rocm_autopatch.image.fact import CLUE, LIBRARY, SourcedFact
from rocm_autopatch.image.facts import gather_facts
from tests.conftest import ROOT
from tests.test_facts import ROCM_FILE, install, known, make, tell

DEBIAN = f"usr/lib/{os.uname().machine}-linux-gnu/libamdhip64.so"
CORE = f"usr/lib/{os.uname().machine}-linux-gnu/librocm-core.so"
FEDORA = "usr/lib64/libamdhip64.so"
AMD = "opt/rocm/lib/libamdhip64.so"

# Debian sid, 2026-11-22: libamdhip64-5 5.7.1-7, libamdhip64-6 and libamdhip64-dev 6.4.3-5
DEBIAN_5 = {f"{DEBIAN}.5": "libamdhip64.so.5.7.31921"}
DEBIAN_6 = {f"{DEBIAN}.6": "libamdhip64.so.6.4.43484"}
DEBIAN_6_DEV = {**DEBIAN_6, DEBIAN: "libamdhip64.so.6"}
# Debian experimental, 2026-11-22: libamdhip64-7 7.2.4-1~exp2, librocm-core1 7.2.4-1~exp1
DEBIAN_7 = {f"{DEBIAN}.7": "libamdhip64.so.7.2.53211"}
DEBIAN_CORE = {f"{CORE}.1": "librocm-core.so.1.0.70204"}
# hip-runtime-amd-6.4.43483.60401-83.el9, as listed in github.com/shisa-ai/hipEngine/issues/1:
# AMD puts ROCm's version in the place of HIP's third number.
AMD_6 = {
    "opt/rocm": "rocm-6.4.1",
    "opt/rocm-6.4.1/lib/libamdhip64.so": "libamdhip64.so.6",
    "opt/rocm-6.4.1/lib/libamdhip64.so.6": "libamdhip64.so.6.4.60401",
}


def link(root: Path, links: Mapping[str, str]) -> Path:
    """Make links. Nothing is where they lead, so a test shows that only their text is read."""
    for name, target in links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name == "opt/rocm":
            (root / "opt" / target).mkdir()
        (root / name).symlink_to(target)
    return root


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (DEBIAN_5, [("5.7", DEBIAN)]),
        (DEBIAN_6, [("6.4", DEBIAN)]),
        (DEBIAN_6_DEV, [("6.4", DEBIAN)]),
        ({**DEBIAN_5, **DEBIAN_6_DEV}, [("6.4", DEBIAN), ("5.7", DEBIAN)]),
        (AMD_6, [("6.4", AMD)]),
        ({**DEBIAN_6, **AMD_6}, [("6.4", AMD)]),
        ({f"{AMD}.7": "libamdhip64.so.7.2.26015"}, [("7.2", AMD)]),
        ({f"{FEDORA}.6": "libamdhip64.so.6.4.43484"}, [("6.4", FEDORA)]),
        (DEBIAN_7, [("7.2", DEBIAN)]),
        ({**DEBIAN_7, **DEBIAN_CORE}, [("7.2.4", f"{CORE}.1")]),
        # ROCm says its version, whatever HIP's is: in previews too.
        ({**DEBIAN_6, **DEBIAN_CORE}, [("7.2.4", f"{CORE}.1")]),
        (
            {
                "opt/rocm/lib/librocm-core.so.1": "librocm-core.so.1.0.71300",
                f"{AMD}.7": "libamdhip64.so.7.2.0",
            },
            [("7.13.0", "opt/rocm/lib/librocm-core.so.1")],
        ),
        ({f"{CORE}.1": "librocm-core.so.1.0.100000"}, [("10.0.0", f"{CORE}.1")]),
        # Built without AMD's scripts, as in the first packages.
        ({f"{CORE}.1": "librocm-core.so.1.0.0.", **DEBIAN_7}, [("7.2", DEBIAN)]),
        # Its version is not that of ROCm any more.
        ({f"{AMD}.7": "libamdhip64.so.7.15.26333"}, []),
        # A runtime of unknown ROCm hides one that no program would find first.
        ({f"{AMD}.7": "libamdhip64.so.7.15.26333", **DEBIAN_6}, []),
        ({f"{AMD}.6": "elsewhere"}, []),
        ({f"{AMD}.6": "libamdhip64.so.6"}, []),
        # A container whose ROCm is mounted, and is not now.
        ({"opt/rocm": "rocm-0", "opt/rocm-0/lib": "/nowhere"}, []),
    ],
)
def test_the_names_of_libraries_tell_rocm(
    tmp_path: Path, links: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    told = tell(link(tmp_path, links))
    assert told == [(LIBRARY, release, f"/{source}") for release, source in expected]


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "file"])
def test_what_is_no_link_tells_nothing(tmp_path: Path, kind: str) -> None:
    for name in (f"{AMD}.6", f"{CORE}.1", f"{DEBIAN}.6", f"{FEDORA}.7"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path)
        else:
            path.write_bytes(b"\x7fELF")
    # Which runtime it is can be told, not of which ROCm.
    runtime = [("hip_runtime", "4 bytes", f"{tmp_path}/{AMD}.6")] if kind == "file" else []
    assert tell(tmp_path) == runtime


def test_two_runtimes_side_by_side_give_no_rocm(tmp_path: Path) -> None:
    told = clues.gather_clues({}, link(tmp_path, {**DEBIAN_5, **DEBIAN_6}), ())
    facts = gather_facts({}, told)
    assert "rocm" not in facts.facts
    assert [str(c) for c in facts.contradictions] == [
        f"rocm is not taken from /{DEBIAN}, which has 6.4 and 5.7"
    ]
    # The torch says which of them it was built with.
    assert gather_facts(known(hip="6.4.43484"), told).values()["rocm"] == "6.4"


@pytest.mark.parametrize("text", ["6.4.3-128\n", "7.10.0\n"])
def test_a_file_that_states_rocm_comes_before_libraries(tmp_path: Path, text: str) -> None:
    root = make(link(tmp_path, AMD_6), {ROCM_FILE: text})
    facts = gather_facts({}, clues.gather_clues({}, root, ()))
    assert facts.facts["rocm"] == SourcedFact(text.strip().partition("-")[0], f"/{ROCM_FILE}", CLUE)
    assert facts.contradictions == ()


@pytest.mark.parametrize("kind", ["nothing", "broken link", "pipe", "no version"])
def test_half_of_opt_rocm(tmp_path: Path, kind: str) -> None:
    """As in an image into which ROCm was to be mounted, or was copied in part."""
    root = link(tmp_path, DEBIAN_6)
    if kind == "broken link":
        (root / "opt").mkdir()
        (root / "opt/rocm").symlink_to("rocm-7.0.0")
    elif kind == "pipe":
        (root / ROCM_FILE).parent.mkdir(parents=True)
        os.mkfifo(root / ROCM_FILE)
    elif kind == "no version":
        make(root, {ROCM_FILE: "unknown\n"})
    facts = gather_facts({}, clues.gather_clues({}, root, ()))
    assert facts.facts["rocm"] == SourcedFact("6.4", f"/{DEBIAN}", CLUE)


@pytest.mark.parametrize(
    ("stated", "rocm"),
    [
        ({"torch": "2.9.1+rocm7.2.0"}, "7.2.0"),
        ({"hip": "7.0.51831-a3e329ad8"}, "7.0"),
        ({"image": "rocm/vllm:rocm7.0.0_vllm_0.11.2"}, "7.0.0"),
        ({"rocm_": "7.0"}, "7.0"),
        # HIP 7.15 does not tell its ROCm.
        ({"torch": "2.13.0", "hip": "7.15.26333"}, "6.4"),
        ({"torch": "2.13.0"}, "6.4"),
        ({"torch": "2.13.0", "accelerator": "rocm"}, "6.4"),
        # Here they must be for another program.
        ({"torch": "2.11.0+cu130", "accelerator": "cuda"}, None),
        ({"torch": "2.13.0+cpu", "accelerator": "cpu"}, None),
    ],
)
def test_libraries_tell_rocm_only_if_nothing_else_does(
    tmp_path: Path, stated: dict[str, str], rocm: str | None
) -> None:
    """They may be there for another program than torch: Debian's libucx0 depends on HIP's."""
    facts = gather_facts(known(**stated), clues.gather_clues({}, link(tmp_path, DEBIAN_6), ()))
    assert facts.values().get("rocm") == rocm
    assert facts.contradictions == ()
    assert LIBRARY not in facts.facts


def test_variables_and_wheels_come_before_libraries(tmp_path: Path) -> None:
    link(tmp_path, {f"{AMD}.7": "libamdhip64.so.7.1.25413"})
    facts = gather_facts({}, clues.gather_clues({"GPU_ARCH": "gfx950-rocm724"}, tmp_path, ()))
    assert facts.facts["rocm"] == SourcedFact("7.2.4", "GPU_ARCH", CLUE)
    install(tmp_path / "site", "rocm-sdk-core", "7.10.0")
    facts = gather_facts({}, clues.gather_clues({}, tmp_path, (str(tmp_path / "site"),)))
    assert (facts.values()["rocm"], facts.contradictions) == ("7.10.0", ())


def test_no_library_and_no_device_is_opened(tmp_path: Path) -> None:
    """What clues open in a container with a runtime, devices, and a GPU that is not passed in."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    make(
        link(tmp_path, AMD_6),
        {
            "opt/rocm-6.4.1/lib/libamdhip64.so.6.4.60401": "",
            f"{nodes}/0/properties": "gfx_target_version 0\n",
            "etc/os-release": "ID=debian\nVERSION_ID=14\n",
        },
    )
    # Refused to root too, as the kernel refuses a GPU that is not passed in.
    (tmp_path / nodes / "1").mkdir()
    (tmp_path / nodes / "1/properties").symlink_to("/proc/self/mem")
    for name in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    code = (
        "import pathlib, sys\n"
        "from rocm_autopatch.image import clues\n"
        "named = []\n"
        "kinds = ('open', 'os.listdir', 'os.scandir', 'ctypes.dlopen', 'subprocess.Popen')\n"
        "hook = lambda event, args: event in kinds and named.append(str(args[0]))\n"
        "sys.addaudithook(hook)\n"
        "clues.gather_clues({}, pathlib.Path(sys.argv[1]), ())\n"
        "print(named)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, tmp_path],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    named = {os.path.relpath(name, tmp_path) for name in ast.literal_eval(done.stdout)}
    assert named == {
        nodes,
        *(f"{nodes}/{node}/properties" for node in (0, 1)),
        *(ROCM_FILE, "app/versions.txt", "etc/os-release"),
    }
