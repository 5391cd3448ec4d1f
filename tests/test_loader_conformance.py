"""What loaders and finders promise, compared with the import system without us.

Each program runs twice, without hooks and with hooks armed before its first line. It must print the
same to stdout and stderr, and end with the same status. The hooks report to a file of their own.
The hook of each name in ``hooks`` is called once; with a question mark, it may be called.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Interpreter

# The modules that have hooks in every program, whether it imports them or not.
NAMES = (
    "target target.inner target.extra alone broken syntax missing stops interrupted looks warns "
    "spread spread.part made made2 made3 archived archived2 archived3 compiled _lsprof __hello__ "
    "xxsubtype absent replaced removed cycle.one cycle.two"
)

NO_VALUE = ("_", "spread ", "xxsubtype ")

ARM = """
import os, sys
from rocm_autopatch import startup
def hook(module, hooks=%r):
    with open(hooks, "a") as stream:
        print(module.__name__, hasattr(module, "VALUE"), file=stream)
startup.arm(dict.fromkeys(%r.split(), hook))
"""

FILES = {
    "target/__init__.py": """
print("executing", __name__, type(__loader__).__name__, sorted(vars(__loader__)))
print(__spec__.loader is __loader__, __spec__.name, __spec__.origin == __file__)
VALUE = 1
""",
    "target/inner.py": "VALUE = 2\n",
    "target/__main__.py": "print('main', __spec__.name, type(__loader__).__name__)\n",
    "target/data.txt": "data\n",
    "more/extra.py": "VALUE = 3\n",
    "alone.py": '"""Alone."""\nVALUE = 4\n\n\ndef function():\n    return VALUE  # a comment\n',
    "broken.py": """
import os
def fail():
    raise RuntimeError('half way')
if not os.path.exists('mended'):
    fail()
VALUE = 5
""",
    "syntax.py": "VALUE = = 6\n",
    "missing.py": "VALUE = 7\nimport quite_absent\n",
    "stops.py": "VALUE = 8\nraise SystemExit(3)\n",
    "interrupted.py": "VALUE = 9\nraise KeyboardInterrupt\n",
    "nested.py": "def work():\n    import broken\n\nwork()\n",
    "warns.py": """
import warnings
for level in range(1, 5):
    warnings.warn("level %d" % level, stacklevel=level)
VALUE = 10
""",
    # It prints importlib's own frames as one line, however many there are.
    "looks.py": """
import itertools, sys
frame, seen = sys._getframe(), []
while frame:
    name = frame.f_globals.get("__name__")
    inside = "importlib" in frame.f_code.co_filename
    seen.append((inside and "importlib", inside or frame.f_code.co_filename,
                 name.replace("_frozen_importlib_external", "_frozen_importlib")
                     .replace("importlib._bootstrap_external", "_frozen_importlib")
                     .replace("importlib._bootstrap", "_frozen_importlib")))
    frame = frame.f_back
print([one for one, _ in itertools.groupby(seen)])
VALUE = 11
""",
    "spread/part.py": "VALUE = 12\n",
    "elsewhere/spread/other.py": "VALUE = 13\n",
    "replaced.py": """
import sys
class Other:
    VALUE = 14
    __name__ = "replaced"
VALUE = 15
sys.modules[__name__] = Other()
""",
    "removed.py": "import sys\nVALUE = 16\ndel sys.modules[__name__]\n",
    "cycle/__init__.py": "",
    "cycle/one.py": "from cycle import two\nVALUE = two.VALUE + 1\n",
    "cycle/two.py": "import cycle.one\nVALUE = hasattr(cycle, 'one')\n",
    # Loaders and finders for the programs.
    "memory.py": """
import importlib.util, sys
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
""",
}


@dataclass(frozen=True)
class Program:
    code: str
    hooks: str = ""
    names: str = NAMES
    # Whether we may write a line to stderr, because something keeps us from our work.
    says: bool = False


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    (tmp_path / "site").mkdir()
    return tmp_path


def same(
    python: Interpreter, directory: Path, program: Program, *arguments: str
) -> tuple[str, list[str]]:
    """The stdout of *program*, which hooks must not change, and the hooks that were called."""
    (directory / "program.py").write_text(program.code)
    hooks = directory / "hooks.txt"
    outputs = []
    for arm in ("", ARM % (str(hooks), program.names)):
        hooks.write_text("")
        (directory / "mended").unlink(missing_ok=True)
        (directory / "site" / "sitecustomize.py").write_text(arm)
        done = python.run(
            *(arguments or ("program.py",)),
            env={"ROCM_AUTOPATCH": "off", "PYTHONPATH": "site", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=directory,
            check=False,
            timeout=60,
        )
        errors = done.stderr
        if program.says and arm:
            errors = re.sub(r"(?m)^rocm_autopatch: .*\n", "", errors)
        out, errors = (re.sub(r"0x[0-9a-f]+", "0x", text) for text in (done.stdout, errors))
        outputs.append((out, errors, done.returncode))
    assert outputs[1] == outputs[0]
    called = hooks.read_text().splitlines()
    # Nothing is executed in a namespace package, so its hook may be called or not.
    wanted = {name.rstrip("?") for name in f"{program.hooks} spread".split()}
    least = {name for name in program.hooks.split() if not name.endswith("?")}
    ran = [line.split()[0] for line in called]
    assert len(ran) == len(set(ran))
    assert least <= set(ran) <= wanted
    # A module that is not source has no VALUE. Every other module has one when its hook is called.
    assert not [line for line in called if line.endswith("False") and not line.startswith(NO_VALUE)]
    return outputs[0][0], ran


SPECS = {
    "attributes": Program(
        """
from importlib.util import find_spec
for name in ("alone", "target", "target.inner", "spread", "spread.part", "json", "sys"):
    spec = find_spec(name)
    print(repr(spec), list(vars(spec)), spec.parent, spec.cached, spec.has_location)
    print(spec.submodule_search_locations, spec.loader_state, type(spec))
