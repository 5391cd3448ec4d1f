"""One loader for all.

hooks: archived archived2
"""

import sys
from importlib.util import find_spec

from memory import show

sys.path.insert(0, "archive.zip")
specs = [find_spec(name) for _ in range(500) for name in ("archived", "archived2", "other")]
loader = specs[0].loader
print({spec.loader is loader for spec in specs}, sorted(getattr(loader, "__dict__", ())))
print(specs[0] == specs[3], specs[0] == specs[1], loader.get_source("archived2"))
import archived2
import other

show(other, archived2)
print(sorted(getattr(loader, "__dict__", ())))
import archived
import package.archived

show(package.archived, archived)
print(sorted(getattr(loader, "__dict__", ())))
