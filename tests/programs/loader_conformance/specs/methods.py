"""A loader's methods."""

import inspect
from importlib.util import find_spec

loader = find_spec("alone").loader
for name in dir(loader):
    if not name.startswith("__"):
        value = getattr(loader, name)
        print(name, type(value).__name__, getattr(value, "__self__", loader) is loader)
        print(getattr(value, "__qualname__", ""), getattr(value, "__module__", ""))
print(inspect.signature(loader.exec_module), loader.exec_module == loader.exec_module)
