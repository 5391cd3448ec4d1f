"""Ctrl-C while a module of startup is imported, which the argument names."""

import _frozen_importlib as importlib
import os
import signal
import sys
import threading

import rocm_autopatch

signal.alarm(30)
del os.environ["ROCM_AUTOPATCH"]
rocm_autopatch._started = ""
os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
lock = importlib._get_module_lock("rocm_autopatch.failure")


class Finder:
    # Ctrl-C while failure is being imported: nobody releases importlib's lock on it.
    def find_spec(name, path=None, target=None):
        if name == "rocm_autopatch.startup." + sys.argv[1]:
            holder = threading.Thread(target=lock.acquire)
            holder.start()
            holder.join()
            raise KeyboardInterrupt


sys.meta_path.insert(0, Finder)
try:
    rocm_autopatch.start()
    import torch  # noqa: F401
except KeyboardInterrupt:
    given = "TORCHINDUCTOR_MAX_AUTOTUNE" in os.environ
    print("interrupted", "rocm_autopatch.failure" in sys.modules, given)
