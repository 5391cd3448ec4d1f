"""Safe and fast ``torch.compile`` in ROCm containers, without editing the program.

``site`` imports this module in every interpreter, from ``rocm_autopatch.pth`` (3.15 and later:
``rocm_autopatch.start``) or ``sitecustomize_stub/sitecustomize.py``, and calls :func:`start`.

It holds the switch and the gate, which decide whether a policy applies here. If one does,
``startup`` carries it out (docs/design.md, "The price of a start").
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing

    from rocm_autopatch import plan as plans
    from rocm_autopatch.record import shapes

OFF = ("off", "0", "false", "no")
_ON = ("on", "1", "true", "yes", "observe")
_OLDEST_TORCH = (2, 4)
_ASSUME = "ROCM_AUTOPATCH_ASSUME"
_SITE = "/etc/rocm-autopatch"
_BASELINE = "/etc/rocm-autopatch/baseline"
_DEFAULT = "safe"
_HERE = __file__.rpartition("/")[0]
_BAKED = _HERE + "/baked.plan"
_FAILURE = _HERE + "/failure.py"
# Where there is bytecode alone.
_IMPORT = "from rocm_autopatch.failure import *"
# How much is read of a file, in bytes.
_LONGEST = 65536
_started = ""
# What this process did. record/report.py turns it into what status() returns.
_RECORD = {
    "active": False,
    "observe": False,
    "reason": "",
    "facts": {},
    "plan": None,
    "baked": "",
    "evidence": "",
    "caches": None,
    "keep": (),
    "env": [],
    "patches": {},
    "notes": [],
    "errors": [],
}  # type: shapes.StartRecord


def start():
    # type: () -> None
    """Apply the policy to this interpreter; return at once on any later call.

    Raises only what a signal handler of the program raises: KeyboardInterrupt for Ctrl-C.
    """
    global _started
    # A plain venv executes .pth lines twice (site.venv and site.main), and the stub may come third.
    if _started:
        return
    try:
        _started = "on"
        # The dict of bytes beneath os.environ, which takes 8,000 instructions for a name that is
        # not set: it raises KeyError twice.
        if b"ROCM_AUTOPATCH" in os.environ._data:  # type: ignore[attr-defined]
            _started = os.environ["ROCM_AUTOPATCH"].strip().lower() or "on"
        if _started not in OFF:
            _run()
    except BaseException as error:
        # SystemExit is caught too, because out of a .pth line it ends the interpreter.
        _RECORD["active"] = False
        try:
            # Not imported: if Ctrl-C came while it was, importlib may hold a lock for ever.
            failure = {}  # type: dict[str, typing.Any]
            exec(_read(_FAILURE) or _IMPORT, failure)
            own = failure["give_up"](error)
        except Exception:
            own = isinstance(error, KeyboardInterrupt)
        if own:
            raise


# The .pth line calls this, because every module has one, without arguments, that does nothing. If
# this user may not read the package, import makes an empty namespace package, which has no start.
__init_subclass__ = start


def status():
    # type: () -> dict[str, object]
    """Say what rocm_autopatch did in this process.

    Returns the mapping that ``rocm-autopatch status --json`` prints, described in
    ``docs/status.md``: plain ``str``, ``bool``, ``int``, ``list`` and ``dict`` values, built anew
    at each call. Never raises because of a failed patch: those are under ``errors``.
    """
    from rocm_autopatch.record import report

    return report.render_report(_RECORD, _started)


def _run():
    # type: () -> None
    _RECORD["observe"] = _started == "observe"
    if _started not in _ON:
        from rocm_autopatch import startup

        what = "ROCM_AUTOPATCH=%s is not one of on, off, observe; on is used" % _started
        startup.fail("switch", what)
    plan = None
    # os.access first: opening what is not there costs a raised OSError.
    if os.access(_BAKED, os.R_OK):
        from rocm_autopatch import startup

        plan = startup.baked()
    if plan is None:
        plan = _decide()
    if plan is not None:
        if plan["caches"] or b"ROCM_AUTOPATCH_CACHE" in os.environ._data:  # type: ignore[attr-defined]
            from rocm_autopatch.startup import caches

            if not caches.add(plan):
                from rocm_autopatch.startup import cache_place

                cache_place.add(plan)
        # startup made the plan, so it is loaded.
        sys.modules["rocm_autopatch.startup"].carry_out(plan)
    if b"ROCM_AUTOPATCH_REPORT" in os.environ._data:  # type: ignore[attr-defined]
        from rocm_autopatch.compile_report import collect

        collect.prepare_trace()


def _decide():
    # type: () -> typing.Optional[plans.Plan]
    """The plan for this place, None if nothing applies; facts and reason go on the record."""
    environ = os.environ._data  # type: ignore[attr-defined]
    facts = _RECORD["facts"]
    if b"ROCM_AUTOPATCH_ASSUME" in environ:
        from rocm_autopatch.startup import assume

        assume.assume(facts)
    site = os.listdir(_SITE) if os.access(_SITE, os.R_OK | os.X_OK) else []
    if "image" not in facts:
        image = ""
        if b"ROCM_AUTOPATCH_IMAGE" in environ:
            image = os.environ["ROCM_AUTOPATCH_IMAGE"].strip()
        if image:
            facts["image"] = (image, "ROCM_AUTOPATCH_IMAGE")
        elif "image" in site:
            from rocm_autopatch.startup import image_file

            image_file.read(facts)
    if "torch" not in facts or "accelerator" not in facts:
        path = _find_torch()
        if path:
            _read_torch(facts, path, _read(path).decode("utf-8", "replace"))
    if "accelerator" not in facts:
        _RECORD["reason"] = "no torch found: sys.path has no torch/version.py when the hook runs"
        return None
    torch = facts["torch"][0] if "torch" in facts else ""
    if facts["accelerator"][0] != "rocm":
        _RECORD["reason"] = "torch %s is not a ROCm build" % torch
        return None
    # From here on, startup is needed.
    from rocm_autopatch import startup

    if torch and startup.release(torch) < _OLDEST_TORCH:
        _RECORD["reason"] = "torch %s is older than %d.%d" % (torch, *_OLDEST_TORCH)
        startup.fail("torch", "no policy is applied: " + _RECORD["reason"])
        return None
    asked = b"ROCM_AUTOPATCH_POLICY" in environ or b"ROCM_AUTOPATCH_ASSUME" in environ
    if "image" not in facts and not (asked or site or b"ROCM_AUTOPATCH_SITE" in environ):
        built_in: typing.Optional[plans.Plan] = startup.load("%s/plans/%s.plan" % (_HERE, _DEFAULT))
        if built_in is not None:
            _RECORD["reason"] = (
                "no image is named, so the default policy for ROCm applies: %s" % _DEFAULT
            )
            return built_in
    from rocm_autopatch.startup import choose

    return choose.choose(facts, site)


def _find_torch():
    # type: () -> str
    """The torch/version.py of the torch that an import would find, "" if there is none."""
    for directory in sys.path:
        path = (directory or ".") + "/torch/version.py"
        if os.access(path, os.R_OK):
            return path
    from rocm_autopatch import late_site

    return late_site.find_torch()


def _read_torch(facts, path, text):
    # type: (dict[str, tuple[str, str]], str, str) -> None
    """Add the facts that *text* states: the torch/version.py that an import would find."""
    found = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            # "hip: Optional[str] = '7.0.51831'", and without the annotation up to torch 1.13
            text = value.partition("#")[0].strip().strip("'\"")
            found[name.partition(":")[0].strip()] = "" if text == "None" else text
    version = found.get("__version__", "")
    if not version:
        from rocm_autopatch import startup

        startup.fail("torch", "no policy is applied: no __version__ in %s" % path)
        return
    # rocm is there from 2.10 on (pytorch#168097).
    hip, cuda, rocm = found.get("hip", ""), found.get("cuda", ""), found.get("rocm", "")
    accelerator = "rocm" if hip else "cuda" if cuda else "cpu"
    says = (("torch", version), ("accelerator", accelerator), ("hip", hip), ("rocm", rocm))
    for name, value in says:
        if value and name not in facts:
            facts[name] = (value, path)


def _read(path, longest=_LONGEST, modes=0):
    # type: (str, int, int) -> bytes
    """The first *longest* bytes of a regular file, b"" if there is none or it can't be read.

    A file that has a mode bit of *modes* set is not read. Never waits, for example for a pipe.
    """
    if not os.access(path, os.R_OK):
        return b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return b""
    try:
        mode = os.fstat(descriptor).st_mode
        # stat.S_ISREG, without the name of one more module
        return os.read(descriptor, longest) if mode >> 12 == 0o10 and not mode & modes else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
