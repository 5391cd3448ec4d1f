"""Resources and source.

hooks: archived
"""

import sys

sys.path.insert(0, "archive.zip")
import importlib.resources as r
import inspect
import pkgutil

import archived
import package

print((r.files("package") / "data.txt").read_text(), pkgutil.get_data("package", "data.txt"))
print(inspect.getsource(archived), list(pkgutil.iter_modules(["archive.zip"])))
print(repr(archived.__loader__), archived.__spec__)
