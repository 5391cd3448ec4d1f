"""A program of threads, finders and forks that imports torch. It prints the same at every run.

Its arguments are what it does, and a seed for when. Without us it prints "as it should be" and no
error.
"""

import os
import random
import sys
import threading

sys.setswitchinterval(1e-6)
TARGETS = (
    *("torch", "torch._inductor.config", "torch._dynamo.config", "torch._dynamo.convert_frame"),
    "torch._logging._internal",
)
chance = random.Random(sys.argv[2])
errors = []


class Unrelated:
    """Finds modules that no other finder knows, as an editable install's finder does."""

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("unrelated_"):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.VALUE = module.__name__


class Nothing:
    """Finds nothing."""

    def find_spec(self, name, path=None, target=None):
        return None


class Quarrelsome(Nothing):
    """Is equal to nothing, and says so."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("not to be compared")


def attempt(names, wait=0.0):
    import time

    time.sleep(wait)
    for name in names:
        try:
            __import__(name)
            if sys.modules[name].__name__ != name:
                raise AssertionError(name)
        except BaseException as error:
            errors.append("%s: %s: %s" % (name, type(error).__name__, error))


def together(*functions):
    barrier = threading.Barrier(len(functions))

    def run(function):
        barrier.wait()
        function()

    threads = [
        threading.Thread(target=run, args=(function,), daemon=True) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    if any(thread.is_alive() for thread in threads):
        errors.append("a thread hangs")


def unrelated(first):
    return lambda: attempt(["unrelated_%d" % number for number in range(first, first + 60)])


def shuffled():
    names = list(TARGETS)
    chance.shuffle(names)
    return lambda: attempt(names, chance.random() / 500)


def threads():
    sys.meta_path.append(Unrelated())
    together(shuffled(), shuffled(), shuffled(), unrelated(0), unrelated(100), unrelated(200))


def finders():
    sys.meta_path.append(Unrelated())

    def coming_and_going():
        for _ in range(200):
            one = Nothing()
            sys.meta_path.insert(chance.randrange(len(sys.meta_path)), one)
            # Not remove(): another thread that walks the list would miss a finder, also without us.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not one]

    def rebinding():
        for _ in range(200):
            sys.meta_path = list(sys.meta_path)

    together(
        shuffled(), unrelated(0), rebinding if chance.random() < 0.5 else shuffled(), shuffled()
    )
    together(unrelated(100), coming_and_going)


def quarrel():
    # One at a time: otherwise a comparison with another one would remove the last.
    where = chance.choice((0, 1, len(sys.meta_path)))
    sys.meta_path.insert(where, Quarrelsome())
    together(shuffled(), shuffled())


def purge():
    for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
        del sys.modules[name]
    if chance.random() < 0.5:
        attempt(["rocm_autopatch"])
    together(shuffled(), shuffled())


def archive():
    import zipfile

    home = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(home, "torch-%d.zip" % os.getpid())
    library = next(entry for entry in sys.path if entry.endswith("site-packages"))
    with zipfile.ZipFile(path, "w") as stream:
        for directory, _, files in os.walk(os.path.join(library, "torch")):
            for file in files:
                if file.endswith(".py"):
                    full = os.path.join(directory, file)
                    stream.write(full, os.path.relpath(full, library))
    sys.path.insert(0, path)
    try:
        specs()
        if ".zip" not in sys.modules["torch"].__file__:
            errors.append("not from the archive")
    finally:
        os.unlink(path)


def specs():
    from importlib.util import find_spec

    for _ in range(1500):
        try:
            if find_spec("torch").name != "torch":
                errors.append("another spec")
        except BaseException as error:
            errors.append("find_spec: %s: %s" % (type(error).__name__, error))
            break
    together(shuffled(), shuffled())


def copies():
    import copy
    import pickle
    from importlib.util import find_spec

    for what, function in (
        ("deepcopy of sys.meta_path", lambda: copy.deepcopy(sys.meta_path)),
        ("copy of sys.meta_path", lambda: copy.copy(sys.meta_path)),
        ("pickle of a spec", lambda: pickle.loads(pickle.dumps(find_spec("torch"))).name),
        ("deepcopy of a spec", lambda: copy.deepcopy(find_spec("torch")).name),
        ("equal specs", lambda: 1 // (find_spec("torch") == find_spec("torch"))),
        ("equal loaders", lambda: 1 // (find_spec("torch").loader == find_spec("torch").loader)),
        ("repr of sys.meta_path", lambda: repr(sys.meta_path)),
        ("sorted finders", lambda: sorted(map(str, sys.meta_path))),
        ("hash of finders", lambda: set(sys.meta_path)),
        ("invalidate_caches", lambda: __import__("importlib").invalidate_caches()),
    ):
        try:
            function()
        except BaseException as error:
            errors.append("%s: %s: %s" % (what, type(error).__name__, error))
    together(shuffled(), shuffled())


def forks():
    """Threads fork while torch is imported; then one more child imports the rest."""
    statuses = []

    def fork():
        for _ in range(4):
            child = os.fork()
            if child == 0:
                # An import may wait here for a thread that a fork did not copy, with us or without.
                os._exit(0 if sys.meta_path else 1)
            statuses.append(os.waitpid(child, 0)[1])

    together(lambda: attempt(["torch", "torch._inductor"]), fork, fork)
    child = os.fork()
    if child == 0:
        errors.clear()
        attempt(TARGETS)
        os._exit(1 if errors else 0)
    statuses.append(os.waitpid(child, 0)[1])
    attempt(TARGETS)
    errors.extend("a child ends with %d" % status for status in statuses if status)


def reloads():
    import importlib

    attempt(TARGETS)

    def again():
        for name in TARGETS:
            try:
                importlib.reload(sys.modules[name])
            except BaseException as error:
                errors.append("reload of %s: %s: %s" % (name, type(error).__name__, error))

    again()
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]
    together(shuffled(), shuffled())


def circle():
    """A module that, while it is executed, waits for threads that import targets."""

    class Waiting(Unrelated):
        def exec_module(self, module):
            super().exec_module(module)
            if module.__name__ == "unrelated_wait":
                together(shuffled(), unrelated(0))

    sys.meta_path.append(Waiting())
    together(lambda: attempt(["unrelated_wait"]), unrelated(100), shuffled())


KINDS = {
    function.__name__: function
    for function in (
        *(threads, finders, quarrel, purge, archive, specs, copies, forks, reloads, circle),
    )
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
    print("as it should be" if not errors else "\n".join(sorted(set(errors))))
