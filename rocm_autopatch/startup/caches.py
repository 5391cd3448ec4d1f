"""One root for all caches, at a start: the directory for this kind of place, and its variables.

Beneath the root there is one directory for each kind of place: torch, Triton, HIP, GPUs, Python and
policy. What a cache's own key lacks is in the directory's name: Inductor's keys do not have the
compute units, and those of aiter's modules have nothing (docs/caches-torch.md,
docs/caches-rocm.md). A process loads this only where a policy or the user asks for caches.
"""

import os
import sys

from rocm_autopatch import _RECORD, _read, kfd, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from rocm_autopatch.plan import Plan

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
# How a part is used. SHARED: by all processes that have the root. LOCAL: the same, but not on a
# network file system: SQLite and mapped files, for which MIOpen and comgr avoid those themselves.
# PRIVATE: a build that is killed leaves a lock file, for which the next one waits without end. So
# each container has a directory of its own, which goes with it, with links to what the root has. It
# is used only where the root has something, because with it, aiter and FlyDSL no longer look at
# what was built into the image.
SHARED, LOCAL, PRIVATE = "shared", "local", "private"
# Variable, its part of a place, how it is used, and from which torch on.
PARTS = (
    ("TORCHINDUCTOR_CACHE_DIR", "inductor", SHARED, ()),
    ("TRITON_CACHE_DIR", "triton", SHARED, ()),
    # Up to torch 2.13, a build that is killed leaves a lock file (pytorch#189245).
    ("TORCH_EXTENSIONS_DIR", "extensions", SHARED, (2, 14)),
    ("AITER_JIT_DIR", "aiter-modules", PRIVATE, ()),
    ("AITER_ROOT_DIR", "aiter", PRIVATE, ()),
    ("FLYDSL_RUNTIME_CACHE_DIR", "flydsl", PRIVATE, ()),
    ("MIOPEN_USER_DB_PATH", "miopen", LOCAL, ()),
    ("MIOPEN_CUSTOM_CACHE_DIR", "miopen-kernels", LOCAL, ()),
    ("AMD_COMGR_CACHE_DIR", "comgr", LOCAL, ()),
    ("PYTORCH_TUNABLEOP_FILENAME", "tunableop/results.csv", SHARED, ()),
    ("VLLM_CACHE_ROOT", "vllm", SHARED, ()),
    ("SGLANG_CACHE_DIR", "sglang", SHARED, ()),
    ("SGLANG_JIT_CACHE_DIR", "sglang-jit", SHARED, ()),
    ("TILELANG_CACHE_DIR", "tilelang", SHARED, ()),
)
WHY = "one root for all caches, by the policy's caches"
# The types of network file systems, as MIOpen knows them (expanduser.cpp), and a few more.
_NETWORK = (
    *(b"nfs", b"nfs4", b"cifs", b"smb3", b"smbfs", b"lustre", b"ceph", b"glusterfs", b"afs"),
    *(b"gpfs", b"beegfs", b"9p", b"ocfs2", b"coda", b"wekafs", b"fuse.juicefs"),
)
# What a place must have room for, in bytes.
_LEAST_ROOM = 128 << 20
# The module of torch that looks graphs up.
_LOOKUPS = "torch._inductor.codecache"
_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-"


class Unusable(Exception):
    """No cache is used; the text says why."""


