"""Runpy.

hooks: target
"""

import runpy
import sys

print(sorted(runpy.run_module("alone")), runpy.run_module("alone", alter_sys=True)["__spec__"])
runpy.run_module("target")
runpy.run_module("target", run_name="__main__", alter_sys=True)
runpy.run_path("target")
print(runpy.run_path("alone.py")["__loader__"], sorted(runpy.run_path("alone.py")))
for name in ("absent", "broken", "spread"):
    try:
        runpy.run_module(name)
    except Exception as error:
        print(type(error), error)
print("alone" in sys.modules)