""",
        "target",
    ),
    "equality": Program(
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
""",
        "alone target",
    ),
    "what is in a loader": Program(
        """
import copy
from importlib.util import find_spec
loader = find_spec("alone").loader
print(vars(loader), loader.__dict__, dict(vars(loader)), {**vars(loader)}, list(vars(loader)))
print(len(vars(loader)), "exec_module" in vars(loader), vars(loader).get("exec_module"))
print(sorted(vars(loader).items()), copy.copy(vars(loader)), vars(loader) | {})
print(sorted(dir(loader)), vars(loader) == {"name": "alone", "path": loader.path})
print([value for value in vars(loader).values()], isinstance(vars(loader), dict))
print({}.__class__(**vars(loader)), "%(name)s" % vars(loader))
loader.mine = 1
print(vars(loader)["mine"], loader.mine)
del loader.mine
print(list(vars(loader)))
import alone
print(vars(alone.__loader__), type(vars(alone.__loader__)))
""",
        "alone",
    ),
    "its dict is a dict": Program(
        """
from importlib.util import find_spec
import json, marshal, pprint
loader = find_spec("alone").loader
print(type(vars(loader)), json.dumps(vars(loader)), len(marshal.dumps(vars(loader))) > 9)
pprint.pprint(vars(loader))
"""
    ),
    "a loader's methods": Program(
        """
import inspect
from importlib.util import find_spec
loader = find_spec("alone").loader
for name in dir(loader):
    if not name.startswith("__"):
        value = getattr(loader, name)
        print(name, type(value).__name__, getattr(value, "__self__", loader) is loader)
        print(getattr(value, "__qualname__", ""), getattr(value, "__module__", ""))
print(inspect.signature(loader.exec_module), loader.exec_module == loader.exec_module)
"""
    ),
    "a loader's methods are its class's": Program(
        """
from importlib.util import find_spec
loader = find_spec("alone").loader
print(loader.exec_module.__func__ is type(loader).exec_module)
print(loader.exec_module == type(loader).exec_module.__get__(loader))
"""
    ),
    "a method of the program's own": Program(
        """
from importlib.util import find_spec, module_from_spec
spec = find_spec("alone")
execute = type(spec.loader).exec_module
def mine(module):
    print("mine")
    execute(spec.loader, module)
spec.loader.exec_module = mine
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(module.VALUE, spec.loader.exec_module is mine, "exec_module" in vars(spec.loader))
del spec.loader.exec_module
print("exec_module" in vars(spec.loader))
""",
        "alone?",
    ),
    "copies": Program(
        """
import copy, pickle
from importlib.util import find_spec, module_from_spec
spec = find_spec("alone")
for thing in (spec, spec.loader, find_spec("target"), [spec, spec.loader], vars(spec.loader)):
    made = [copy.copy(thing), copy.deepcopy(thing)]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(thing, protocol)
        print(b"rocm" in data, b"exec_module" in data)
        made.append(pickle.loads(data))
    for one in made:
        print(one == thing, thing == one, type(one), sorted(getattr(one, "__dict__", "")))
for one in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
    module = module_from_spec(one)
    one.loader.exec_module(module)
    print(module.VALUE, vars(one.loader), vars(spec.loader))
""",
        "alone?",
    ),
    "pickles elsewhere": Program(
        """
import pickle, subprocess, sys
from importlib.util import find_spec
spec = find_spec("alone")
code = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
for thing in ((spec, spec.loader), find_spec("target").loader, vars(spec.loader)):
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], input=pickle.dumps(thing),
                          stdout=subprocess.PIPE)
    print(done.returncode, done.stdout.decode())
"""
    ),
    "found and never imported, and then imported": Program(
        """
from importlib.util import find_spec, module_from_spec
specs = [find_spec("alone") for _ in range(20)]
module = module_from_spec(specs[3])
specs[3].loader.exec_module(module)
import alone
print(module.VALUE, alone.VALUE, module is alone, {str(vars(spec.loader)) for spec in specs})
again = module_from_spec(specs[4])
specs[4].loader.exec_module(again)
specs[4].loader.exec_module(module)
print(again.VALUE, vars(specs[4].loader))
""",
        "alone",
    ),
    "executed under another name": Program(
        """
from importlib.util import find_spec, module_from_spec, spec_from_file_location, spec_from_loader
spec = find_spec("alone")
for other in (spec_from_file_location("another", spec.origin, loader=spec.loader),
              spec_from_loader("another", spec.loader, origin="here"),
              spec_from_file_location("another", spec.origin)):
    module = module_from_spec(other)
    try:
        other.loader.exec_module(module)
    except ImportError as error:
        print(error)
    print(module.__name__, getattr(module, "VALUE", None), vars(spec.loader))
import types
for name in ("bare", "alone"):
    module = types.ModuleType(name)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(type(error), error)
    print(sorted(vars(module)))
""",
        "alone?",
    ),
    "load_module": Program(
        """
import warnings
warnings.simplefilter("ignore")
from importlib.util import find_spec
loader = find_spec("alone").loader
module = loader.load_module("alone")
print(module.VALUE, module.__spec__.loader is loader, vars(loader))
print(loader.load_module("alone") is module)
""",
        "alone?",
    ),
    "a spec that the program changes": Program(
        """
import sys
from memory import *
class Changes:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.origin, spec.loader_state = "elsewhere", {"mine": 1}
            return spec
import importlib.machinery
sys.meta_path.insert(0, Changes)
import alone, target
print(alone.__spec__, alone.__spec__.loader_state, target.__spec__.origin)
""",
        # A finder in front of ours hides the import from it.
        "alone? target?",
    ),
}

