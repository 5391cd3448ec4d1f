"""One root for all caches, at a start: the directory for this kind of place, and its variables.

Beneath the root there is one directory for each kind of place: torch, Triton, HIP, GPUs, Python and
policy. What a cache's own key lacks is in the directory's name: Inductor's keys do not have the
compute units, and those of aiter's modules have nothing (research/caches-torch.md,
research/caches-rocm.md). A process loads this only where a policy or the user asks for caches.
"""

import _imp
import os
import sys

from rocm_autopatch import _RECORD, _read, startup
from rocm_autopatch.startup import kfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Optional

    from rocm_autopatch.plan import EnvRow, Plan
    from rocm_autopatch.record.shapes import CachesRecord

# What a user asks for: on, off, require, or the path of a root.
VARIABLE = "ROCM_AUTOPATCH_CACHE"
REQUIRE = "require"
WORDS = ("on", "off", REQUIRE)
# The root where nobody names one: in the cache directory of the user (XDG Base Directory).
BELOW_HOME = "rocm-autopatch"
# Where an image or a read-only volume has places that somebody else filled.
LAYER = "/usr/local/share/rocm-autopatch/caches"
# The file in a place that says which place it is.
MARK = "place"
# The file in a place that has links to all that the layer has.
LINKED = "layer"
# Where a container has places for the parts that are PRIVATE: here, for each user.
OWN = "/tmp/rocm-autopatch-%d"
# How a part is used. SHARED: by all processes that have the root. PRIVATE: a build that is killed
# leaves a lock file, for which the next one waits without end. So each container has a directory of
# its own, which goes with it, with links to what the root has. It is used only where the root has
# something, because with it, aiter and FlyDSL no longer look at what was built into the image. If
# the root is on a network file system, each container has all parts for itself.
SHARED, PRIVATE = "shared", "private"
# Variable, its part of a place, how it is used, and from which torch on.
PARTS = (
    ("TORCHINDUCTOR_CACHE_DIR", "inductor", SHARED, ()),
    ("TRITON_CACHE_DIR", "triton", SHARED, ()),
    # Up to torch 2.13, a build that is killed leaves a lock file (pytorch#189245).
    ("TORCH_EXTENSIONS_DIR", "extensions", SHARED, (2, 14)),
    ("AITER_JIT_DIR", "aiter-modules", PRIVATE, ()),
    ("AITER_ROOT_DIR", "aiter", PRIVATE, ()),
    ("FLYDSL_RUNTIME_CACHE_DIR", "flydsl", PRIVATE, ()),
    ("MIOPEN_USER_DB_PATH", "miopen", SHARED, ()),
    ("MIOPEN_CUSTOM_CACHE_DIR", "miopen-kernels", SHARED, ()),
    ("AMD_COMGR_CACHE_DIR", "comgr", SHARED, ()),
    ("PYTORCH_TUNABLEOP_FILENAME", "tunableop/results.csv", SHARED, ()),
    ("VLLM_CACHE_ROOT", "vllm", SHARED, ()),
    ("SGLANG_CACHE_DIR", "sglang", SHARED, ()),
    ("SGLANG_JIT_CACHE_DIR", "sglang-jit", SHARED, ()),
    ("TILELANG_CACHE_DIR", "tilelang", SHARED, ()),
)
# The part that is ours: what the keys of Inductor's graphs were made of (cache_misses).
KEYS = "keys"
WHY = "one root for all caches, by the policy's caches"
# The types of network file systems, as MIOpen knows them (expanduser.cpp), and a few more.
_NETWORK = (
    *(b"nfs", b"nfs4", b"cifs", b"smb3", b"smbfs", b"lustre", b"ceph", b"glusterfs", b"afs"),
    *(b"gpfs", b"beegfs", b"beegfs_nodev", b"9p", b"ocfs2", b"gfs2", b"coda", b"wekafs", b"panfs"),
    *(b"pvfs2", b"smb2", b"fuse.juicefs", b"fuse.sshfs", b"fuse.glusterfs", b"fuse.ceph"),
    *(b"fuse.ceph-fuse", b"fuse.cephfs", b"fuse.s3fs", b"fuse.mount-s3", b"fuse.gcsfuse"),
    *(b"fuse.goofys", b"fuse.rclone", b"fuse.blobfuse", b"fuse.blobfuse2", b"fuse.mfs"),
)
# What a place must have room for: bytes, and files.
_LEAST_ROOM = 128 << 20
_LEAST_FILES = 1000
# The module of torch that looks graphs up.
_LOOKUPS = "torch._inductor.codecache"
# The one that compiles them.
_COMPILES = "torch._inductor.compile_fx"
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-"


