"""What is in a loader.

hooks: alone
"""

import copy
from importlib.util import find_spec

loader = find_spec("alone").loader
print(vars(loader), loader.__dict__, dict(vars(loader)), {**vars(loader)}, list(vars(loader)))
print(len(vars(loader)), "exec_module" in vars(loader), vars(loader).get("exec_module"))
print(sorted(vars(loader).items()), copy.copy(vars(loader)), vars(loader) | {})
print(sorted(dir(loader)), vars(loader) == {"name": "alone", "path": loader.path})
print(list(vars(loader).values()), isinstance(vars(loader), dict))
print({}.__class__(**vars(loader)), "%(name)s" % vars(loader))
loader.mine = 1
print(vars(loader)["mine"], loader.mine)
del loader.mine
print(list(vars(loader)))
import alone

print(vars(alone.__loader__), type(vars(alone.__loader__)))
