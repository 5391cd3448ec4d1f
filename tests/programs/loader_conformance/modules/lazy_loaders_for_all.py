"""Lazy loaders for all.

hooks: target? target.inner? alone?
says: on 3.13, LazyLoader can't load what is not loaded yet, of the program or of ours
"""

import sys
import types
from importlib.machinery import FileFinder, SourceFileLoader
from importlib.util import LazyLoader

hook = FileFinder.path_hook((LazyLoader.factory(SourceFileLoader), [".py"]))
sys.path_hooks.insert(0, hook)
sys.path_importer_cache.clear()
import alone
import target

print("lazy", type(target).__name__, type(alone).__name__)
print(target.VALUE, type(target) is types.ModuleType)
import target.inner

print(type(target.inner).__name__, target.inner.VALUE)
target.VALUE = 5
print(target.VALUE, vars(target.__loader__))
alone.VALUE = 6
print(alone.VALUE, type(alone).__name__)