class Unusable(Exception):
    """No cache is used; the text says why."""


class UnsafePlace(Unusable):
    """Somebody else could have changed what is in the caches, or can put others in their place."""


def add(plan: "Plan") -> bool:
    """Add the environment rules for the caches of this place to a plan, if anybody asks for them.

    This is the way of nearly all starts, to a place that is in order. If False, cache_place has to
    look: it makes the place, or says why none can be used.
    """
    use, layer, why, require = wanted(plan)
    done: CachesRecord = {
        "use": use,
        "layer": layer,
        "root": "",
        "place": "",
        "node": "",
        "of": {},
        "reason": "",
        "require": require,
        "hits": 0,
        "misses": 0,
    }
    _RECORD["caches"] = done
    if require and not _RECORD["observe"]:
        startup.arm({_COMPILES: "rocm_autopatch.patches.cache_misses:forbid_compiles"})
    keep = os.environ.get("ROCM_AUTOPATCH_KEEP", "").split(",")
    if use != "off" and "caches" in map(str.strip, keep):
        done["reason"] = "ROCM_AUTOPATCH_KEEP"
    if use == "off" or done["reason"]:
        return True
    try:
        plain = locate_place(plan, done)
    except Unusable:
        return False
    if makes_nothing() or done["node"] or not (plain and _is_in_order(done["place"])):
        return False
    odd: list[str] = []
    rows = tuple(variable_rules(done, why, odd, _own_part))
    if odd:
        return False
    add_rows(plan, done, rows)
    return True


def locate_place(plan: "Plan", done: "CachesRecord") -> bool:
    """Put on record where the place is. Returns is_plain() of its root. Raises Unusable."""
    root = where(done["use"])
    plain = is_plain(root)
    if not plain:
        # torch 2.13 writes os.path.abspath of it into its variable, and a child has that.
        normal = os.path.normpath("/" + root.lstrip("/"))
        if normal != root:
            root, plain = normal, is_plain(normal)
    done["root"] = root
    done["of"] = place(plan)
    done["place"] = "%s/%s" % (root.rstrip("/"), name(done["of"]))
    done["node"] = own(done["place"]) if _is_network(root, plain) else ""
    return plain


def add_rows(plan: "Plan", done: "CachesRecord", rows: "tuple[EnvRow, ...]") -> None:
    """Add rows to a plan."""
    if not (_RECORD["observe"] or done["reason"]):
        startup.arm({_LOOKUPS: "rocm_autopatch.patches.cache_misses:watch_lookups"})
    # First: a policy that names one of the variables decides.
    plan["env"] = (*rows, *plan["env"])
    # An earlier start in this process tree has given their values, and no user.
    for name, action, _, _, _, _, _ in rows:  # plan.ENV_FIELDS
        if action != "default":
            plan["insist"] += (name,)


