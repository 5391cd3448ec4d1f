"""Commands import nothing from the working directory, because anybody may own a file there.

``python -m`` and ``python -c`` put that directory first on sys.path. Empty and relative entries of
PYTHONPATH name it too: ``:/x`` has an empty one. Python 3.11 and later have ``-P`` against the
first. This module is imported before all others, so it imports only what every interpreter has.

If an interpreter has to run code of ours, it runs this file as a script, with the code as its
argument: the first entry of sys.path is then the script's directory, not the working directory.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def leave_out_first() -> None:
    """Take the directory off sys.path that the interpreter put there for a script or ``-m``."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]


def leave_out_relative() -> None:
    """Remove from sys.path what empty and relative entries of PYTHONPATH have added."""
    import os

    entries = (
        os.environ.get("PYTHONPATH", "").split(":") if not sys.flags.ignore_environment else []
    )
    # site has made them absolute, so an entry that was given as absolute is compared and kept.
    absolute = {os.path.normpath(entry) for entry in entries if os.path.isabs(entry)}
    try:
        relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)}
    except OSError:
        # The working directory is gone, and site could make nothing absolute.
        relative = set()
    sys.path[:] = [
        entry
        for entry in sys.path
        if os.path.isabs(entry) and os.path.normpath(entry) not in relative - absolute
    ]


def absolute(environ: "Mapping[str, str]") -> "dict[str, str]":
    """An environment whose PYTHONPATH has no empty and no relative entries."""
    kept = dict(environ)
    path = kept.pop("PYTHONPATH", "")
    entries = [entry for entry in path.split(":") if entry.startswith("/")]
    if entries:
        kept["PYTHONPATH"] = ":".join(entries)
    return kept


def left_out(environ: "Mapping[str, str]") -> "list[str]":
    """The entries of PYTHONPATH that absolute() leaves out, "." for an empty one."""
    path = environ.get("PYTHONPATH", "")
    return [entry or "." for entry in path.split(":") if path and not entry.startswith("/")]


if __name__ == "__main__":
    leave_out_first()
    # Its frames have the name of this file, so they are not taken for torch's or a program's.
    exec(compile(sys.argv.pop(1), __file__, "exec", dont_inherit=True))
