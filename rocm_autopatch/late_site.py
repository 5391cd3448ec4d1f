"""The site directories that ``site`` adds only after our .pth file.

Before Python 3.15, a .pth line sees only the directories that were added before it. In a user's
site-packages, and in a venv made with --system-site-packages, these lack the system's directories.
In /usr/local of Debian, they lack the packages of Debian itself.
"""

import os
import sys

from rocm_autopatch import _read


def find_torch() -> str:
    """The torch/version.py in such a directory, "" if there is none."""
    for directory in directories():
        path = directory + "/torch/version.py"
        if os.access(path, os.R_OK):
            return path
    return ""


def directories() -> "list[str]":
    """The site directories of this interpreter that are not on sys.path yet."""
    site = sys.modules.get("site")
    if site is None:
        return []
    prefixes = [sys.prefix, sys.exec_prefix]
    if sys.prefix != sys.base_prefix:
        config = _read(sys.prefix + "/pyvenv.cfg").decode("utf-8", "replace").lower()
        if "include-system-site-packages=true" not in config.replace(" ", ""):
            return []
        prefixes = [sys.base_prefix, sys.base_exec_prefix]
    return [path for path in site.getsitepackages(prefixes) if path not in sys.path]