MODULES = {
    "resources": Program(
        """
import importlib.resources as r, warnings
warnings.simplefilter("ignore")
from importlib.util import find_spec
reader = find_spec("target").loader.get_resource_reader("target")
print(type(reader).__name__, sorted(reader.contents()), reader.is_resource("data.txt"))
print((r.files("target") / "data.txt").read_text())
print(sorted(file.name for file in r.files("target").iterdir()))
with r.as_file(r.files("target") / "data.txt") as path:
    print(path)
for name in ("read_text", "is_resource", "read_binary"):
    if hasattr(r, name):
        print(getattr(r, name)("target", "data.txt"))
import pkgutil
print(pkgutil.get_data("target", "data.txt"))
""",
        "target",
    ),
    "source": Program(
        """
import inspect, linecache
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
""",
        "alone",
    ),
    "runpy": Program(
        """
import runpy, sys
print(sorted(runpy.run_module("alone")), runpy.run_module("alone", alter_sys=True)["__spec__"])
runpy.run_module("target")
runpy.run_module("target", run_name="__main__", alter_sys=True)
runpy.run_path("target")
print(runpy.run_path("alone.py")["__loader__"], sorted(runpy.run_path("alone.py")))
for name in ("absent", "broken", "spread"):
    try:
        runpy.run_module(name)
    except Exception as error:
        print(type(error), error)
print("alone" in sys.modules)
""",
        "target",
    ),
    "reload": Program(
        """
import importlib, sys, types
import target.inner
target.VALUE = 0
print(importlib.reload(target) is target, target.VALUE, target.inner.VALUE)
print(importlib.reload(target.inner).VALUE, target.__spec__, vars(target.__loader__))
# A module that the program itself has put there.
sys.modules["alone"] = module = types.ModuleType("alone")
print(importlib.reload(module) is module, module.VALUE, module.__spec__)
try:
    import broken
except RuntimeError:
    sys.modules["broken"] = module = types.ModuleType("broken")
    try:
        importlib.reload(module)
    except RuntimeError as error:
        print(error, "broken" in sys.modules)
    open("mended", "w").close()
    print(importlib.reload(module).VALUE)
try:
    importlib.reload(types.ModuleType("absent"))
except ImportError as error:
    print(error)
""",
        "target target.inner alone? broken?",
    ),
    "imported again": Program(
        """
import sys, target, target.inner
for _ in range(3):
    before = sys.modules.pop("target"), sys.modules.pop("target.inner")
    import target.inner
    print(target is before[0], target.inner.VALUE, vars(target.__loader__))
""",
        "target target.inner",
    ),
    "namespace packages": Program(
        """
import importlib, sys
from importlib.util import find_spec
print(find_spec("spread"), find_spec("spread").loader)
import spread
print(spread, spread.__path__, list(spread.__path__), spread.__spec__, type(spread.__loader__))
print(getattr(spread, "__file__", None), hasattr(spread.__loader__, "exec_module"))
import spread.part
print(spread.part.VALUE, spread.part.__spec__)
try:
    import spread.other
except ImportError as error:
    print(error)
sys.path.append("elsewhere")
import spread.other
print(spread.other.VALUE, len(spread.__path__))
importlib.reload(spread)
print(spread.part.VALUE, sorted(name for name in dir(spread) if name[0] != "_"))
""",
        "spread.part",
    ),
    "paths that change": Program(
        """
import sys, target
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
""",
        "target target.inner target.extra",
    ),
    "lazy loader": Program(
        """
import sys, types
from importlib.util import LazyLoader, find_spec, module_from_spec
for name in ("target", "alone"):
    spec = find_spec(name)
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    print("lazy", type(module).__name__, object.__getattribute__(module, "__spec__").loader)
    print(module.VALUE, type(module) is types.ModuleType, vars(module.__loader__))
    print(__import__(name) is module)
""",
        "target? alone?",
    ),
    "lazy loaders for all": Program(
        """
import sys, types
from importlib.machinery import FileFinder, SourceFileLoader
from importlib.util import LazyLoader
hook = FileFinder.path_hook((LazyLoader.factory(SourceFileLoader), [".py"]))
sys.path_hooks.insert(0, hook)
sys.path_importer_cache.clear()
import target, alone
print("lazy", type(target).__name__, type(alone).__name__)
print(target.VALUE, type(target) is types.ModuleType)
import target.inner
print(type(target.inner).__name__, target.inner.VALUE)
target.VALUE = 5
print(target.VALUE, vars(target.__loader__))
alone.VALUE = 6
print(alone.VALUE, type(alone).__name__)
""",
        "target? target.inner? alone?",
        # On 3.13, LazyLoader can't load what is not loaded yet, of the program or of ours.
        says=True,
    ),
    "pkgutil": Program(
        """
import pkgutil, sys, warnings
warnings.simplefilter("ignore")
print([m for m in pkgutil.iter_modules(["."])])
print([m[1:] for m in pkgutil.walk_packages(["target"], "target.")])
print([m[1:] for m in pkgutil.walk_packages(["."], onerror=print) if "." in m[1]])
print(sorted(m[1] for m in pkgutil.iter_modules() if m[1] in ("alone", "target", "spread")))
print(pkgutil.resolve_name("alone:function").__name__, pkgutil.resolve_name("target.inner.VALUE"))
for name in ("find_loader", "get_loader"):
    if hasattr(pkgutil, name):
        print(getattr(pkgutil, name)("broken"), vars(getattr(pkgutil, name)("broken")))
print(sum(hasattr(finder, "iter_modules") for finder in pkgutil.iter_importers("alone")))
""",
        "target target.inner alone cycle.one? cycle.two?",
    ),
    "importlib's other doors": Program(
        """
import importlib, importlib.metadata, importlib.util, sys
importlib.invalidate_caches()
print(importlib.import_module("target").VALUE, importlib.import_module(".inner", "target").VALUE)
print(importlib.util.find_spec(".inner", "target") is target.inner.__spec__ if "target" in
      globals() else importlib.util.find_spec(".inner", "target"))
print(len([d for d in importlib.metadata.distributions() if d.metadata["Name"] == "absent"]))
print(__import__("target.inner"), __import__("target.inner", fromlist=["VALUE"]))
print(importlib.__import__("alone").VALUE, sys.modules["alone"].__spec__)
from target import *
from target import inner as i, __path__ as p
print(VALUE, i.VALUE, p)
sys.modules["made"] = None
try:
    import made
except ImportError as error:
    print(error)
""",
        "target target.inner alone",
    ),
    "modules that replace and remove themselves": Program(
        """
import replaced
print(type(replaced).__name__, replaced.VALUE)
try:
    import removed
    print(removed.VALUE)
except Exception as error:
    print(type(error), error)
import cycle.one
print(cycle.one.VALUE, cycle.two.VALUE)
""",
        # A module that is no longer in sys.modules is not patched.
        "replaced removed? cycle.one cycle.two",
    ),
    "built in, frozen, in C": Program(
        """
import sys
from importlib.util import find_spec
if find_spec("xxsubtype"):
    import xxsubtype
    print(xxsubtype.__spec__, xxsubtype.__loader__, "exec_module" in vars(xxsubtype.__loader__))
import __hello__
print(__hello__.__spec__, __hello__.__loader__)
spec, other = find_spec("_lsprof"), find_spec("_lsprof")
print(spec == other, vars(spec.loader), spec)
import _lsprof
print(_lsprof.__spec__ == spec, vars(_lsprof.__loader__), type(_lsprof.__loader__).__name__)
import cProfile
cProfile.Profile().runcall(len, "")
""",
        "_lsprof __hello__? xxsubtype?",
    ),
    "no source": Program(
        """
from importlib.util import find_spec
spec = find_spec("compiled")
print(spec == find_spec("compiled"), spec, vars(spec.loader))
print(spec.loader.get_source("compiled"), spec.loader.get_code("compiled"))
import compiled
print(compiled.VALUE, compiled.__file__, vars(compiled.__loader__))
""",
        "compiled",
    ),
}

