"""Paths that change.

hooks: target target.inner target.extra
"""

import sys

import target

try:
    import target.extra
except ImportError as error:
    print(error, error.name, error.path)
target.__path__.append("more")
import target.extra

print(target.extra.VALUE, target.__spec__.submodule_search_locations)
del target.extra
target.__path__ = ()
try:
    from target import inner
except ImportError as error:
    print(error)
del target.__path__
try:
    import target.inner
except ImportError as error:
    print(error)
import pkgutil

target.__path__ = pkgutil.extend_path([target.__file__.rpartition("/")[0]], "target")
from target import inner

print(inner.VALUE, target.inner is inner, target.__path__)
