"""Checks of our commands beside a real HIP runtime without a GPU, which run.py calls in its root.

    python hip_runtime.py CHECK

prints ``ok``, or what differs. The root has Debian's HIP runtime, hipcc and rocminfo. Torch is
Debian's for the CPU, and says that it was built for that runtime.

There are devices in the root that must not be touched: /dev/kfd and a /dev/dri node are pipes, so a
process that opens one to read waits for ever. The kernel shows a GPU that was not passed in as in a
container: its properties can't be read. strace shows which files each process names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "no_device"
ROCM = Path("/opt/rocm")
# Where Debian has it, ROCm states its own version here.
HEADER = Path("/usr/include/rocm-core/rocm_version.h")
TORCH = "/usr/lib/python3/dist-packages/torch/version.py"
KFD, RENDER = Path("/dev/kfd"), Path("/dev/dri/renderD128")
NODES = Path("/sys/class/kfd/kfd/topology/nodes")
OURS = (sys.executable, "-m", "rocm_autopatch")
# As in a container whose user chose a GPU, and whose GPU then was not passed in.
CHOSEN = {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
# What only a process that looks for a GPU names.
GPU_FILES = re.compile(
    r"/dev/(?:kfd|dri|accel)|/sys/module/amdgpu"
    r"|lib(?:amdhip64|rocm-core|hiprtc|hsa-runtime64|amd_comgr|drm_amdgpu)|/(?:rocminfo|rocm-smi|amd-smi)\b"
)
# The text of this link states the version. Nothing is opened for that.
LINK = re.compile(
    r'readlink(?:at)?\((?:AT_FDCWD, )?"[^"]*/lib(?:amdhip64\.so\.[5-7]|rocm-core\.so\.1)"'
)
# Not all of ours: this process was started with our hook, which set variables in it.
BASE = {name: os.environ[name] for name in ("PATH", "HOME", "LC_ALL")}
LIMIT_S = 300
# How long a driver that hangs keeps a process that opens it.
HANGS_S = 5

differences: list[str] = []


def expect(name: str, seen: Any, wanted: Any) -> None:
    if seen != wanted:
        differences.append(f"{name}: {seen!r}, expected {wanted!r}")


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command. One that hangs ends the check with an exception."""
    return subprocess.run(
        words,
        env={**BASE, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd="/",
    )


def ours(*words: str, **env: str) -> str:
    """What a command of ours prints; it must succeed and be silent on stderr."""
    done = run(*OURS, *words, **env)
    expect(f"{' '.join(words)}: status, stderr", [done.returncode, done.stderr], [0, ""])
    return done.stdout


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def devices() -> Iterator[None]:
    """A container's view of a machine whose GPU was not passed in, with pipes as the devices."""
    try:
        RENDER.parent.mkdir(exist_ok=True)
        for path in (KFD, RENDER):
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        put(NODES / "0" / "properties", "cpu_cores_count 64\ngfx_target_version 0\n")
        (NODES / "1").mkdir(exist_ok=True)
        remove(NODES / "1" / "properties")
        # To read it is an error even for root. The kernel's own is EPERM.
        (NODES / "1" / "properties").symlink_to("/proc/self/mem")
        yield
    finally:
        for path in (KFD, RENDER.parent, NODES.parents[2]):
            remove(path)


def runtime() -> str:
    """The version of the HIP runtime as HIP's own command tells it, such as 6.4.43484."""
    return run("hipconfig", "--version").stdout.partition("-")[0].strip()


def facts(*options: str) -> tuple[dict[str, Any], list[str]]:
    """The facts, value and source by name, and the contradictions."""
    report = json.loads(ours("status", "--json", "--no-torch", *options, **CHOSEN))
    told = [
        f"{c['name']} {c['used']['value']} {c['other']['value']}" for c in report["contradictions"]
    ]
    return {name: [fact["value"], fact["source"]] for name, fact in report["facts"].items()}, told


def check_facts() -> None:
    """The version of ROCm, from the runtime's files and from whatever there is of /opt/rocm."""
    hip = runtime()
    release = ".".join(hip.split(".")[:2])
    library = f"/usr/lib/{os.uname().machine}-linux-gnu/libamdhip64.so"
    by_library = [release, library]
    if HEADER.exists():
        found = re.findall(r"ROCM_VERSION_(?:MAJOR|MINOR|PATCH) +([0-9]+)", HEADER.read_text())
        by_library = [".".join(found), library.replace("libamdhip64.so", "librocm-core.so.1")]
    file = "/opt/rocm/.info/version"
    by_torch = [release, f"hip, by {TORCH}"]

    def nothing() -> None:
        pass

    def broken_link() -> None:
        ROCM.symlink_to("/opt/rocm-0.0.0")

    def empty() -> None:
        (ROCM / "lib").mkdir(parents=True)

    def file_alone() -> None:
        put(ROCM / ".info" / "version", f"{release}.9-128\n")

    def another_file() -> None:
        put(ROCM / ".info" / "version", "5.0.0\n")

    def pipes() -> None:
        (ROCM / ".info").mkdir(parents=True)
        os.mkfifo(ROCM / ".info" / "version")
        os.mkfifo(ROCM / "lib")

    # What counts if torch's HIP tells its ROCm, and if it does not.
    layouts = {
        nothing: (by_torch, by_library),
        broken_link: (by_torch, by_library),
        empty: (by_torch, by_library),
        pipes: (by_torch, by_library),
        file_alone: ([f"{release}.9", file], [f"{release}.9", file]),
        another_file: (["5.0.0", file], ["5.0.0", file]),
    }
    with devices():
        for lay_out, (with_hip, without) in layouts.items():
            name = lay_out.__name__
            remove(ROCM)
            try:
                lay_out()
                seen, told = facts()
                assumed, others = facts("--assume", "hip=unknown")
            finally:
                remove(ROCM)
            wanted = [f"rocm 5.0.0 {release}"] if lay_out is another_file else []
            expect(f"{name}: contradictions", [told, others], [wanted, []])
            expect(f"{name}: rocm", seen.get("rocm"), with_hip)
            expect(f"{name}: rocm, without hip", assumed.get("rocm"), without)
            expect(f"{name}: hip", seen["hip"], [hip, TORCH])
            expect(f"{name}: accelerator", seen["accelerator"], ["rocm", TORCH])
            expect(f"{name}: gfx", seen.get("gfx"), None)


def traced(*words: str | Path, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command, and say which files of a GPU its processes named."""
    with tempfile.NamedTemporaryFile("r") as trace:
        strace = ("strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=%file", "-o", trace.name)
        done = run(*strace, *words, **CHOSEN, **env)
        lines = trace.read().splitlines()
    expect(f"{' '.join(map(str, words[-2:]))}: traced", len(lines) > 20, True)
    return done, [line for line in lines if GPU_FILES.search(line)]


def check_untouched() -> None:
    """No process of ours looks for a GPU, and none waits."""
    python = sys.executable
    here = ours("status", "--json", "--no-torch")
    expect("active", json.loads(here)["active"], True)
    baked = Path(json.loads(ours("bake", "--json"))["path"])
    baked.unlink()
    scratch = tempfile.mkdtemp()
    commands: dict[str, tuple[str, ...]] = {
        "start": (python, "-c", "pass"),
        "import torch": (python, "-c", "import torch, torch._inductor.config"),
        "status": (*OURS, "status"),
        "explain": (*OURS, "explain", "AMD_LOG_LEVEL"),
        "policies": (*OURS, "policies"),
        "probe": (*OURS, "probe"),
        "run": (*OURS, "run", "--report", f"{scratch}/r", "--", python, "-c", "import torch"),
        "bake": (*OURS, "bake"),
        "start with a baked plan": (python, "-c", "import torch"),
        "status with a baked plan": (*OURS, "status"),
    }
    with devices():
        try:
            for name, words in commands.items():
                done, named = traced(*words, TORCHINDUCTOR_MAX_AUTOTUNE="1")
                expect(f"{name}: status", done.returncode, 0)
                touched = [line for line in named if not LINK.search(line)]
                expect(f"{name}: names", touched, [])
            report = json.loads(ours("status", "--json", "--no-torch"))
            expect("baked", report["baked"], str(baked))
        finally:
            baked.unlink(missing_ok=True)
            shutil.rmtree(scratch)
        # What the trace shows of programs that do look for a GPU.
        compile_program()
        for program in (PROGRAM, "rocminfo"):
            _, named = traced(program)
            expect(f"{program}: looks for a GPU", bool(named), True)
    expect("rocminfo: status", run("rocminfo").returncode, 1)


def compile_program() -> None:
    """Compile the program with the real hipcc."""
    done = run("hipcc", PROGRAM.with_suffix(".hip"), "-o", PROGRAM)
    if done.returncode:
        raise SystemExit(f"hipcc: {done.stderr}")


def check_driver() -> None:
    """A driver that hangs keeps who opens it, and none of ours does."""
    compile_program()
    path = ("-P", str(KFD), "-P", str(RENDER), "-P", str(RENDER.parent))
    delay = f"inject=open,openat,readlink,stat:delay_enter={HANGS_S}s"

    def hanging(*words: str | Path) -> tuple[float, str]:
        with tempfile.NamedTemporaryFile("r") as trace:
            began = time.monotonic()
            quiet = ("-f", "-qq", "-e", "signal=none", "-o", trace.name)
            run("strace", *quiet, *path, "-e", delay, *words, **CHOSEN)
            return time.monotonic() - began, trace.read()

    with devices():
        took, trace = hanging(PROGRAM)
        expect("a HIP program: opens, waits", [str(KFD) in trace, took > HANGS_S], [True, True])
        for words in (("status",), ("probe",), ("bake", "--out", "/dev/shm/baked.plan")):
            _, trace = hanging(*OURS, *words)
            expect(f"{words[0]}: opens", trace, "")
        waits = run("timeout", "1", "cat", KFD).returncode == 124
        expect("a reader of the pipe waits", waits, True)


def check_runtime() -> None:
    """Variables reach the real runtime, and it obeys them."""
    compile_program()
    child = (
        "import json, os, subprocess, sys, time\n"
        "began = time.monotonic()\n"
        "done = subprocess.run([sys.argv[1]], capture_output=True, text=True, timeout=60)\n"
        "print(json.dumps([done.returncode, done.stdout, done.stderr, time.monotonic() - began,\n"
        "    {k: v for k, v in os.environ.items() if k.startswith(('HIP_', 'AMD_', 'ROCR_'))}]))\n"
    )

    def under(**env: str) -> tuple[str, str, dict[str, str]]:
        done = run(sys.executable, "-c", child, PROGRAM, **env)
        status, out, log, took, variables = json.loads(done.stdout)
        expect(f"{env}: status", status, 0)
        expect(f"{env}: at once", took < 10, True)
        return out, log, variables

    hip = runtime()
    major, minor, patch = map(int, hip.split("."))
    answer = f"100 0 hipErrorNoDevice {major * 10_000_000 + minor * 100_000 + patch}\n"
    notes = {"HIP_LAUNCH_BLOCKING": "0", "AMD_LOG_LEVEL": "0", "HIP_CACHE_ENABLED": "1"}
    for env in (
        {},
        CHOSEN,
        {"HIP_LAUNCH_BLOCKING": "1"},
        {"AMD_LOG_LEVEL": "0"},
        {"AMD_LOG_LEVEL": "4"},
        {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "AMD_LOG_LEVEL": "4"},
        {"ROCM_AUTOPATCH_POLICY": "tuning-notes"},
    ):
        out, log, variables = under(**env)
        given = {name: env[name] for name in env if not name.startswith(("TORCH", "ROCM_"))}
        defaults = notes if "ROCM_AUTOPATCH_POLICY" in env else {}
        expect(f"{env}: variables", variables, {**defaults, **given})
        expect(f"{env}: answer", out, answer)
        logged = "hipGetDeviceCount: Returned hipErrorNoDevice" in log
        expect(f"{env}: log", [logged, bool(log)], [env.get("AMD_LOG_LEVEL") == "4"] * 2)
    out, log, variables = under(ROCM_AUTOPATCH="off")
    expect("off", [out, log, variables], [answer, "", {}])


CHECKS = {
    "facts": check_facts,
    "untouched": check_untouched,
    "driver": check_driver,
    "runtime": check_runtime,
}


def main() -> int:
    """Run a check."""
    CHECKS[sys.argv[1]]()
    print("\n".join(differences) or "ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
