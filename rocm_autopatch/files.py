"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put *data* at *path*, all of it or nothing; what was a link there is replaced, not followed.

    Raises OSError, and then leaves what was there. A pipe or a device stays what it is, and so does
    a link to one: ``/dev/stdout`` is no file that could be replaced.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