def add(plan: "Plan") -> None:
    """Add the environment rules for the caches of this place to a plan, if anybody asks for them.

    Makes the place's directory. If it can't be used, says why.
    """
    use, layer, why, require = wanted(plan)
    done: dict[str, Any] = {"use": use, "layer": layer, "root": "", "place": "", "of": {}}
    done.update(reason="", require=require, hits=0, misses=0)
    _RECORD["caches"] = done
    keep = os.environ.get("ROCM_AUTOPATCH_KEEP", "").split(",")
    if use != "off" and "caches" in map(str.strip, keep):
        done["reason"] = "ROCM_AUTOPATCH_KEEP"
    if use == "off" or done["reason"]:
        return
    try:
        root = done["root"] = where(use)
        fields = done["of"] = place(plan)
        directory = done["place"] = "%s/%s" % (root, name(fields))
        if not _RECORD["observe"]:
            _make(root, directory, fields)
            startup.arm({_LOOKUPS: "rocm_autopatch.cache_misses:watch"})
        # First: a policy that names one of the variables decides.
        plan["env"] = (*_rules(done, why), *plan["env"])
    except (OSError, Unusable) as error:
        done["reason"] = str(error) if isinstance(error, Unusable) else _of_system(error)
        startup.say("caches", "no cache is kept: " + done["reason"])


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
        return use.rstrip("/") or "/"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.path.expanduser("~")
        if not home.startswith("/"):
            raise Unusable("this user has no home directory; %s=/PATH names a root" % VARIABLE)
        base = home + "/.cache"
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
    seal = startup.digest(repr(sorted(fields.items())).encode("utf-8", "replace")).hex()
    parts = ["".join(letter if letter in _PLAIN else "-" for letter in part)[:60] for part in told]
    return "_".join([*parts, seal])


def _make(root: str, directory: str, fields: "dict[str, str]") -> None:
    """Make a place, or look whether the one that is there may be used."""
    if not os.access(directory + "/" + MARK, os.R_OK):
        _directories(root)
        check(root)
        _at_once(directory, lambda new: _fill(new, directory, fields))
    check(directory)
    below = _below(directory)
    if os.access(below + "/" + MARK, os.R_OK) and not os.access(directory + "/" + LINKED, os.F_OK):
        # The place was there before the layer.
        _link(below, directory)
    try:
        # The last use, by which gc goes.
        os.utime(directory)
    except OSError:
        raise Unusable("%s can't be written" % directory) from None
    room = os.statvfs(directory)
    if room.f_bavail * room.f_frsize < _LEAST_ROOM:
        # A compile that can't write fails, and would not have failed elsewhere.
        text = "%s has less than %d MiB of room left; rocm-autopatch cache gc --max SIZE makes room"
        raise Unusable(text % (directory, _LEAST_ROOM >> 20))


def _at_once(directory: str, fill: "Callable[[str], None]") -> None:
    """Make a directory that nobody sees before it is filled. Another process may be faster."""
    above = directory.rpartition("/")[0]
    new = "%s/.new-%d-%s" % (above, os.getpid(), os.urandom(4).hex())
    # Nobody else may come in: what is in it is code, and a program may have a umask that lets
    # everybody write.
    os.mkdir(new, 0o700)
    try:
        fill(new)
        os.rename(new, directory)
    except OSError:
        from rocm_autopatch.startup import layer

        layer.remove(new)
        if not os.access(directory, os.F_OK):
            raise


def _fill(new: str, directory: str, fields: "dict[str, str]") -> None:
    below = _below(directory)
    if os.access(below + "/" + MARK, os.R_OK):
        _link(below, new)
    else:
        text = "".join("%s %s\n" % field for field in fields.items())
        with open(new + "/" + MARK, "w", encoding="utf-8") as stream:
            stream.write(text)
        if os.access(LAYER, os.R_OK | os.X_OK):
            from rocm_autopatch.startup import layer

            apart = layer.apart(LAYER, MARK, fields)
            if apart:
                startup.say("caches-layer", "the caches in %s do not fit: %s" % (LAYER, apart))
    directories(new)


def _below(directory: str) -> str:
    return "%s/%s" % (LAYER, directory.rpartition("/")[2])


def _link(below: str, directory: str) -> None:
    from rocm_autopatch.startup import layer

    check(below)
    layer.link(below, directory)
    with open(directory + "/" + LINKED, "w", encoding="ascii") as stream:
        stream.write("%s\n" % below)


