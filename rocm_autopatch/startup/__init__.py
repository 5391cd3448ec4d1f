"""The start where a policy applies: a plan is read and carried out.

Every process in which a policy applies loads this module, and most load nothing else of this
package. It changes the environment and leaves the rest to post-import hooks. It must stay cheap,
silent on stdout, and unable to fail: everything that it imports is loaded already (docs/design.md,
"The price of a start"). Its siblings are loaded by the few processes that need them:

- ``hooks``, ``patching``: where a module is imported that the plan waits for.
- ``choose``, ``assume``: where the default plan does not serve, or facts are assumed.
- ``named_sites``: where a variable names directories of policies.
- ``misnamed``: where a variable names a policy or a directory that is not there.
- ``from_yaml``: where a policy is not lowered yet.
- ``baseline``, ``image_file``: where an overlay recorded its image.
- ``unbaked``: where a baked plan does not fit.
- ``empty_text``: where a variable is set to nothing.
- ``overruled``: where a variable is set that a pin may overrule.
- ``proofs``: where evidence may change the plan.
- ``caches``, ``cache_place``, ``layer``: where caches are kept.
- ``described_gpu``: where caches are filled for a GPU that is not here.
- ``nameless``: where no variable has the user's name.
- ``rows``: where ``ROCM_AUTOPATCH_LOG=debug`` asks for a line for each change.

This module is also the finder on ``sys.meta_path``. The import system asks a finder for
``find_spec`` and for nothing else, so a module with a function of that name serves, and a class and
its instance need not be made at each start.
"""

import _imp
import marshal
import os
import sys

import rocm_autopatch
from rocm_autopatch import _RECORD, _read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Optional, Union

    from rocm_autopatch import plan as plans

    # A function, or where it is to be found: "module:function".
    Hook = Union[Callable[[ModuleType], None], str]

# Marks a process tree: which kinds of line were already written to stderr, and as "=NAME" which
# variables a start has changed.
SAID = "ROCM_AUTOPATCH_SAID"
# Where a launcher says which one of a job's ranks this is: torchrun, Slurm, Open MPI, MPICH.
RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
# What a plan file begins with: the format of plans, then a digest of what follows. A file that was
# damaged or belongs to another release is not handed to marshal, which may crash on it. The plans
# in a wheel have no digest: they are as safe as a .pyc file, and for every Python.
MAGIC = b"rocm_autopatch plan 8\n"
UNSEALED = b"unsealed"
# _imp.source_hash gives eight bytes that tell whether bytes have changed: by accident, not in an
# attack. Python 3.11 and later give others than earlier ones. zlib and hashlib would have to be
# loaded.
KEY = 0x726F636D
# How much is read of a plan, in bytes: all of it.
LONGEST = 1 << 24

# No line on stderr is longer, in characters.
LONGEST_LINE = 500

# The finder on sys.meta_path.
finder = sys.modules[__name__]
# By module name, the post-import hooks that have not been called.
waiting = {}  # type: dict[str, Hook]


def baked():
    # type: () -> Optional[plans.Plan]
    """The plan of ``rocm-autopatch bake``; None where a start has to decide for itself."""
    # The file lies beside our code: whoever may write there needs no plan. So only the mode of the
    # file itself is looked at.
    plan = load(rocm_autopatch._BAKED, 0o22)
    why = _unlike(plan) if plan else "it is damaged, or of another release, or others may write it"
    if why:
        from rocm_autopatch.startup import unbaked

        note, line = unbaked.told(why, plan)
        _RECORD["notes"].append(note)
        if line:
            say("baked", line)
        return None
    _RECORD["facts"].update(plan["facts"])
    _RECORD["baked"] = rocm_autopatch._BAKED
    _RECORD["reason"] = plan["reason"]
    if plan["prove_at_start"]:
        from rocm_autopatch.startup import proofs

        proofs.settle(plan, say)
    return plan  # type: ignore[no-any-return]


