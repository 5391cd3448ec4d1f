# mypy: ignore-errors
"""Says what a frozen program has of our package and of the image's variables."""

import importlib
import os
import sys

print("frozen", sys.frozen, "rocm_autopatch" in sys.modules)
print("variable", os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE"))
try:
    ours = importlib.import_module("rocm_autopatch")
except ImportError as error:
    print(error)
else:
    ours.start()
    print("active", ours.status()["active"], ours.status()["errors"])
print("variable", os.environ.get("TORCHINDUCTOR_MAX_AUTOTUNE"))
