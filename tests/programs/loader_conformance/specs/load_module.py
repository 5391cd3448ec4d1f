"""Load_module.

hooks: alone?
"""

import warnings

warnings.simplefilter("ignore")
from importlib.util import find_spec

loader = find_spec("alone").loader
module = loader.load_module("alone")
print(module.VALUE, module.__spec__.loader is loader, vars(loader))
print(loader.load_module("alone") is module)
