"""Safe and fast ``torch.compile`` in ROCm containers, without editing the program.

``site`` imports this module in every interpreter, from ``rocm_autopatch.pth`` (3.15 and later:
``rocm_autopatch.start``) or ``sitecustomize_stub/sitecustomize.py``, and calls :func:`start`.
"""

import os
import sys

OFF = ("off", "0", "false", "no")
_started = ""


def start() -> None:
    """Apply the policy to this interpreter; return at once on any later call. Never raises."""
    global _started
    # A plain venv executes .pth lines twice (site.venv and site.main), and the stub may come third.
    if _started:
        return
    try:
        _started = os.environ.get("ROCM_AUTOPATCH", "").strip().lower() or "on"
        if _started in OFF:
            return
        from rocm_autopatch import _start

        _start.run(_started)
    except BaseException as error:
        # _start.run() doesn't raise: a file of ours is broken. SystemExit and KeyboardInterrupt
        # are caught too, because out of a .pth line they end the interpreter.
        try:
            line = "rocm_autopatch: nothing was done: %r\n" % error
            os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
        except Exception:
            pass  # stderr is closed


def report() -> "dict[str, object]":
    """Say what rocm_autopatch did in this process.

    Returns the mapping that ``rocm-autopatch status --json`` prints, described in
    ``docs/status.md``: plain ``str``, ``bool``, ``int``, ``list`` and ``dict`` values, built anew
    at each call. Never raises because of a failed patch: those are under ``errors``.
    """
    from rocm_autopatch import _start, record

    return record.render(_start.RECORD, _started)