def _unlike(plan):
    # type: (plans.BakedPlan) -> Optional[str]
    # What has changed since the plan was baked, None if nothing has.
    present = os.environ._data  # type: ignore[attr-defined]
    for name, values in plan["wishes"]:
        if (present[name].strip() if name in present else b"") not in values:
            from rocm_autopatch.startup import misnamed

            if misnamed.obeyed_value(name, fail) not in values:
                return name.decode()
    path = rocm_autopatch._find_torch()
    if path != plan["torch"]:
        found = "torch is now at %s" % path if path else "no torch/version.py is found"
        return "%s (the plan was made for %s)" % (found, plan["torch"])
    # os.access first: a directory that is not there costs a raised OSError.
    for site, files in plan["sites"]:
        if (sorted(os.listdir(site)) if os.access(site, os.R_OK | os.X_OK) else []) != files:
            return "the files in %s have changed" % site
    for path, said in plan["sources"]:
        if mark(path) != said:
            return "%s has changed" % path
    if plan["gfx"] is not None:
        from rocm_autopatch.startup import unbaked

        if unbaked.gfx(plan["facts"]) != plan["gfx"]:
            return "gfx"
    return None


def mark(path):
    # type: (str) -> plans.FileMark
    """What tells whether a file has changed, at a cost that does not grow with its size.

    The content decides, not the time: builders of reproducible images set all times to the same
    value. Of a long file only the beginning is read; its size and time stand for the rest.
    """
    data = _read(path)
    seal = _imp.source_hash(KEY, data)
    if len(data) < rocm_autopatch._LONGEST:
        return (seal,)
    found = os.stat(path)
    return (seal, found.st_size, found.st_mtime_ns)


def load(path, modes=0):
    # type: (str, int) -> Any
    """What is in a plan file, None if there is no file or it is not a plan of this release.

    A file that has a mode bit of *modes* set is not read.
    """
    data = _read(path, LONGEST, modes)
    start = len(MAGIC) + 8
    seal, rest = data[len(MAGIC) : start], data[start:]
    if data[: len(MAGIC)] != MAGIC or (seal != UNSEALED and seal != _imp.source_hash(KEY, rest)):
        return None
    return marshal.loads(rest)


