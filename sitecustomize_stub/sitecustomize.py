"""Injection without installing: on PYTHONPATH, with rocm_autopatch, this starts it.

``site`` imports the first ``sitecustomize`` on sys.path only. The one that this file shadows, a
user's own, or Debian's and Ubuntu's in the standard library, is executed after it and takes its
place in sys.modules.
"""

import os
import sys

try:
    import rocm_autopatch

    rocm_autopatch.start()
except BaseException as _error:
    # start() never raises: there is no package.
    try:
        os.write(
            sys.stderr.fileno(),
            (
                "rocm_autopatch: skipped, %s does not find its package: %s: %s\n"
                % (__file__, type(_error).__name__, _error)
            ).encode("utf-8", "replace"),
        )
    except Exception:
        pass


def _execute_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.abspath(path) for path in sys.path]
    # Only what comes after this directory was shadowed by it. site has removed duplicates, so a
    # second copy of this stub further on looks further on still.
    after = paths[paths.index(here) + 1 :] if here in paths else []
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
    # What it raises is site's to report, as it would without this file in front.
    spec.loader.exec_module(module)


_execute_next()
