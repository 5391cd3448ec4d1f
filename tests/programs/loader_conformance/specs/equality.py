"""Equality.

hooks: alone target
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, spec_from_file_location

for name in ("alone", "target"):
    one, two, plain = find_spec(name), find_spec(name), PathFinder.find_spec(name)
    print(one == two, two == one, one != two, one == plain, plain == one, plain != one)
    print(one.loader == two.loader, one.loader == plain.loader, plain.loader == one.loader)
    print(hash(one.loader) == hash(plain.loader), one == spec_from_file_location(name, one.origin))
    module = __import__(name)
    print(module.__spec__ == one, one == module.__spec__, module.__spec__ == plain)
    print(module.__loader__ == one.loader, one.loader == module.__loader__)
