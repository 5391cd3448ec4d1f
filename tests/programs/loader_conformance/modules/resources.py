"""Resources.

hooks: target
"""

import importlib.resources as r
import warnings

warnings.simplefilter("ignore")
from importlib.util import find_spec

reader = find_spec("target").loader.get_resource_reader("target")
print(type(reader).__name__, sorted(reader.contents()), reader.is_resource("data.txt"))
print((r.files("target") / "data.txt").read_text())
print(sorted(file.name for file in r.files("target").iterdir()))
with r.as_file(r.files("target") / "data.txt") as path:
    print(path)
for name in ("read_text", "is_resource", "read_binary"):
    if hasattr(r, name):
        print(getattr(r, name)("target", "data.txt"))
import pkgutil

print(pkgutil.get_data("target", "data.txt"))