FAILURES = {
    name: Program(code)
    for name, code in {
        "raises": "import broken",
        "raises further in": "import nested",
        "raises in a function": "def f():\n    from broken import VALUE\nf()\n",
        "does not parse": "import syntax",
        "imports what is absent": "import missing",
        "stops": "import stops",
        "is interrupted": "import interrupted",
        "absent": "import absent",
        "absent submodule": "import target.absent",
        "absent name": "from alone import absent",
        "no package": "import alone.absent",
        "in exec": "exec('import broken')",
        # Only an import statement removes importlib's frames from a traceback. Here they are
        # shown, and their number does not matter.
        "by importlib": """
import importlib, traceback
for _ in range(2):
    try:
        importlib.import_module("broken")
    except RuntimeError as error:
        for frame in traceback.extract_tb(error.__traceback__):
            if "<frozen importlib" not in frame.filename:
                print(frame, frame.line)
""",
        "chained": "try:\n    import broken\nexcept RuntimeError as e:\n    raise OSError from e\n",
        "printed": """
import traceback
for name in ("broken", "nested", "syntax", "missing", "stops", "interrupted", "absent"):
    try:
        __import__(name)
    except BaseException as error:
        traceback.print_exc()
        print([frame.name for frame in traceback.extract_tb(error.__traceback__)], error.args)
        print(getattr(error, "name", None), getattr(error, "path", None))
""",
        "in a thread": """
import threading
thread = threading.Thread(target=__import__, args=("broken",))
thread.start()
thread.join()
""",
    }.items()
}
FAILURES["absent submodule"] = Program("import target.absent", "target")
FAILURES["absent name"] = Program("from alone import absent", "alone")
FAILURES["no package"] = Program("import alone.absent", "alone")
FAILURES["and then mended"] = Program(
    """
import traceback
for attempt in range(3):
    try:
        import broken
    except RuntimeError:
        traceback.print_exc()
    if attempt == 1:
        open("mended", "w").close()
print(broken.VALUE, vars(broken.__loader__))
""",
    "broken",
)
FAILURES["warnings"] = Program("def f():\n    import warns\nf()\n", "warns")
FAILURES["frames"] = Program("def f():\n    import looks\nf()\n", "looks")
FAILURES["an ImportError of another finder"] = Program(
    """
import sys
class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            raise ImportError("refused: " + name, name=name)
sys.meta_path.insert(len(sys.meta_path) - 1, Refuses)
import traceback
try:
    import target
except ImportError as error:
    frames = traceback.extract_tb(error.__traceback__)
    print(repr(error), [frame for frame in frames if "rocm_autopatch" not in frame.filename])
"""
)
# These tracebacks have two frames of ours (startup/hooks.py). Exceptions other than ImportError
# keep importlib's frames.
FAILURES["an error of another finder"] = Program(
    """
import sys, traceback
class Fails:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            raise errors.pop()
def ours(file):
    return "<frozen importlib" in file or "rocm_autopatch" in file
errors = [KeyboardInterrupt("x"), SystemExit(3), RuntimeError("x"), OSError(2, "x"), KeyError("x")]
sys.meta_path.insert(len(sys.meta_path) - 1, Fails)
for _ in range(5):
    try:
        import target
    except BaseException as error:
        print(repr(error), repr(error.__context__), repr(error.__cause__))
        frames = traceback.extract_tb(error.__traceback__)
        print([frame for frame in frames if not ours(frame.filename)])
"""
)

