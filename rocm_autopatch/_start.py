"""The start-up half: what every interpreter of the image runs, unless it is switched off.

It decides whether anything applies here, changes the environment, and leaves the rest to
post-import hooks. It must stay cheap, silent on stdout, and unable to fail: ``os`` and ``sys`` are
loaded already, everything else has to be worth its price in every process of the image
(docs/design.md, "The price of a start").
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Optional

    from rocm_autopatch.plan import Plan

ON = ("on", "1", "true", "yes")
FACTS = (
    *("accelerator", "torch", "hip", "rocm", "gfx", "gpu", "python", "image", "repository", "tag"),
    *("framework", "framework_version", "date", "os", "flavour"),
)
OLDEST_TORCH = (2, 4)
SITE = "/etc/rocm-autopatch"
ASSUME = "ROCM_AUTOPATCH_ASSUME"
# Marks a process tree in which these kinds of line were already written to stderr.
SAID = "ROCM_AUTOPATCH_SAID"

# What this process did. record.render() turns it into what report() returns.
RECORD: "dict[str, Any]" = {
    "active": False,
    "observe": False,
    "reason": "",
    "facts": {},
    "plan": None,
    "keep": (),
    "env": [],
    "patches": {},
    "notes": [],
    "errors": [],
}


def run(switch: str) -> None:
    """Apply the policy to this interpreter, as ROCM_AUTOPATCH=*switch* says. Never raises."""
    try:
        RECORD["observe"] = switch == "observe"
        if switch not in ON and switch != "observe":
            fail("switch", "ROCM_AUTOPATCH=%s is not on, off or observe: taken as on" % switch)
        _decide()
    except BaseException as error:
        RECORD["active"] = False
        RECORD["reason"] = "the start-up hook failed"
        fail("start", "nothing more was done: %s" % describe(error))


def _decide() -> None:
    facts = RECORD["facts"]
    # os.access first: a directory or file that is not there costs a tenth of a raised OSError.
    site = os.listdir(SITE) if os.access(SITE, os.R_OK | os.X_OK) else []
    _assume(facts)
    if "image" not in facts:
        _read_image(facts, site)
    if "torch" not in facts or "accelerator" not in facts:
        _read_torch(facts)
    if "accelerator" not in facts:
        RECORD["reason"] = "no torch found"
        return
    torch = facts.get("torch", ("",))[0]
    if facts["accelerator"][0] != "rocm":
        RECORD["reason"] = "torch %s is not a ROCm build" % torch
        return
    if torch and _release(torch) < OLDEST_TORCH:
        RECORD["reason"] = "torch %s is older than %d.%d" % (torch, *OLDEST_TORCH)
        fail("torch", "nothing was changed: " + RECORD["reason"])
        return
    plan = _plan(facts, [name for name in site if name.endswith(".yaml")])
    if plan is None:
        return
    RECORD["plan"] = plan
    RECORD["active"] = True
    RECORD["keep"] = keep = _names("ROCM_AUTOPATCH_KEEP")
    if _apply_env(plan, keep):
        say("active", summary())
    if os.environ.get("ROCM_AUTOPATCH_LOG") == "debug":
        from rocm_autopatch import record

        _narrate([record.env_row(*row) for row in RECORD["env"]])
    if plan["patches"]:
        from rocm_autopatch import _hooks

        _hooks.arm(dict.fromkeys([target for _, target, _ in plan["patches"]], _imported))


def _names(variable: str) -> "tuple[str, ...]":
    return tuple([n.strip() for n in os.environ.get(variable, "").split(",") if n.strip()])


def _assume(facts: "dict[str, tuple[str, str]]") -> None:
    for item in _names(ASSUME):
        name, equals, value = item.partition("=")
        if equals and name in FACTS:
            facts[name] = (value, ASSUME)
        else:
            fail(
                "assume",
                "%s: %r ignored, expected NAME=VALUE with a name of %s"
                % (ASSUME, item, ", ".join(FACTS)),
            )


def _read_image(facts: "dict[str, tuple[str, str]]", site: "list[str]") -> None:
    image = os.environ.get("ROCM_AUTOPATCH_IMAGE", "").strip()
    source = "ROCM_AUTOPATCH_IMAGE"
    if not image and "image" in site:
        source = SITE + "/image"
        image = _read(source).partition("\n")[0].strip()
    if image:
        facts["image"] = (image, source)


def _read(path: str) -> str:
    """The first 8 KiB of a small text file, or "" where it can't be read."""
    if not os.access(path, os.R_OK):
        return ""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 8192).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _read_torch(facts: "dict[str, tuple[str, str]]") -> None:
    """Take what the text of the torch/version.py to be imported says of torch."""
    path, text = _search(sys.path)
    if not text:
        path, text = _search(_later_paths())
    if not text:
        return
    found = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            # "hip: Optional[str] = '7.0.51831'", and without the annotation up to torch 1.13
            found[name.partition(":")[0].strip()] = value.partition("#")[0].strip().strip("'\"")
    version = found.get("__version__", "")
    if not version:
        fail("torch", "nothing was changed: no __version__ in %s" % path)
        return
    # rocm is there from 2.10 on (pytorch#168097).
    hip, cuda, rocm = [found.get(n, "None").replace("None", "") for n in ("hip", "cuda", "rocm")]
    accelerator = "rocm" if hip else "cuda" if cuda else "cpu"
    says = (("torch", version), ("accelerator", accelerator), ("hip", hip), ("rocm", rocm))
    for name, value in says:
        if value and name not in facts:
            facts[name] = (value, path)


