"""Source.

hooks: alone
"""

import inspect
import linecache
from importlib.util import find_spec

for name in ("alone", "target"):
    loader = find_spec(name).loader
    path = loader.get_filename(name)
    code = loader.get_code(name)
    print(path, loader.is_package(name), loader.get_data(path), loader.get_source(name))
    print(code, code.co_filename, loader.path_stats(path)["size"], loader.source_to_code(b"", "x"))
    names = {"__name__": name, "__loader__": loader}
    print(linecache.lazycache("gone.py", names), linecache.getlines("gone.py", names))
    linecache.clearcache()
    try:
        loader.get_code("other")
    except ImportError as error:
        print(error)
import alone

print(inspect.getsource(alone), inspect.getsource(alone.function), inspect.getdoc(alone))
print(inspect.getsourcefile(alone), inspect.getmodule(alone.function), inspect.getfile(alone))
print(inspect.getcomments(alone), linecache.getline(alone.__file__, 2, vars(alone)))
print(inspect.getmodulename(alone.__file__), alone.__cached__, alone.__doc__)