LOADERS = {
    "plain": Program(
        "install(Plain())\nimport made\nshow(made)\nprint(vars(made.__loader__))", "made"
    ),
    "slots": Program(
        """
class Slots:
    __slots__ = ("anything",)
    create_module, exec_module = Plain.create_module, Plain.exec_module
install(Slots())
import made
show(made)
""",
        "made?",
    ),
    "a named tuple": Program(
        """
import collections
class Tuple(collections.namedtuple("Tuple", "a b")):
    __slots__ = ()
    create_module, exec_module = Plain.create_module, Plain.exec_module
install(Tuple(1, 2))
import made
show(made)
""",
        "made?",
    ),
    "a frozen dataclass": Program(
        """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Frozen(Plain):
    name: str
one = Frozen("x")
install(one)
import made
show(made)
print(one, vars(one), one == Frozen("x"), hash(one) == hash(Frozen("x")))
""",
        "made?",
    ),
    "exec_module is a property": Program(
        """
class Property(Plain):
    @property
    def exec_module(self):
        return super().exec_module
install(Property())
import made
show(made)
print(vars(made.__loader__))
""",
        "made?",
    ),
    "exec_module is a property that can be set": Program(
        """
class Settable(Plain):
    def __init__(self):
        self.execute = super().exec_module
    @property
    def exec_module(self):
        return self.execute
    @exec_module.setter
    def exec_module(self, value):
        print("set")
        self.execute = value
install(Settable())
import made
show(made)
print(made.__loader__.exec_module.__func__ is Plain.exec_module)
""",
        "made?",
    ),
    "exec_module is a descriptor": Program(
        """
class Descriptor:
    def __get__(self, loader, owner=None):
        return lambda module: Plain().exec_module(module)
class Described(Plain):
    exec_module = Descriptor()
class Data(Descriptor):
    def __set__(self, loader, value):
        raise RuntimeError("no")
class Held(Plain):
    exec_module = Data()
install(Described(), "made")
install(Held(), "made2")
import made, made2
show(made, made2)
print(vars(made.__loader__), vars(made2.__loader__))
""",
        "made? made2?",
    ),
    "exec_module on the instance": Program(
        """
one = Plain()
execute = one.exec_module
one.exec_module = lambda module: execute(module)
own = one.exec_module
install(one)
import made
show(made)
print(one.exec_module is own, list(vars(one)))
""",
        "made",
    ),
    "static and class methods": Program(
        """
class Static:
    create_module = staticmethod(lambda spec: None)
    @staticmethod
    def exec_module(module):
        module.VALUE = "static"
class Class(Plain):
    @classmethod
    def exec_module(cls, module):
        module.VALUE = cls.__name__
install(Static(), "made")
install(Class(), "made2")
install(Class, "made3")
Class.create_module = staticmethod(lambda spec: None)
import made, made2, made3
show(made, made2, made3)
print(vars(made.__loader__), "exec_module" in vars(made2.__loader__), made3.__loader__)
""",
        "made made2 made3?",
    ),
    "a module": Program(
        """
import types
loader = types.ModuleType("loader")
def execute(module):
    module.VALUE = "of a module"
loader.create_module, loader.exec_module = (lambda spec: None), execute
install(loader)
import made
show(made)
print(loader.exec_module is execute)
""",
        "made?",
    ),
    "refuses to be written": Program(
        """
class Refuses(Plain):
    def __init__(self, error):
        object.__setattr__(self, "error", error)
    def __setattr__(self, name, value):
        raise self.error
    def __delattr__(self, name):
        raise self.error
errors = AttributeError("no"), TypeError("no"), RuntimeError("no")
for name, error in zip(("made", "made2", "made3"), errors):
    install(Refuses(error), name)
import made, made2, made3
show(made, made2, made3)
print([list(vars(module.__loader__)) for module in (made, made2, made3)])
""",
        "made? made2? made3?",
    ),
    "notes what is written": Program(
        """
class Notes(Plain):
    def __setattr__(self, name, value):
        print("written", name)
        super().__setattr__(name, value)
    def __delattr__(self, name):
        print("deleted", name)
        super().__delattr__(name)
install(Notes())
import made
show(made)
""",
        "made?",
    ),
    "odd to look at": Program(
        """
class Odd(Plain):
    def __eq__(self, other):
        raise RuntimeError("compared")
    def __bool__(self):
        raise RuntimeError("asked for truth")
    def __hash__(self):
        raise RuntimeError("hashed")
    def __repr__(self):
        raise RuntimeError("shown")
    def __len__(self):
        raise RuntimeError("measured")
install(Odd())
import made
print(made.VALUE, vars(made.__loader__))
""",
        "made",
    ),
    "no dict to be seen": Program(
        """
class Hides(Plain):
    @property
    def __dict__(self):
        raise RuntimeError("hidden")
class Shows(Plain):
    __dict__ = {}
class Copies(Plain):
    @property
    def __dict__(self):
        return {"a": 1}
for name, kind in zip(("made", "made2", "made3"), (Hides, Shows, Copies)):
    install(kind(), name)
import made, made2, made3
show(made, made2, made3)
print(made3.__loader__.exec_module.__func__ is Plain.exec_module, vars(made3.__loader__))
""",
        "made? made2? made3?",
    ),
    "a stand-in for another": Program(
        """
class Wraps:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
one = Plain()
install(Wraps(one))
import made
show(made)
print(vars(one), list(vars(made.__loader__)))
""",
        "made",
    ),
    "answers to everything": Program(
        """
class Answers(Plain):
    def __getattribute__(self, name):
        if name == "exec_module":
            return lambda module: Plain.exec_module(self, module)
        return object.__getattribute__(self, name)
install(Answers())
import made
show(made)
print(vars(made.__loader__))
""",
        "made?",
    ),
    "without exec_module": Program(
        """
import types, warnings
warnings.simplefilter("ignore")
class Legacy:
    def load_module(self, name):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__loader__ = self
        module.VALUE = "legacy"
        return module
install(Legacy())
import made
print(made.VALUE, made.__spec__, vars(made.__loader__))
""",
        "made?",
    ),
    "without exec_module, warnings": Program(
        """
import types
class Legacy:
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        return module
install(Legacy())
import warnings
warnings.simplefilter("always")
def work():
    import made
    print(made)
work()
""",
        "made?",
    ),
    "of before PEP 451": Program(
        """
# Python 3.12 removed find_module. Until then, a finder that has only find_module is still asked.
import types, warnings
warnings.simplefilter("ignore")
class Legacy:
    def find_module(self, name, path=None):
        if name in ("alone", "made"):
            return self
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.__loader__ = self
        module.VALUE = "legacy"
        return module
sys.meta_path.insert(len(sys.meta_path) - 1, Legacy())
import alone
print(alone.VALUE, type(alone.__loader__).__name__)
try:
    import made
    print(made.VALUE)
except ImportError as error:
    print(error)
""",
        "alone? made?",
    ),
    "makes its modules": Program(
        """
import types
class Mine(types.ModuleType):
    pass
class Makes(Plain):
    def create_module(self, spec):
        return Mine(spec.name)
class Shares(Plain):
    one = Mine("one")
    def create_module(self, spec):
        return self.one
install(Makes(), "made")
install(Shares(), "made2")
import made, made2
print(type(made).__name__, made2 is Shares.one, made2.__spec__.name)
show(made)
""",
        "made one?",
    ),
    "shared, one inside the other": Program(
        """
class Nests(Plain):
    def exec_module(self, module):
        if module.__name__ == "made":
            import made2
            print(find_spec("made3"), find_spec("made2"))
        super().exec_module(module)
        if module.__name__ == "made2":
            import made3
one = Nests()
install(one, "made", "made2", "made3")
found = [find_spec(name) for name in ("made3", "made", "made2", "made")]
print([spec.loader is one for spec in found], vars(one))
import made
print(vars(one))
import made2, made3
show(made, made2, made3)
print(vars(one), found[0] == made3.__spec__)
""",
        "made made2 made3",
    ),
    "shared, after a failure": Program(
        """
class Fails(Plain):
    fails = ["made", "made2"]
    def exec_module(self, module):
        if module.__name__ in self.fails:
            self.fails.remove(module.__name__)
            raise RuntimeError("not yet")
        super().exec_module(module)
one = Fails()
install(one, "made", "made2", "made3", "plain")
for _ in range(2):
    for name in ("plain", "made", "made2", "made3"):
        try:
            show(__import__(name))
        except RuntimeError as error:
            print(name, error)
    print(vars(one))
""",
        "made made2 made3",
    ),
    "asked for 1,500 times": Program(
        """
one = Plain()
install(one, "made", "made2", "other")
specs = [find_spec(name) for _ in range(1500) for name in ("made", "made2", "other")]
print(len(specs), vars(one), specs[0] == specs[3], specs[1] == specs[-2])
import other, made
show(other, made)
module = module_from_spec(specs[-2])
one.exec_module(module)
print(module.VALUE, vars(one))
""",
        "made? made2?",
    ),
    "asked for by many threads": Program(
        """
import threading
one = Plain()
one.exec_module = lambda module: setattr(module, "VALUE", 1)
install(one, "made", "made2", "made3", "other")
failed = []
def work(name):
    try:
        for _ in range(100):
            if find_spec(name) is None:
                failed.append(name)
        __import__(name)
    except Exception as error:
        failed.append(repr(error))
names = ("made", "made2", "made3", "other") * 3
threads = [threading.Thread(target=work, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failed, [sys.modules[name].VALUE for name in names], list(vars(one)))
""",
        "made made2 made3",
    ),
}