def _search(directories: "list[str]") -> "tuple[str, str]":
    """The first torch/version.py in *directories*, and its text; "" and "" if there is none."""
    for directory in directories:
        path = (directory or ".") + "/torch/version.py"
        text = _read(path)
        if text:
            return path, text
    return "", ""


def _later_paths() -> "list[str]":
    """Site directories that ``site`` adds to sys.path only after the .pth file that runs us."""
    # Before 3.15 a .pth line sees the directories read so far: not the system's, from a user's
    # site-packages or from a venv made with --system-site-packages.
    site = sys.modules.get("site")
    if site is None:
        return []
    prefixes = [sys.prefix, sys.exec_prefix]
    if sys.prefix != sys.base_prefix:
        config = _read(sys.prefix + "/pyvenv.cfg").lower().replace(" ", "")
        if "include-system-site-packages=true" not in config:
            return []
        prefixes = [sys.base_prefix, sys.base_exec_prefix]
    directories: list[str] = site.getsitepackages(prefixes)
    return directories


def _release(version: str) -> "tuple[int, ...]":
    """The numbers of a version; (999,) where there are none, as for a torch of unknown version."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break  # 2.15.0a0, 2.14.0.dev20260801
        numbers.append(int(part))
    return tuple(numbers) or (999,)


def for_this_torch(rows: "tuple[tuple[Any, ...], ...]") -> "list[tuple[Any, ...]]":
    """Of the rows of each name, the last that is for this torch."""
    release = _release(RECORD["facts"].get("torch", ("",))[0])
    chosen = {}
    for row in rows:
        since, until = row[-2:]
        if since <= release and (not until or release < until):
            chosen[row[0]] = row
    return list(chosen.values())


def _plan(facts: "dict[str, tuple[str, str]]", site: "list[str]") -> "Optional[Plan]":
    """The plan for these facts: built in where that suffices, else lowered from YAML here.

    *site* are the policy files in /etc/rocm-autopatch.
    """
    policy = _named_policy()
    try:
        from rocm_autopatch import _builtin as builtin  # type: ignore[attr-defined]
    except ImportError:
        # A checkout or an editable install: nothing was lowered there, so nothing goes stale.
        from rocm_autopatch.policy import builtin
    image = facts.get("image", ("",))[0]
    reference = _reference(image)
    chosen = builtin.IMAGES.get(reference) or builtin.IMAGES.get(_without_registry(reference), "")
    if policy:
        RECORD["reason"] = "ROCM_AUTOPATCH_POLICY=%s" % policy
    elif chosen:
        RECORD["reason"] = "images.yaml knows %s" % image
    else:
        RECORD["reason"] = "%s: %s is the default policy on ROCm" % (
            "images.yaml has no policy for %s" % image if image else "no image is named",
            builtin.DEFAULT,
        )
    if "/" in policy or policy.endswith((".yaml", ".yml")):
        return _lower(policy)
    if policy and policy not in builtin.POLICIES:
        names = ", ".join(sorted(set(builtin.POLICIES).difference(builtin.IMAGES)))
        RECORD["reason"] += ": there is no such policy"
        fail(
            "policy",
            "nothing was changed: ROCM_AUTOPATCH_POLICY=%s: no such policy, there are %s "
            "(a file's name has a / or ends in .yaml)" % (policy, names),
        )
        return None
    # A built-in policy was lowered for the default, not for what a record or a site puts below it.
    if site or (policy and chosen not in ("", builtin.DEFAULT)):
        return _lower(policy)
    plan: Plan = builtin.POLICIES[policy or chosen or builtin.DEFAULT]
    return plan


def _named_policy() -> str:
    """What ROCM_AUTOPATCH_POLICY names, where the environment may name files."""
    policy = os.environ.get("ROCM_AUTOPATCH_POLICY", "").strip()
    if not policy:
        return ""
    if sys.flags.ignore_environment:
        why = "under python -E or -I"
    elif os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        why = "in a program that runs as another user than its caller"
    else:
        return policy
    RECORD["notes"].append("ROCM_AUTOPATCH_POLICY ignored " + why)
    return ""


def _reference(image: str) -> str:
    """An image reference as images.yaml writes it: without docker.io/ and digest."""
    image = image.partition("@")[0]
    return image[len("docker.io/") :] if image.startswith("docker.io/") else image


def _without_registry(image: str) -> str:
    """The reference in any registry: a mirror makes no other image of it."""
    host, slash, rest = image.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else image


def _lower(policy: str) -> "Optional[Plan]":
    # The slow path: tens of milliseconds for PyYAML, paid only where somebody's own policies are
    # read unbaked.
    from rocm_autopatch.policy import PolicyError, select

    try:
        return select.lowered(RECORD["facts"], policy)
    except PolicyError as error:
        RECORD["reason"] += ": it could not be used"
        fail("policy", "nothing was changed: %s" % error)
        return None


def _apply_env(plan: "Plan", keep: "tuple[str, ...]") -> int:
    """Carry out the environment rules; how many variables changed."""
    environ = os.environ
    rows = RECORD["env"]
    changed = 0
    for rule in for_this_torch(plan["env"]):
        name, action, value = rule[:3]
        before = environ.get(name)
        if name in keep:
            status = "kept"
        elif before == value or (action == "default" and before is not None):
            status = "unchanged"
        elif RECORD["observe"]:
            status = "observed"
        else:
            status = "applied"
            changed += 1
            if value is None:
                # Never set to "": int() of it crashes torch._inductor.config on several versions.
                del environ[name]
            else:
                environ[name] = value
        rows.append((rule, before, status))
    return changed


def _imported(module: "ModuleType") -> None:
    """Apply what the plan has for a module of torch that has just been executed. Never raises."""
    target = module.__name__
    try:
        version = sys.modules.get("torch.version")
        if not getattr(version, "hip", None) and RECORD["facts"]["accelerator"][1] != ASSUME:
            RECORD["notes"].append("%s is not of the torch found at start: left alone" % target)
            return
        patches = [row for row in RECORD["plan"]["patches"] if row[1] == target]
        changed = [_patch(name, target, module, entries) for name, _, entries in patches]
        if any(changed):
            say("active", summary())
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: this runs inside the program's import statement.
        fail(target, "%s left as it is: %s" % (target, describe(error)))


def _patch(name: str, target: str, module: "ModuleType", entries: "Any") -> bool:
    """Apply one patch to its target and record it; whether anything was changed."""
    row: dict[str, Any] = {"status": "failed", "reason": "", "entries": []}
    RECORD["patches"][name, target] = row
    keep = RECORD["keep"]
    if name in keep:
        row.update(status="kept", reason="ROCM_AUTOPATCH_KEEP")
        return False
    try:
        # A patch is a file of its own, loaded when its target is: most processes never load one.
        patch = __import__("rocm_autopatch.patches." + name, fromlist=["apply"])
        entries = for_this_torch(entries)
        row["entries"] = patch.apply(module, entries, keep, RECORD["observe"])
        row["status"] = "observed" if RECORD["observe"] else "applied"
    except BaseException as error:
        row["reason"] = describe(error)
        fail(target, "patch %s of %s skipped: %s" % (name, target, row["reason"]))
    for entry in row["entries"]:
        if entry["status"] == "failed":
            fail(target, "%s.%s: %s" % (target, entry["name"], entry["reason"]))
    if os.environ.get("ROCM_AUTOPATCH_LOG") == "debug":
        _narrate(row["entries"])
    return any(entry["status"] == "applied" for entry in row["entries"])


def summary() -> str:
    """The one line that a process tree writes: image, policy, counts, and the way out."""
    plan = RECORD["plan"]
    image = RECORD["facts"].get("image", ("image not named",))[0]
    counts = [(len([row for row in RECORD["env"] if row[2] == "applied"]), "variable")]
    for patch, noun in (("config", "config value"), ("compile_modes", "compile mode")):
        rows = [for_this_torch(e) for name, _, e in plan["patches"] if name == patch]
        counts.append((sum(map(len, rows)), noun))
    return "%s, policy %s: %s; rocm-autopatch status shows each, ROCM_AUTOPATCH=off opts out" % (
        image,
        plan["policy"],
        ", ".join(["%d %s%s" % (n, noun, "" if n == 1 else "s") for n, noun in counts if n]),
    )


def fail(kind: str, text: str) -> None:
    """Put an error on the record and say it once."""
    RECORD["errors"].append(text)
    say(kind, text)


def say(kind: str, text: str) -> None:
    """Write one line to stderr, once for each kind in a process tree. Never raises."""
    log = os.environ.get("ROCM_AUTOPATCH_LOG", "")
    said = os.environ.get(SAID, "")
    if log == "quiet" or (kind in said.split(",") and log != "debug"):
        return
    if not RECORD["observe"]:
        os.environ[SAID] = said + "," + kind if said else kind
    _write(text)


def _narrate(rows: "list[dict[str, Any]]") -> None:
    from rocm_autopatch import record

    for row in rows:
        _write("%s: %s" % (record.sentence(row), row["why"]))


def _write(text: str) -> None:
    line = ("rocm_autopatch: %s\n" % text.replace("\n", " ")).encode("utf-8", "replace")
    try:
        # Past the buffer of sys.stderr: text that can't be flushed would turn the program's exit
        # status into 120 at its end.
        os.write(sys.stderr.fileno(), line)
    except Exception:
        # stderr is closed, full or not a file: there is nobody left to tell.
        pass


def describe(error: BaseException) -> str:
    text = str(error)
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
