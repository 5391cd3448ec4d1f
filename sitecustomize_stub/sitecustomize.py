"""Starts rocm_autopatch without an installation, if both are on PYTHONPATH.

``site`` imports only the first ``sitecustomize`` on sys.path. This file may shadow another one: a
user's own, or that of Debian and Ubuntu in the standard library. So the other one is executed after
this one, and takes its place in sys.modules. Every Python of the image may find this file, so
Python 2 must be able to read it, too.
"""

import os
import sys


def _start():  # type: () -> None
    try:
        try:
            import rocm_autopatch
        except ImportError:
            # A hook of the host lays the package here, so that an image's own comes first.
            sys.path.insert(0, os.path.dirname(__file__) + "/package")
            try:
                import rocm_autopatch
            finally:
                del sys.path[0]
            _take_facts(os.path.dirname(__file__) + "/container")
    except Exception as error:
        # There is no package, or it may not be read.
        line = "rocm_autopatch: not started: %.200s can't import the package: %s: %.200s\n"
        try:
            # Opened anew, because a write to sys.stderr itself may wait: for a full pipe.
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY
            own = os.open("/proc/self/fd/%d" % sys.stderr.fileno(), flags)
            text = line % (__file__, type(error).__name__, error)
            os.write(own, text.encode("utf-8", "backslashreplace"))
            os.close(own)
        except Exception:
            pass
        return
    rocm_autopatch.start()


def _take_facts(place):  # type: (str) -> None
    """What the host's hook knows of this container, where neither its image nor a user says it."""
    import rocm_autopatch as package

    site = package._SITE
    if not os.access(site + "/baseline", os.F_OK):
        package._BASELINE = place + "/baseline"
    if os.environ.get("ROCM_AUTOPATCH_IMAGE", "").strip() or os.access(site + "/image", os.F_OK):
        return
    name = package._read(place + "/image").decode("utf-8", "replace").strip()
    if name:
        package._RECORD["facts"]["image"] = (name, place + "/image")


def _absolute(path):  # type: (str) -> str
    try:
        return os.path.abspath(path)
    except OSError:
        return path  # A relative one, and the working directory is gone.


def _execute_next():  # type: () -> None
    here = _absolute(os.path.dirname(__file__))
    paths = [_absolute(path) for path in sys.path]
    # Only what comes after this directory was shadowed by it. site has removed duplicates, so a
    # second copy of this stub further on looks further on still.
    after = paths[paths.index(here) + 1 :] if here in paths else []
    if sys.version_info < (3, 4):
        _execute_next_of_python_2(after)
        return
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec and find_spec(__name__, after)
        if spec is not None and spec.loader is not None:
            break
    else:
        return
    # importlib.util has this function too, for 4 ms of other imports at each start.
    from _frozen_importlib import module_from_spec

    module = module_from_spec(spec)
    sys.modules[__name__] = module
    before = os.environ.get("PYTHONPATH")
    try:
        # What it raises is site's to report, as it would without this file in front.
        spec.loader.exec_module(module)
    finally:
        _stay_first(here, before)


def _stay_first(here, before):  # type: (str, str | None) -> None
    """OpenTelemetry's puts itself in front, so children would find it in place of this one."""
    now = os.environ.get("PYTHONPATH")
    if not before or not now or now == before:
        return
    first = before.split(os.pathsep)[0]
    paths = now.split(os.pathsep)
    if first and _absolute(first) == here and paths[0] != first:
        paths = [first] + [path for path in paths if path != first]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _execute_next_of_python_2(after):  # type: (list[str]) -> None
    import imp

    try:
        stream, path, description = imp.find_module(__name__, after)
    except ImportError:
        return
    # What runs here must outlive its place in sys.modules: Python 2 empties a module that is gone.
    sys.modules["rocm_autopatch stub"] = sys.modules.pop(__name__)
    try:
        imp.load_module(__name__, stream, path, description)  # type: ignore[arg-type]
    finally:
        if stream:
            stream.close()


if sys.version_info >= (3, 9):
    _start()
_execute_next()