def makes_nothing() -> bool:
    """Whether this process only looks: it observes, is a command of ours, or answers one."""
    first = str(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return (
        _RECORD["observe"]
        or first.endswith("/rocm_autopatch/support/safe_path.py")
        or startup.is_command()
    )


def wanted(plan: "Plan") -> "tuple[str, str, str, bool]":
    """What is asked for, as in a policy, by which layer, why, and whether a miss is an error.

    The variable decides over the plan.
    """
    use, layer, why = "off", "", ""
    for row in startup.for_this_torch(plan["caches"]):
        _, use, layer, why, _, _ = row  # plan.CACHES_FIELDS
    given = ""
    if VARIABLE.encode() in os.environ._data:  # type: ignore[attr-defined]
        from rocm_autopatch import trust

        given = trust.named(VARIABLE)
    if given in WORDS or given.startswith("/"):
        # A user who wants them or not does not say where.
        if not (given in ("on", REQUIRE) and use.startswith("/")):
            use = "on" if given == REQUIRE else given
        return use, VARIABLE, WHY, given == REQUIRE
    if given:
        text = "%s=%s is not one of %s or an absolute path; the policy decides about caches"
        startup.fail("caches", text % (VARIABLE, given, ", ".join(WORDS)))
    return use, layer, why or WHY, False


def where(use: str) -> str:
    """The root of the caches. Raises Unusable where there is none."""
    if use.startswith("/"):
        return "/" + use.strip("/")
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.path.expanduser("~")
        # HOME= is no home: expanduser makes / of it.
        if not (home.startswith("/") and os.environ.get("HOME", home)):
            raise Unusable("this user has no home directory; %s=/PATH names a root" % VARIABLE)
        base = home.rstrip("/") + "/.cache"
    return "%s/%s" % (base, BELOW_HOME)


def place(plan: "Plan") -> "dict[str, str]":
    """What tells this kind of place from others, by name; "" for what is not known."""
    facts = _RECORD["facts"]
    torch, source = facts.get("torch", ("", ""))
    # Of several kinds of GPU, a program may use each.
    gpus = {"%s-%d" % (gfx, units) for gfx, _, units in kfd.gpus()}
    return {
        "torch": torch,
        "triton": _triton(source),
        "hip": facts.get("hip", ("",))[0],
        "gpu": "+".join(sorted(gpus)) or "no-gpu",
        "python": sys.implementation.cache_tag or "",
        "policy": plan["policy"],
        "digest": plan["digest"],
    }


def _triton(torch: str) -> str:
    """The version of the Triton beside a torch/version.py."""
    if not torch.endswith("/torch/version.py"):
        return ""
    text = _read(torch[: -len("torch/version.py")] + "triton/__init__.py", 4096)
    for line in text.decode("utf-8", "replace").split("\n"):
        variable, equals, value = line.partition("=")
        if equals and variable.strip() == "__version__":
            return value.strip().strip("'\"")
    return ""


def name(fields: "dict[str, str]") -> str:
    """The name of a place's directory: readable, and another one where any field is another."""
    told = ["torch-" + fields["torch"], fields["gpu"], fields["python"]]
    parts = ["".join(letter if letter in _PLAIN else "-" for letter in part)[:60] for part in told]
    return "_".join([*parts, _seal(repr(sorted(fields.items())).encode("utf-8", "replace"))])


def _seal(data: bytes) -> str:
    """Hex digits that are others for other bytes."""
    return _imp.source_hash(startup.KEY, data).hex()


def _is_in_order(directory: str) -> bool:
    """Whether a place can be used as it is, if its root is plain."""
    try:
        if not os.access(directory + "/" + MARK, os.R_OK):
            return False
        status = os.lstat(directory)
        if status.st_mode & 0o170077 != 0o040000 or status.st_uid != os.geteuid():
            return False
        below = "%s/%s" % (LAYER, directory.rpartition("/")[2])
        layer = os.access(below + "/" + MARK, os.R_OK)
        if layer != os.access(directory + "/" + LINKED, os.F_OK) or (layer and not is_plain(below)):
            return False
        # The last use, by which gc goes.
        os.utime(directory)
        return not lack_of_room(directory)
    except OSError:
        return False


def is_plain(path: str) -> bool:
    """Whether a path has nothing but directories that others can't write, no link, and no dots.

    It is the short rule, for nearly all starts. trust has the whole one, with the exceptions.
    """
    user = os.geteuid()
    step = ""
    mode = 0o040000
    parts = path.split("/")
    if "" in parts[1:] or "." in parts or ".." in parts:
        return False
    try:
        for part in parts:
            # In a directory with the sticky bit, others can't replace what is there.
            if mode & 0o22 and not mode & 0o1000:
                return False
            step += "/" + part if step != "/" else part
            status = os.lstat(step)
            mode = status.st_mode
            if mode >> 12 != 0o04 or not (status.st_uid == 0 or status.st_uid == user):
                return False
    except OSError:
        return False
    return not mode & 0o22


def lack_of_room(directory: str) -> "Optional[str]":
    """What a directory has too little of, None if nothing: a compile that can't write fails."""
    room = os.statvfs(directory)
    if room.f_bavail * room.f_frsize < _LEAST_ROOM:
        return "%d MiB" % (_LEAST_ROOM >> 20)
    # Some file systems have no such limit, and say that they have no files.
    return "%d files" % _LEAST_FILES if room.f_files and room.f_favail < _LEAST_FILES else None


def variable_rules(
    done: "CachesRecord", why: str, odd: "list[str]", own_part: "Callable[[str, str], str]"
) -> "Iterator[EnvRow]":
    """A default for each variable, as rows of plan.ENV_FIELDS.

    *own_part* says where a container has a part of a place for itself, "" if nowhere. *odd* gets
    the variables that it says this of, and those that a user has set.
    """
    directory, node = done["place"], done["node"]
    torch = startup.release(done["of"]["torch"])
    present = os.environ._data  # type: ignore[attr-defined]
    for variable, part, use, since in PARTS:
        path = "%s/%s" % (directory, part)
        inherited = False
        if variable.encode() in present:
            # A program that another torch has started is in another place.
            value = os.environ[variable]
            inherited = is_ours(value, directory, part) or is_ours(value, own(directory), part)
            if not inherited:
                odd.append(variable)
        if torch < since or (use == PRIVATE and not os.access(path, os.F_OK)):
            continue
        if use == PRIVATE or node:
            path = own_part(directory, part)
            if not path:
                odd.append(variable)
                continue
        yield variable, "set" if inherited else "default", path, done["layer"], why, (), ()


def own(directory: str) -> str:
    """Where this container has its own directories for a place."""
    # By the whole path, because a container may have two roots.
    return "%s/%s" % (OWN % os.geteuid(), _seal(os.fsencode(directory)))


def _own_part(directory: str, part: str) -> str:
    mine = own(directory)
    path = "%s/%s" % (mine, part)
    return path if os.access(path, os.F_OK) and is_plain(mine) else ""


def is_ours(value: str, directory: str, part: str) -> bool:
    """Whether a value is this part of a place, or of any place beside it."""
    root = directory.rpartition("/")[0]
    if not (value.startswith(root + "/") and value.endswith("/" + part)):
        return False
    return "/" not in value[len(root) + 1 : -len(part) - 1]


def _is_network(path: str, plain: bool = False) -> bool:
    """Whether a path is on a network file system, by the longest mount point that has it.

    A home directory is often a link; *plain*: this path has none.
    """
    mounts = _read("/proc/self/mountinfo", 1 << 20)
    point = os.fsencode(path if plain else os.path.realpath(path))
    # Such characters are octal escapes there (proc(5)).
    for one in b"\\ \t\n":
        point = point.replace(bytes([one]), b"\\%03o" % one)
    if not point.startswith(b"/"):
        return False
    # There may be hundreds, so no line is looked at that names no such path. After a mount point,
    # and not after the root of what is mounted, comes "rw" or "ro".
    while True:
        words = b" %s r" % (point or b"/")
        # The last one that is mounted there.
        found = mounts.rfind(words)
        # What is mounted may have such a name, too.
        while found >= 0 and mounts.count(b" ", mounts.rfind(b"\n", 0, found) + 1, found) != 3:
            found = mounts.rfind(words, 0, found + 1)
        if found >= 0:
            # Some optional fields come before the dash.
            return mounts[found:].partition(b" - ")[2].partition(b" ")[0] in _NETWORK
        if not point:
            return False
        point = point.rpartition(b"/")[0]