def release(version):
    # type: (str) -> tuple[int, ...]
    """The numbers of a version; (999,) if it has none, as for a torch of unknown version."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        if not part.isdigit():
            break  # 2.15.0a0, 2.14.0.dev20260801
        numbers.append(int(part))
    return tuple(numbers) or (999,)


def for_this_torch(rows, facts=_RECORD["facts"]):
    # type: (tuple[plans.Row, ...], dict[str, tuple[str, str]]) -> list[plans.Row]
    """For each name, the last of its rows that is for this torch."""
    torch = release(facts.get("torch", ("",))[0])
    chosen = {}
    for row in rows:
        name, *_, since, until = row
        if since <= torch and (not until or torch < until):
            chosen[name] = row
    return list(chosen.values())


def carry_out(plan):
    # type: (plans.Plan) -> None
    """Change the environment, and arm the hooks that wait for torch."""
    _RECORD["plan"] = plan
    _RECORD["active"] = True
    if b"ROCM_AUTOPATCH_KEEP" in os.environ._data:  # type: ignore[attr-defined]
        keep = os.environ["ROCM_AUTOPATCH_KEEP"].split(",")
        _RECORD["keep"] = tuple(filter(None, map(str.strip, keep)))
    # getpass.getuser() asks for the id's name only if no variable has one, and root has one.
    present = os.environ._data  # type: ignore[attr-defined]
    if os.getuid() and not (present.get(b"USER") or present.get(b"LOGNAME")):
        from rocm_autopatch.startup import nameless

        nameless.add(plan, release(_RECORD["facts"].get("torch", ("",))[0]))
    replaced = _apply_env(plan, _RECORD["keep"])
    if replaced:
        announce(plan, replaced)
    if os.environ._data.get(b"ROCM_AUTOPATCH_LOG") == b"debug":  # type: ignore[attr-defined]
        from rocm_autopatch.startup import rows

        rows.narrate_start(write)
    if plan["targets"]:
        # By name: most processes never import torch, so they do not need the function either.
        arm(dict.fromkeys(plan["targets"], "rocm_autopatch.startup.patching:imported"))


def _apply_env(plan, keep):
    # type: (plans.Plan, tuple[str, ...]) -> str
    # Carry out the environment rules; what became of variables that were set, as announce says it.
    environ = os.environ
    present = environ._data  # type: ignore[attr-defined]
    rows = _RECORD["env"]
    said = environ[SAID] if SAID.encode() in present else ""
    replaced = changed = ""
    baseline: Any = None
    rules = for_this_torch(plan["env"])
    empty: Sequence[plans.EnvRow] = ()
    if b"" in present.values():
        from rocm_autopatch.startup import empty_text

        # First, so that a default holds for a variable that was set to nothing.
        empty = empty_text.empty_rules(plan, for_this_torch)
        rules = empty + rules
    for rule in rules:
        name, action, value, _, _, _, _ = rule  # plan.ENV_FIELDS
        before = environ[name] if name.encode() in present else None
        if name in keep:
            status = "kept"
        elif before == value or (action == "default" and before is not None):
            status = "unchanged"
        else:
            status = "observed" if _RECORD["observe"] else "applied"
            if (
                before is not None
                and rule not in empty
                and (
                    "=" + name in said
                    or name in plan["image_only"]
                    or b"ROCM_AUTOPATCH_GIVEN" in present
                    or os.access(rocm_autopatch._BASELINE, os.R_OK)
                )
            ):
                from rocm_autopatch.startup import baseline

                status = baseline.given(plan, name, before, said, say) or status
        # Recorded before it is done: if it fails half-way, it is undone from the record.
        rows.append((rule, before, status))
        if status != "applied":
            continue
        if action != "default":
            changed += ",=" + name
            if before is not None:
                replaced += ("unset " if value is None else "set ") + name + ", "
        if value is None:
            # Never set to "": int() of it crashes torch._inductor.config on several versions.
            del environ[name]
        else:
            environ[name] = value
    if changed:
        environ[SAID] = said + changed
    if baseline:
        baseline.tell(rows, say)
    if not present.keys().isdisjoint(plan["pinned"]):
        from rocm_autopatch.startup import overruled

        replaced += overruled.name_overruled(plan, keep, for_this_torch)
    return replaced


def arm(hooks):
    # type: (dict[str, Hook]) -> None
    """Call each hook with its module as soon as that module is executed, or now if it has been.

    A hook is a function or its place, ``"module:function"``, from which it is imported when it is
    called. It must not raise: it runs inside the program's import statement.
    """
    waiting.update(hooks)
    # This module is the finder: an import asks it for find_spec and nothing else. In a new list,
    # because the interpreter keeps the first one, and what it refers to, to its very end: what is
    # alive then is taken apart bit by bit, which costs half a million instructions. Once there are
    # threads, the finder goes into the old list, because another thread may be about to add to it;
    # a thread that walks it then asks one finder twice. Compared by identity, because == of
    # another finder may raise.
    if id(finder) not in map(id, sys.meta_path):
        # Python itself has loaded it.
        threads: Any = sys.modules["_thread"]
        if threads._count() and type(sys.meta_path) is list:
            sys.meta_path.insert(0, finder)
        else:
            sys.meta_path = [finder, *sys.meta_path]
    # This way round, few names are looked up among many, and not many among few.
    if not sys.modules.keys().isdisjoint(hooks):
        from rocm_autopatch.startup import hooks as imports

        imports.catch_up(finder, hooks)


def find_spec(name, path=None, target=None):
    # type: (str, Optional[Sequence[str]], Optional[ModuleType]) -> Optional[ModuleSpec]
    """The spec that the other finders have for a module that waits, None for any other name."""
    if name not in waiting:
        return None
    try:
        # A program may have taken us out of sys.modules. The record is in these two modules.
        for ours in (rocm_autopatch, finder):
            if sys.modules.setdefault(ours.__name__, ours) is not ours:
                raise ImportError("there is another %s" % ours.__name__)
        # In a module of its own, because most processes import no module that waits.
        from rocm_autopatch.startup import hooks

        find = hooks.find_spec
    except BaseException as error:
        # Our files are gone or out of reach, or an audit hook forbids them, or what instruments all
        # modules (beartype_all) fails on them.
        own, why = isinstance(error, KeyboardInterrupt), type(error).__name__
        try:
            # As in rocm_autopatch.start().
            failure: dict[str, Any] = {}
            exec(_read(rocm_autopatch._FAILURE) or rocm_autopatch._IMPORT, failure)
            own, why = failure["judge_error"](error)
        except Exception:
            pass
        if own:
            raise
        try:
            fail("hooks", "torch is not changed: " + why)
        except Exception:
            pass
        waiting.clear()
        return None
    return find(finder, name, path, target)


def __reduce_ex__(protocol):
    # type: (int) -> str
    # copy and pickle call this for each finder on sys.meta_path. They get a name, as for a class.
    return "startup"


def announce(plan, replaced=""):
    # type: (plans.Plan, str) -> None
    """Write what the policy changes, and how to turn it off. Defaults are left out."""
    say(
        "active",
        'policy %s applies (image: %s%s): %s; "rocm-autopatch status" lists all changes, '
        "ROCM_AUTOPATCH=off turns this off"
        % (
            plan["policy"],
            _RECORD["facts"].get("image", ("not named",))[0],
            _RECORD["evidence"] and ", evidence: " + _RECORD["evidence"],
            (replaced + plan["counts"]).rstrip(", "),
        ),
    )


def say(kind, text):
    # type: (str, str) -> None
    """Write one line to stderr, once for each kind in a process tree."""
    environ = os.environ
    # A program may have put a dict of its own there.
    present = getattr(environ, "_data", {})
    if type(sys.stderr).__module__ == "ipykernel.iostream":
        kind += "-notebook"  # The line at the start went to the log of the notebook's server.
    log = environ.get("ROCM_AUTOPATCH_LOG", "") if b"ROCM_AUTOPATCH_LOG" in present else ""
    said = environ.get(SAID, "") if b"ROCM_AUTOPATCH_SAID" in present else ""
    if log == "quiet" or (kind in said.split(",") and log != "debug"):
        return
    if is_command():
        # Our own commands print their own output. What they start is quiet, too.
        return
    environ[SAID] = said + "," + kind if said else kind
    # Only one rank of a job writes the line.
    if log == "debug" or {None, b"", b"0"}.issuperset(map(present.get, RANKS)):
        write(text)


def is_command():
    # type: () -> bool
    """Whether this process is a command of ours."""
    first = str(sys.argv[0]) if getattr(sys, "argv", None) else ""
    # argv[0] is -m until Python has found that module. Python 3.9 has no sys.orig_argv.
    words = _read("/proc/self/cmdline") if first == "-m" else os.fsencode(first)
    return (
        words.endswith((b"/rocm-autopatch", b"/rocm_autopatch/__main__.py"))
        or b"\0-m\0rocm_autopatch\0" in words
    )


def fail(kind, text):
    # type: (str, str) -> None
    """Record an error and write it once. Raises only exceptions of the program itself."""
    try:
        _RECORD["errors"].append(text)
        say(kind, text)
    except BaseException as error:
        from rocm_autopatch import failure

        if failure.programs_own(error):
            raise


def write(text, longest=LONGEST_LINE):
    # type: (str, int) -> None
    """Write a line to stderr, harmless to a terminal, if it can be written at once."""
    if "://" in text or not text.isprintable():
        from rocm_autopatch import failure

        text = failure.printable(failure.without_passwords(text))
    line = "rocm_autopatch: " + text
    if len(line) >= longest:
        # The end says what to do, so it is kept.
        line = line[:150] + "..." + line[154 - longest :]
    put(line.encode("utf-8", "replace") + b"\n")


def put(data):
    # type: (bytes) -> None
    """Write to stderr what can be written without waiting; the rest is dropped.

    The buffer of sys.stderr is bypassed: text in it that can't be flushed would change the exit
    status of the program to 120.
    """
    try:
        if type(sys.stderr).__module__ != "_io":
            # The descriptor of a notebook's stream is that of its server.
            raise OSError("not a file of Python's own")
        number = sys.stderr.fileno()
        if os.fstat(number).st_mode >> 12 == 0o10:
            os.write(number, data)  # a regular file
            return
        signals: Any = sys.modules.get("_signal")
        if signals and signals.getsignal(signals.SIGPIPE) == signals.SIG_IGN:
            # A description of our own, because others share that of stderr, and it may wait.
            own = os.open("/proc/self/fd/%d" % number, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                os.write(own, data)
            finally:
                os.close(own)
            return
    except Exception as error:
        # stderr is not a file, is closed or full, or is a pipe of another user's; or no /proc.
        from rocm_autopatch import failure

        if failure.programs_own(error):
            raise
    else:
        # If Python did not set its signals, writing to a pipe without a reader ends the process.
        from rocm_autopatch import failure
    failure.put(data)