FINDERS = {
    "odd to compare": Program(
        """
class Odd:
    def find_spec(self, name, path=None, target=None):
        return None
    def __eq__(self, other):
        raise RuntimeError("compared")
    def __bool__(self):
        raise RuntimeError("asked for truth")
    def __hash__(self):
        raise RuntimeError("hashed")
sys.meta_path[:0] = [Odd()]
sys.meta_path.append(Odd())
import alone, target
import json
print(alone.VALUE, json.__name__)
""",
        "alone target",
        "alone target",
    ),
    "odd to compare, among the last": Program(
        """
class Odd:
    def find_spec(self, name, path=None, target=None):
        return None
    def __eq__(self, other):
        return True
    __hash__ = None
odd = Odd()
sys.meta_path[:0] = [odd]
import alone, target
print(sys.meta_path[0] is odd, sum(type(finder) is type for finder in sys.meta_path))
import json
print(json.__name__)
""",
        "alone target",
        "alone target",
    ),
    "without find_spec": Program(
        """
class Property:
    @property
    def find_spec(self):
        raise AttributeError("not here")
class Broken:
    @property
    def find_spec(self):
        raise RuntimeError("not so")
if sys.version_info >= (3, 12):
    # Before, a finder had to have find_module where it had no find_spec.
    sys.meta_path[:0] = [object(), Property()]
    sys.meta_path.insert(-1, object())
    sys.meta_path.insert(-1, None)
import target
sys.meta_path.insert(len(sys.meta_path) - 1, Broken())
try:
    import alone
except RuntimeError as error:
    print(error)
del sys.meta_path[-2]
import alone
print(alone.VALUE)
""",
        "alone target",
    ),
    "another name": Program(
        """
class Renames:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("made", "plain"):
            return ModuleSpec({"made": "made2", "plain": "made3"}[name], Plain())
sys.meta_path.append(Renames)
import made, plain
show(made, plain)
print("made" in sys.modules, "made2" in sys.modules, "plain" in sys.modules)
""",
        "made? made2? made3?",
    ),
    "something else than a spec": Program(
        """
import types
class Gives:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "made":
            return types.SimpleNamespace(
                name=name, loader=Plain(), origin="simple", submodule_search_locations=None,
                cached=None, parent="", has_location=False, loader_state=None)
        if name == "made2":
            return 0
        if name == "made3":
            return ModuleSpec(name, None)
sys.meta_path.append(Gives)
for name in ("made", "made2", "made3"):
    try:
        print(__import__(name).VALUE)
    except Exception as error:
        print(type(error), error)
""",
        "made?",
    ),
    "how often it is asked": Program(
        """
class Counts:
    asked = []
    @classmethod
    def find_spec(cls, *arguments, **named):
        cls.asked.append((arguments[0], len(arguments), sorted(named)))
sys.meta_path.insert(len(sys.meta_path) - 1, Counts)
import target.inner, alone, spread.part
find_spec("broken")
for asked in Counts.asked:
    if not asked[0].startswith("rocm_autopatch"):
        print(asked)
""",
        "target target.inner alone spread.part",
    ),
    "what it is asked for in a reload": Program(
        """
import importlib, types
class Shows:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("rocm_autopatch"):
            print(name, path and len(path), target)
sys.meta_path.insert(len(sys.meta_path) - 1, Shows)
sys.modules["alone"] = module = types.ModuleType("alone")
importlib.reload(module)
""",
        "alone?",
    ),
    "meta_path copied": Program(
        """
import copy
for make in (copy.copy, copy.deepcopy, list):
    sys.meta_path = make(sys.meta_path)
    print(__import__({copy.copy: "alone", copy.deepcopy: "target", list: "warns"}[make]).VALUE)
""",
        "alone target? warns?",
    ),
    "meta_path pickled": Program(
        """
import pickle
sys.meta_path = pickle.loads(pickle.dumps(sys.meta_path))
import alone
print(alone.VALUE)
""",
        "alone?",
    ),
    "meta_path is another list": Program(
        """
class Mine(list):
    def __init__(self, *arguments):
        super().__init__(*arguments)
sys.meta_path = mine = Mine(sys.meta_path)
import alone
print(alone.VALUE)
sys.meta_path.append(Finder(Plain(), ("extra", "made")))
import target, extra, made
show(extra, made)
print(isinstance(sys.meta_path, list))
""",
        "alone target made",
        "alone target made",
    ),
    "meta_path is a tuple": Program(
        """
sys.meta_path = tuple(sys.meta_path)
import alone
sys.meta_path += (Finder(Plain(), ("extra", "made")),)
import target, extra, made
show(extra, made)
""",
        "alone target made",
        "alone target made",
    ),
    "meta_path refuses": Program(
        """
class Refuses(list):
    def __iter__(self):
        return super().__iter__()
    def remove(self, one):
        raise RuntimeError("not so")
    __delitem__ = __contains__ = index = remove
sys.meta_path = Refuses(sys.meta_path)
import alone, target
import json
print(alone.VALUE, json.__name__)
""",
        "alone target",
        "alone target",
    ),
    "meta_path emptied": Program(
        """
saved = sys.meta_path[:]
del sys.meta_path[:]
for name in ("alone", "absent"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
sys.meta_path[:] = saved
import alone
print(alone.VALUE)
sys.meta_path.clear()
sys.meta_path = saved
import target
saved = None
sys.meta_path = None
try:
    import json
except ImportError as error:
    print(error)
""",
        "alone target",
    ),
    "meta_path put back": Program(
        """
saved = sys.meta_path[:]
import alone
sys.meta_path[:] = saved
import target
sys.meta_path = saved
import json
print(alone.VALUE, target.VALUE, json.__name__)
""",
        "alone target",
        "alone target",
    ),
    "meta_path turned round": Program(
        """
sys.meta_path.reverse()
import alone, _lsprof
sys.meta_path.reverse()
import target
print(alone.VALUE)
""",
        "alone? _lsprof? target",
    ),
    "all that is ours purged": Program(
        """
for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import alone, target
for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import target.inner
print(alone.VALUE, find_spec("made"), find_spec("warns"))
import json
""",
        "alone? target? target.inner?",
    ),
    "all that is ours purged, and the last imported": Program(
        """
for name in [name for name in sys.modules if name.startswith("rocm_autopatch")]:
    del sys.modules[name]
import alone, json
print(alone.VALUE, json.__name__)
""",
        "alone?",
        "alone",
    ),
    "all purged that came since": Program(
        """
import target.inner, alone
for name in set(sys.modules) - set(sys.builtin_module_names) - {"__main__", "importlib"}:
    if not name.startswith(("_frozen", "importlib", "encodings", "codecs", "io", "abc", "memory")):
        del sys.modules[name]
import target.inner, alone
print(target.VALUE, alone.VALUE)
""",
        "target target.inner alone",
    ),
    "refuses what is ours": Program(
        """
class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("rocm_autopatch"):
            raise ImportError("refused")
for name in [name for name in sys.modules if name.startswith("rocm_autopatch.")]:
    if name != "rocm_autopatch.startup":
        del sys.modules[name]
sys.meta_path.insert(0, Refuses)
import alone, target
print(alone.VALUE, find_spec("broken"))
""",
        "alone? target?",
        says=True,
    ),
    "an audit hook that refuses what is ours": Program(
        """
def audit(event, arguments):
    if event in ("import", "open") and "rocm_autopatch" in str(arguments[0]):
        raise PermissionError("denied")
sys.addaudithook(audit)
import alone, target
print(alone.VALUE, find_spec("broken"))
""",
        "alone? target?",
        says=True,
    ),
    "audit hooks": Program(
        """
events = []
def audit(event, arguments):
    if event in ("import", "exec", "compile"):
        what = arguments[0] if event == "import" else getattr(arguments[0], "co_filename", "text")
        if "rocm_autopatch" not in str(what):
            events.append((event, what))
sys.addaudithook(audit)
exec("import alone\\nfrom target import inner", {})
print(*events, sep="\\n")
""",
        "alone target target.inner",
    ),
    "tracing": Program(
        """
calls = []
def trace(frame, event, argument):
    if "importlib" not in frame.f_code.co_filename:
        calls.append((event, frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name))
    return None
sys.settrace(trace)
import alone
sys.settrace(None)
print([call for call in calls if call[1] in ("alone.py", "program.py")])
""",
        "alone",
    ),
}

