"""Launchers, each by the very lines of docs/fleet.md. run.py calls this in its root.

    python3 launchers.py CHECK

prints ``ok``, or what differs. The hook is in /opt/rocm-autopatch there, and is not installed, so
that only the line of a launcher leads to it. Each check has the line start the proof of the page
in each worker, and compares what they say: the hook acts, nothing failed, one digest. Then it has
the same line start a program that looks at a variable which ``safe`` unsets: each worker has it
unset, and the whole job writes one line.

Each check has its own network, processes and mounts, so all that it starts ends with it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOOK = "/opt/rocm-autopatch"
SITE = Path("/etc/rocm-autopatch")
# A root with torch and without anything of ours, which images are made from.
IMAGE_ROOT = "/image"
IMAGE = "localhost/rocm:1"
BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = dict(BLOCK.findall((HERE / "fleet.md").read_text()))
PROOF = PAGE["proof"].strip()
MAX = "TORCHINDUCTOR_MAX_AUTOTUNE"
LOOK = f"python3 -c 'import os; print(os.environ.get(\"{MAX}\"))'"
EMPTY = Path("/run/empty")
NOTHING: Mapping[str, str] = {}
OURS = "rocm_autopatch: "
LIMIT_S = 300
BASE = {name: os.environ[name] for name in ("PATH", "HOME", "LC_ALL") if name in os.environ}

CHECKS: dict[str, Callable[[], None]] = {}


class Differs(Exception):
    """What differs, for the table."""


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def sh(
    text: str, env: Mapping[str, str] = NOTHING, wrong: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in an empty directory. If it fails and *wrong* is not set, it differs."""
    EMPTY.mkdir(exist_ok=True)
    done = subprocess.run(
        ["sh", "-c", text],
        env={**BASE, **env},
        cwd=EMPTY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode and not wrong:
        raise Differs(f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Differs(f"{what}: {found!r}, expected {wanted!r}")


def said(text: str) -> list[dict[str, Any]]:
    """The workers' lines of JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def agree(rows: list[dict[str, Any]], count: int) -> None:
    """So many workers have the hook, no error, and one digest."""
    expect("workers", len(rows), count)
    for row in rows:
        expect("active", (row["active"], row["policy"], row["errors"]), (True, "safe", 0))
        expect("torch", row["torch"].partition("+")[2], "rocm7.0")
    expect("digests", len({row["digest"] for row in rows}), 1)


def proves(line: str, count: int, env: Mapping[str, str] = NOTHING) -> list[dict[str, Any]]:
    """Run a line of the page, and the same line with a program that looks; what workers said."""
    if PROOF not in line:
        raise Differs(f"the proof is not in: {line}")
    rows = said(sh(line, env).stdout)
    agree(rows, count)
    quiet(sh(line.replace(PROOF, LOOK), {**env, MAX: "1"}), count)
    return rows


def with_an_error(line: str, count: int, env: Mapping[str, str] = NOTHING) -> None:
    """A worker with an error does not end the job, so each prints its line."""
    rows = said(sh(line, {**env, "ROCM_AUTOPATCH": "perhaps"}).stdout)
    expect("errors", [row["errors"] for row in rows], [1] * count)


def quiet(done: subprocess.CompletedProcess[str], count: int, lines: int = 1) -> None:
    """Each worker looked and saw nothing, and so many lines were written."""
    # Compose and Ray put names or colours around what workers print.
    words = re.findall(r"\b(None|1)\b", done.stdout)
    expect("what workers see", words, ["None"] * count)
    expect("lines", done.stderr.count(OURS), lines)


def serve(command: str, log: str | Path) -> None:
    """Start a server, which ends with the check. What it says goes to a file."""
    with open(log, "w", encoding="utf-8") as stream:
        subprocess.Popen(command.split(), env=BASE, stdout=stream, stderr=stream)


def wait_for(what: str, holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Differs(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def write(path: str | Path, text: str, mode: int = 0o644) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


# Slurm -------------------------------------------------------------------------------------------

SLURM = """
ClusterName=live
SlurmctldHost=n0(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/%n
SlurmdPidFile=/run/slurm/%n.pid
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/%n.log
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=17001 CPUs=2
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=17002 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# What is in /etc/rocm-autopatch of the second node alone.
OTHER_SITE = Path("/run/other-site")
TEAM = """version: 1
name: team
config:
  torch._inductor.config:
    max_fusion_size: {default: 17}
"""
RANKS = "version: 1\nname: job\npatches: {ranks: say}\n"
# A job of one task on each node, which joins by the store of its first rank.
JOB = """\
import os
import torch, torch._dynamo, torch.distributed as distributed
rank = int(os.environ["SLURM_PROCID"])
distributed.init_process_group(
    "gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=2
)
distributed.barrier()
"""


def start_slurm() -> None:
    """Two nodes on this machine, each with its own host name and its own /etc/rocm-autopatch."""
    write("/etc/hosts", "127.0.0.1 localhost n0\n")
    write("/etc/slurm/slurm.conf", SLURM)
    write("/etc/slurm/cgroup.conf", "CgroupPlugin=disabled\n")
    for name in ("state", "n1", "n2"):
        Path("/run/slurm", name).mkdir(parents=True)
    SITE.mkdir(exist_ok=True)
    sh(f"mount -t tmpfs tmpfs {SITE}")
    OTHER_SITE.mkdir()
    write("/etc/munge/munge.key", "a key for nobody but these two nodes" * 8, 0o400)
    Path("/run/munge").mkdir(mode=0o755)
    sh("chown -R munge: /etc/munge /run/munge /var/log/munge /var/lib/munge")
    sh("setpriv --reuid munge --regid munge --clear-groups munged")
    sh("slurmctld")
    sh("unshare --uts sh -c 'hostname n1; exec slurmd -N n1'")
    own = f"mount --bind {OTHER_SITE} {SITE}"
    sh(f"unshare --uts --mount sh -c 'hostname n2; {own}; exec slurmd -N n2'")
    wait_for("two idle nodes", idle)


def idle() -> bool:
    return sh("sinfo -N -h -o %t", wrong=True).stdout.split() == ["idle", "idle"]


def fold() -> dict[str, int]:
    """How many workers have which digest, by the page's line."""
    rows = re.findall(r'^ *(\d+) "digest": "(\w+)"$', sh(PAGE["fold"]).stdout, re.MULTILINE)
    return {digest: int(count) for count, digest in rows}


@check
def slurm() -> None:
    """By hand, then for all; then one node has another policy, and so has a rank of a job."""
    start_slurm()
    without = sh(PAGE["slurm-fleet"], wrong=True)
    expect("workers without a hook", without.stderr.count("No module named rocm_autopatch"), 4)
    both = Counter({"n1": 2, "n2": 2})
    rows = proves(PAGE["slurm-user"], 4)
    expect("nodes", Counter(row["node"] for row in rows), both)

    write("/etc/slurm/slurm.conf", SLURM + PAGE["slurm.conf"])
    write("/etc/slurm/rocm-autopatch.sh", PAGE["taskprolog"], 0o755)
    sh("scontrol reconfigure")
    wait_for("two idle nodes", idle)
    rows = proves(PAGE["slurm-fleet"], 4)
    expect("nodes", Counter(row["node"] for row in rows), both)
    bare = PAGE["slurm-fleet"].replace("srun ", "srun --export=NONE ")
    bare = bare.replace("python3", shutil.which("python3") or "")  # There is no PATH either.
    agree(said(sh(bare).stdout), 4)
    own = PAGE["slurm-fleet"].replace(PROOF, "python3 -c 'import sys; print(sys.path[1:3])'")
    expect(
        "the job's own PYTHONPATH",
        set(sh(own, {"PYTHONPATH": "/srv/own"}).stdout.splitlines()),
        {f"['{HOOK}', '/srv/own']"},
    )
    expect("folded", fold(), {rows[0]["digest"]: 4})

    write(OTHER_SITE / "team.yaml", TEAM)
    by_node: dict[str, set[str]] = {"n1": set(), "n2": set()}
    for row in said(sh(PAGE["slurm-fleet"]).stdout):
        by_node[row["node"]].add(row["digest"])
    expect("digests of n1", by_node["n1"], {rows[0]["digest"]})
    (other,) = by_node["n2"]
    expect("folded", fold(), {rows[0]["digest"]: 2, other: 2})

    for site in (SITE, OTHER_SITE):
        write(site / "job.yaml", RANKS)
    write("/run/job.py", JOB)
    job = sh("srun --nodes=2 --ntasks=2 python3 /run/job.py", {"USE_LIBUV": "0"})
    (line,) = [one for one in job.stderr.splitlines() if "this job" in one] or [job.stderr]
    for part in ("compile differently: on rank 1 (n2) policy is ", "max_fusion_size", "(n1)"):
        if part not in line:
            raise Differs(f"not in the line of ranks: {part}\n{line}")


# MPI, torchrun, Ray ------------------------------------------------------------------------------


@check
def openmpi() -> None:
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # More workers than cores.
    env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    proves(PAGE["openmpi"], 4, env)
    with_an_error(PAGE["openmpi"], 4, env)


@check
def mpich() -> None:
    proves(PAGE["mpich"], 4)
    with_an_error(PAGE["mpich"], 4)


@check
def torchrun() -> None:
    """Not in the root: Debian's torch has no libuv, without which torchrun has no store."""
    proves(PAGE["torchrun"], 4)
    with_an_error(PAGE["torchrun"], 4)


@check
def ray() -> None:
    """Two nodes of two workers; neither they nor the driver have the hook by themselves."""
    start = "python3 -m ray.scripts.scripts start --disable-usage-stats --num-cpus=2 "
    start += "--object-store-memory=100000000 "
    sh(start + "--head --port=6399 --include-dashboard=false")
    sh(start + "--address=127.0.0.1:6399")
    env = {"RAY_ADDRESS": "127.0.0.1:6399", "RAY_DEDUP_LOGS": "1"}
    write("/run/driver.py", PAGE["ray"] + PAGE["ray-proof"])
    agree(said(sh("python3 /run/driver.py", env).stdout), 4)
    look = f"""
import os
import time

@ray.remote(num_cpus=1)
def look():
    time.sleep(3)
    return os.environ.get("{MAX}")

print(*ray.get([look.remote() for _ in range(4)]))
time.sleep(2)
"""
    # Its workers are new, because their environment is another one.
    init = PAGE["ray"].replace('{"PYTHONPATH"', f'{{"{MAX}": "1", "PYTHONPATH"')
    write("/run/driver.py", init + look)
    done = sh("python3 /run/driver.py", env)
    expect(
        "what workers see", re.findall("None None None None", done.stdout), ["None " * 3 + "None"]
    )
    # Ray itself folds equal lines that come within five seconds: the first one at once, then how
    # often it came again. It starts more interpreters than the four that work.
    lines = [line for line in (done.stdout + done.stderr).splitlines() if OURS in line]
    times = [re.search(r"repeated (\d+)x", line) for line in lines]
    expect("the first line is whole", times[:1], [None])
    count = sum(int(one[1]) if one else 1 for one in times)
    expect("lines of four workers or more", count >= 4, True)


# Containers --------------------------------------------------------------------------------------


def pack(command: str) -> None:
    """Make the image, which has a variable of those that images of ROCm have."""
    sh(f"tar -C {IMAGE_ROOT} -c . | {command} import --change 'ENV {MAX}=1' - {IMAGE}")


def start_podman() -> None:
    # No network and no limit of processes: not all surroundings have them. systemd brings a line
    # into the journal, and podman shall not do so a second time.
    settings = 'netns = "none"\npids_limit = 0\nlog_driver = "none"\n'
    write("/etc/containers/containers.conf", "[containers]\n" + settings)
    pack("podman")


@check
def podman() -> None:
    start_podman()
    without = sh(f"podman run --rm {IMAGE} {PROOF}", wrong=True)
    expect("without", "No module named rocm_autopatch" in without.stderr, True)
    proves(PAGE["podman"], 1, {"IMAGE": IMAGE})


@check
def quadlet() -> None:
    """The service runs under a systemd of its own."""
    start_podman()
    units = Path("/etc/containers/systemd")
    for old in (units, Path("/var/log/journal")):
        shutil.rmtree(old, ignore_errors=True)
    for name, command in (("server", PROOF), ("look", LOOK)):
        unit = f"[Container]\nImage={IMAGE}\nExec={command}\n[Service]\nType=oneshot\n"
        write(units / f"{name}.container", unit)
        write(units / f"{name}.container.d" / "rocm-autopatch.conf", PAGE["quadlet"])
    told = HERE / "journal"
    script = "systemctl start server look; "
    for name in ("server", "look"):
        # The journal of a service has what podman itself tells, too.
        script += f"journalctl -u {name} -o cat --no-pager > {told}.{name} 2>&1; "
    script += "systemctl poweroff --force --force"
    write(HERE / "try.sh", script)
    write(
        "/etc/systemd/system/try.service",
        f"[Service]\nType=oneshot\nExecStart=sh {HERE}/try.sh\n",
    )
    write(
        "/etc/systemd/system/try.target",
        "[Unit]\nRequires=try.service\nAfter=try.service\nAllowIsolate=yes\n",
    )
    spaces = "unshare --mount --pid --fork --kill-child --mount-proc --cgroup --uts --ipc"
    sh(f"{spaces} /lib/systemd/systemd --unit=try.target --show-status=no", wrong=True)
    text = Path(f"{told}.server").read_text()
    if not said(text):
        raise Differs(text)
    agree(said(text), 1)
    lines = Path(f"{told}.look").read_text().splitlines()
    expect("what the service sees", lines.count("None"), 1)
    expect("lines", len([line for line in lines if line.startswith(OURS)]), 1)


@check
def compose() -> None:
    """Docker's own server and its compose."""
    options = "--iptables=false --ip6tables=false --ip-masq=false --bridge=none"
    serve(f"dockerd {options}", "/run/dockerd.log")
    wait_for("a Docker server", lambda: not sh("docker info", wrong=True).returncode)
    pack("docker")
    work = Path("/run/compose")
    base = {"image": IMAGE, "network_mode": "none", "command": PROOF}
    # YAML, too.
    write(work / "compose.yaml", json.dumps({"services": {"server": base}}))
    up = f"cd {work} && docker compose up --no-log-prefix"
    without = sh(up, wrong=True)
    expect("without", "No module named rocm_autopatch" in without.stdout + without.stderr, True)
    write(work / "compose.override.yaml", PAGE["compose"])
    agree(said(sh(up).stdout), 1)
    quiet(sh(f"cd {work} && docker compose run --rm server {LOOK}"), 1)


@check
def apptainer() -> None:
    """As a user: in these surroundings, root lacks a capability that apptainer asks for."""
    settings = Path("/etc/apptainer/apptainer.conf")
    before = settings.read_text()
    user = 65534
    EMPTY.mkdir(exist_ok=True)
    os.chown(EMPTY, user, user)
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups "
    without = sh(f"{as_user}apptainer exec {IMAGE_ROOT} {PROOF}", {"HOME": str(EMPTY)}, wrong=True)
    expect("without", "No module named rocm_autopatch" in without.stderr, True)
    env = {"IMAGE": IMAGE_ROOT, "HOME": str(EMPTY)}
    proves(as_user + PAGE["apptainer"], 1, env)
    try:
        settings.write_text(before + f"bind path = {HOOK}\n")
        fleet = PAGE["apptainer-fleet"].replace("apptainer", as_user + "apptainer", 1)
        proves(fleet, 1, env)
    finally:
        settings.write_text(before)


def main(checks: Mapping[str, Callable[[], None]]) -> int:
    """Run the one of *checks* that is asked for."""
    try:
        checks[sys.argv[1]]()
    except (Differs, subprocess.TimeoutExpired) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(CHECKS))
