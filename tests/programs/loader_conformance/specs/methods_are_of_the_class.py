"""A loader's methods are its class's."""

from importlib.util import find_spec

loader = find_spec("alone").loader
print(loader.exec_module.__func__ is type(loader).exec_module)
print(loader.exec_module == type(loader).exec_module.__get__(loader))
