"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write *data* to *path*, all of it or nothing. A link at *path* is replaced, not followed.

    If it raises OSError, what was there is unchanged. It never replaces a pipe, a device or a link
    to one: ``/dev/stdout`` is not a file that could be replaced.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
