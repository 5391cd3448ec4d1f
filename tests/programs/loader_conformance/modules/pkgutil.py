"""Pkgutil.

hooks: target target.inner alone cycle.one? cycle.two?
"""

import pkgutil
import sys
import warnings

warnings.simplefilter("ignore")
print(list(pkgutil.iter_modules(["."])))
print([m[1:] for m in pkgutil.walk_packages(["target"], "target.")])
print([m[1:] for m in pkgutil.walk_packages(["."], onerror=print) if "." in m[1]])
print(sorted(m[1] for m in pkgutil.iter_modules() if m[1] in ("alone", "target", "spread")))
print(pkgutil.resolve_name("alone:function").__name__, pkgutil.resolve_name("target.inner.VALUE"))
for name in ("find_loader", "get_loader"):
    if hasattr(pkgutil, name):
        print(getattr(pkgutil, name)("broken"), vars(getattr(pkgutil, name)("broken")))
print(sum(hasattr(finder, "iter_modules") for finder in pkgutil.iter_importers("alone")))
