import importlib.util
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec


class Plain:
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        print("executing", module.__name__, type(self).__name__)
        module.VALUE = module.__name__


class Finder:
    def __init__(self, loader, names):
        self.loader, self.names = loader, names

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            return ModuleSpec(name, self.loader, origin="memory", is_package=False)


def install(loader, *names):
    finder = Finder(loader, names or ("made",))
    sys.meta_path.append(finder)
    return finder


def show(*modules):
    for module in modules:
        spec = module.__spec__
        print(module.__name__, getattr(module, "VALUE", None), spec.name, spec.origin)
        print(type(module.__loader__).__name__, spec.loader is module.__loader__)
