"""A program that prints what it can see, as a Python literal on stdout.

It runs in the process under test, on every Python from 3.9 on. It loads only modules that are
loaded already or built in. In one of the two runs, ``ROCM_AUTOPATCH`` is off: then ``record`` is
None.

Its arguments, in the order in which it obeys them:

- What happens to our files while it runs: ``delete`` removes them, ``forbid`` lets only root read
  them, ``drop`` gives up the rights of root, ``deny`` denies them by an audit hook, ``purge`` takes
  us out of sys.modules.
- ``torch`` imports the stand-in for torch and its modules that wait; ``twice`` does it again.
- ``stdin`` reads all of stdin; ``report`` asks us for the report.
"""

import os
import sys


def deny(event, arguments):
    if event == "open" and "rocm_autopatch" in str(arguments[0]):
        raise PermissionError("the audit hook denies %r" % (arguments[0],))


def befall(package):
    if "delete" in sys.argv:
        import shutil

        shutil.rmtree(package)
    if "forbid" in sys.argv:
        os.chmod(package, 0o700)
    if "drop" in sys.argv:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    if "deny" in sys.argv:
        sys.addaudithook(deny)
    if "purge" in sys.argv:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
            del sys.modules[name]


def use():
    import torch._dynamo.config
    import torch._dynamo.convert_frame
    import torch._inductor.config
    import torch._logging._internal

    return torch


befall(os.environ.get("TORTURE_PACKAGE", ""))
if "torch" in sys.argv[1:]:
    use()
if "twice" in sys.argv[1:]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]
    use()


def look():
    import _signal
    import _thread

    def directory():
        try:
            return os.getcwd()
        except OSError as error:
            return type(error).__name__

    def descriptors():
        try:
            return sorted(os.listdir("/proc/self/fd"), key=int)
        except OSError:
            return []

    def ours(thing):
        name = getattr(thing, "__module__", None) or getattr(thing, "__name__", "")
        return str(getattr(thing, "__name__", name)).startswith("rocm_autopatch") or str(
            name
        ).startswith("rocm_autopatch")

    handlers = []
    for number in range(1, _signal.NSIG):
        try:
            handler = _signal.getsignal(number)
        except ValueError:
            continue
        handlers.append((number, getattr(handler, "__name__", handler)))
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [])
    modules = sorted(name for name in sys.modules if not name.startswith("rocm_autopatch"))
    import warnings

    umask = os.umask(0o77)
    os.umask(umask)
    seen = {
        "argv": sys.argv[1:],
        "path": sys.path,
        "flags": str(sys.flags),
        "directory": directory(),
        "descriptors": descriptors(),
        "handlers": repr(handlers),
        "mask": sorted(int(number) for number in mask),
        "wakeup": _signal.set_wakeup_fd(-1) if not sys.flags.isolated else -1,
        "timers": _signal.getitimer(_signal.ITIMER_REAL),
        "threads": _thread._count(),
        "umask": umask,
        "recursion": sys.getrecursionlimit(),
        "warnings": repr(warnings.filters),
        "hooks": repr((sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile())),
        "finders": [
            str(getattr(finder, "__name__", type(finder).__name__))
            for finder in sys.meta_path
            if not ours(finder)
        ],
        "path_hooks": len(sys.path_hooks),
        "streams": [
            repr(stream and (stream.encoding, stream.errors, stream.closed))
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "switch": sys.getswitchinterval(),
        "environ": {ascii(name): ascii(value) for name, value in os.environ.items()},
        "modules": modules,
        "stdin": sys.stdin.read() if "stdin" in sys.argv[1:] and sys.stdin else "",
        "torch": sorted(name for name in vars(sys.modules["torch"]) if name[:2] != "__")
        if "torch" in sys.modules
        else None,
        "record": None,
    }
    package = sys.modules.get("rocm_autopatch")
    # If a package can't be read, import makes an empty namespace.
    if hasattr(package, "_RECORD") and os.environ.get("ROCM_AUTOPATCH") != "off":
        # Only here, the torture tests know the form of the record.
        record = package._RECORD
        seen["record"] = {
            "active": record["active"],
            "reason": ascii(record["reason"]),
            "errors": ascii(record["errors"]),
            "applied": {
                ascii(rule[0]): None if rule[2] is None else ascii(rule[2])
                for rule, _, status in record["env"]
                if status == "applied"
            },
        }
        if "report" in sys.argv[1:]:
            report = package.status()
            seen["record"]["report"] = [report["active"], ascii(report["reason"])]
    return seen


text = ascii(look()) + "\n"
if "TORTURE_OUT" in os.environ:
    with open(os.environ["TORTURE_OUT"], "w") as stream:
        stream.write(text)
else:
    sys.stdout.write(text)