# Programs of the finders and loaders begin with this.
PRELUDE = "import sys\nfrom memory import *\n"
for _table in (LOADERS, FINDERS):
    for _name, _program in _table.items():
        _table[_name] = Program(
            PRELUDE + _program.code, _program.hooks, _program.names, _program.says
        )


@pytest.mark.parametrize("name", SPECS)
def test_spec(python: Interpreter, directory: Path, name: str) -> None:
    same(python, directory, SPECS[name])


@pytest.mark.parametrize("name", MODULES)
def test_module(python: Interpreter, directory: Path, name: str) -> None:
    if name == "no source":
        python.run(
            *("-c", "import py_compile; py_compile.compile('alone.py', 'compiled.pyc')"),
            cwd=directory,
        )
    same(python, directory, MODULES[name])


@pytest.mark.parametrize("name", FAILURES)
def test_failure(python: Interpreter, directory: Path, name: str) -> None:
    same(python, directory, FAILURES[name])


@pytest.mark.parametrize("name", LOADERS)
def test_loader(python: Interpreter, directory: Path, name: str) -> None:
    same(python, directory, LOADERS[name])


@pytest.mark.parametrize("name", FINDERS)
def test_finder(python: Interpreter, directory: Path, name: str) -> None:
    same(python, directory, FINDERS[name])