def directories(place: str) -> None:
    """Make the directories of a place's parts. Not all that keeps something there makes them."""
    for _, part, use, _ in PARTS:
        inner = place + "/" + (part.rpartition("/")[0] or part)
        if use != PRIVATE and not os.access(inner, os.F_OK):
            os.mkdir(inner)


def _directories(path: str) -> None:
    """Make a directory and those above it. The umask may let everybody write; this does not."""
    if not os.access(path, os.F_OK):
        _directories(path.rpartition("/")[0] or "/")
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass  # Another process was faster.


def check(directory: str) -> None:
    """Raise Unusable if others could have changed what is in a directory."""
    status = os.lstat(directory)
    if status.st_uid == os.geteuid() and status.st_mode & 0o170077 == 0o040000:
        # A directory of this user's that nobody else can enter. Nobody else can make one.
        return
    from rocm_autopatch import trust

    why = trust.directory(directory)
    if why:
        raise Unusable("%s: %s" % (directory, why))


def _rules(done: "dict[str, Any]", why: str) -> "Iterator[tuple[Any, ...]]":
    """A default for each variable, as rows of plan.ENV_FIELDS."""
    root, directory = done["root"], done["place"]
    torch = startup.release(done["of"]["torch"])
    present = os.environ._data  # type: ignore[attr-defined]
    network: Any = None
    for variable, part, use, since in PARTS:
        path = "%s/%s" % (directory, part)
        if torch < since or (use == PRIVATE and not os.access(path, os.F_OK)):
            continue
        if use == LOCAL:
            network = _is_network(root) if network is None else network
            if network:
                continue
        if use == PRIVATE:
            path = _own(directory, part)
        # A program that another torch has started is in another place.
        inherited = variable.encode() in present and _is_ours(os.environ[variable], path, part)
        yield variable, "set" if inherited else "default", path, done["layer"], why, (), ()


def own(directory: str) -> str:
    """Where this container has its own directories for a place."""
    # By the whole path, because a container may have two roots.
    return "%s/%s" % (OWN % os.geteuid(), startup.digest(os.fsencode(directory)).hex())


def _own(directory: str, part: str) -> str:
    """This container's own directory for a part of a place that is PRIVATE, with links to it."""
    above = own(directory)
    path = "%s/%s" % (above, part)
    if not (_RECORD["observe"] or os.access(path, os.F_OK)):
        from rocm_autopatch.startup import layer

        for outer in (above.rpartition("/")[0], above):
            if not os.access(outer, os.F_OK):
                _at_once(outer, lambda new: None)
            check(outer)
        _at_once(path, lambda new: layer.link(directory, new, "/" + part))
    if not _RECORD["observe"]:
        check(path)
    return path


def _is_ours(value: str, path: str, part: str) -> bool:
    """Whether a value is this part of any place beside the one that *path* is in."""
    root = path[: -len(part) - 1].rpartition("/")[0]
    if not (value.startswith(root + "/") and value.endswith("/" + part)):
        return False
    return "/" not in value[len(root) + 1 : -len(part) - 1]


def _is_network(path: str) -> bool:
    """Whether a path is on a network file system, by the longest mount point that has it."""
    here, found, network = os.fsencode(path) + b"/", -1, False
    for line in _read("/proc/self/mountinfo", 1 << 20).split(b"\n"):
        # Some optional fields come before the dash (proc(5)).
        fields, _, rest = line.partition(b" - ")
        words = fields.split(b" ", 5)
        if len(words) < 5:
            continue
        point = words[4]
        if b"\\" in point:
            # A space and such is an octal escape there. The codec is one more import.
            point = point.decode("unicode_escape").encode("latin-1")
        if here.startswith(point.rstrip(b"/") + b"/") and len(point) >= found:
            found, network = len(point), rest.partition(b" ")[0] in _NETWORK
    return network


def _of_system(error: OSError) -> str:
    return "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)
