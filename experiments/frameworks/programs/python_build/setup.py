# mypy: ignore-errors
"""Notes what the isolated environment of the build has of the one around it."""

import importlib.util
import os
import sys

from setuptools import setup

with open(os.path.join(os.environ["HOME"], "seen.txt"), "a") as seen:
    for name in ("rocm_autopatch", "torch", "frameworks_inside"):
        print(name, importlib.util.find_spec(name), name in sys.modules, file=seen)
    print("site-packages", sorted(name for name in sys.path if "runs/" in name), file=seen)
setup()