@pytest.mark.parametrize(
    "name",
    ["target", "target.inner", "alone", "broken", "spread.part", "spread", "absent", "looks"],
)
def test_python_m(python: Interpreter, directory: Path, name: str) -> None:
    hooks = "target" if name.startswith("target") else ""
    same(python, directory, Program("", hooks), "-m", name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("target",),
        ("archive.zip",),
        ("alone.py",),
        ("-c", "import broken"),
        ("-W", "error", "-c", "import warns"),
        ("-X", "dev", "-W", "error", "-bb", "-c", "import target.inner, alone; print(alone.VALUE)"),
        ("-OO", "-c", "import alone; print(alone.__doc__)"),
    ],
    ids=" ".join,
)
def test_command_line(python: Interpreter, directory: Path, arguments: tuple[str, ...]) -> None:
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", "import archived\nprint(__spec__, archived.VALUE)\n")
        archive.writestr("archived.py", "VALUE = 1\n")
    program = Program("", "target? target.inner? alone? warns? archived?")
    same(python, directory, program, *arguments)


ARCHIVES = {
    "one loader for all": """
specs = [find_spec(name) for _ in range(500) for name in ("archived", "archived2", "other")]
loader = specs[0].loader
print({spec.loader is loader for spec in specs}, sorted(getattr(loader, "__dict__", ())))
print(specs[0] == specs[3], specs[0] == specs[1], loader.get_source("archived2"))
import other, archived2
show(other, archived2)
print(sorted(getattr(loader, "__dict__", ())))
import package.archived, archived
show(package.archived, archived)
print(sorted(getattr(loader, "__dict__", ())))
""",
    "failing": """
import traceback
for _ in range(2):
    for name in ("archived3", "archived", "absent"):
        try:
            show(__import__(name))
        except Exception:
            traceback.print_exc()
    open("mended", "w").close()
""",
    "resources and source": """
import importlib.resources as r, inspect, pkgutil
import package, archived
print((r.files("package") / "data.txt").read_text(), pkgutil.get_data("package", "data.txt"))
print(inspect.getsource(archived), list(pkgutil.iter_modules(["archive.zip"])))
print(repr(archived.__loader__), archived.__spec__)
""",
    "reloaded": """
import archived, importlib
archived.VALUE = 0
print(importlib.reload(archived).VALUE)
del sys.modules["archived"]
import archived
show(archived)
""",
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive(python: Interpreter, directory: Path, name: str) -> None:
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        for module in ("archived", "archived2", "other", "package/archived", "package/__init__"):
            archive.writestr(f"{module}.py", "VALUE = __name__\nprint(type(__loader__).__name__)\n")
        archive.writestr("archived3.py", (directory / "broken.py").read_text())
        archive.writestr("package/data.txt", "data")
    # Before 3.10, zipimporter has no exec_module: its modules are imported as without us.
    hooks = "archived? archived2? archived3?"
    if (
        python.value("import zipimport as z; print(hasattr(z.zipimporter, 'exec_module'))")
        == "True"
    ):
        hooks = {
            "one loader for all": "archived archived2",
            "failing": "archived archived3",
        }.get(name, "archived")
    code = f"import sys\nsys.path.insert(0, 'archive.zip')\n{PRELUDE}{ARCHIVES[name]}"
    same(python, directory, Program(code, hooks))


class TestLeaving:
    """The finder leaves with the last target, whatever other threads do."""

    # One thread is in an appended finder, and looks for a module that the finder after it knows.
    # Meanwhile another thread executes the last target. importlib asks finders under a lock, so no
    # import can let the first thread go on: a timer does.
    CODE = """
import threading
inside, go = threading.Event(), threading.Event()
class Waits:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "unrelated":
            inside.set()
            go.wait(20)
sys.meta_path.append(Waits)
install(Plain(), "unrelated", "other")
seen = []
def work():
    try:
        import unrelated
        seen.append(unrelated.VALUE)
    except ImportError as error:
        seen.append(error)
thread = threading.Thread(target=work)
class Starts(Plain):
    def exec_module(self, module):
        thread.start()
        inside.wait(20)
        threading.Timer(0.3, go.set).start()
        super().exec_module(module)
install(Starts(), "made")
import made
thread.join(20)
print(seen, thread.is_alive())
import other
"""

    def test_another_thread_is_past_it(self, python: Interpreter, directory: Path) -> None:
        out, _ = same(python, directory, Program(PRELUDE + self.CODE, "made", "made"))
        assert "['unrelated'] False" in out

    def test_hooks_are_armed_meanwhile(self, python: Interpreter, directory: Path) -> None:
        # As at the first compile, when the finder is put back.
        arm = "from rocm_autopatch import startup; startup.arm({'made2': print})"
        code = self.CODE.replace("inside.wait(20)", f"inside.wait(20); {arm}")
        (directory / "program.py").write_text(f"import rocm_autopatch.startup\n{PRELUDE}{code}")
        done = python.run("program.py", env={"ROCM_AUTOPATCH": "off"}, cwd=directory)
        assert "['unrelated'] False" in done.stdout

    def test_three_threads(self, python311: Interpreter, directory: Path) -> None:
        code = f"""{PRELUDE}
import threading
install(Plain(), *("m%d" % number for number in range(600)))
Plain.exec_module = lambda self, module: None
barrier = threading.Barrier(4)
failed = []
def work(first):
    barrier.wait()
    for number in range(first, 600, 3):
        try:
            __import__("m%d" % number)
        except ImportError as error:
            failed.append(str(error))
threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
sys.setswitchinterval(1e-5)
for thread in threads: thread.start()
barrier.wait()
import alone
for thread in threads: thread.join()
print(failed)
"""
        for _ in range(3):
            out, _ = same(python311, directory, Program(code, "alone", "alone"))
            assert out.endswith("[]\n")
