"""A program that prints the signals that reach it.

``start`` shows a signal that came during the start, ``wait`` one that comes at any time. ``import``
imports torch, and again if the first import failed.
"""

import signal
import sys
import time

import _aaa_torture as deliver


class Mine(Exception):
    pass


class Own(BaseException):
    pass


def use():
    import torch._dynamo.config
    import torch._dynamo.convert_frame
    import torch._inductor.config
    import torch._logging._internal  # noqa: F401

    # Not as attributes: importlib binds a module on its parent last, and a signal may come between,
    # without us too.
    modules = sys.modules
    return (
        modules["torch._inductor.config"].max_autotune,
        modules["torch._dynamo.config"].cache_size_limit,
    )


def start():
    deliver.end()
    time.sleep(0.02)
    print("swallowed" if deliver.hit else "not reached")


def wait():
    use()
    print("ready", flush=True)
    time.sleep(4)
    print("swallowed")


def importing(kind):
    def handler(signum, frame):
        raise {"Mine": Mine, "Own": Own, "TimeoutError": TimeoutError, "SystemExit": SystemExit}[
            kind
        ]("from the handler")

    if kind != "KeyboardInterrupt":
        signal.signal(deliver.number or signal.SIGALRM, handler)
    caught = None
    try:
        deliver.begin()
        use()
        deliver.end()
    except BaseException as error:
        deliver.end()
        caught = type(error).__name__
    if not deliver.hit:
        print("not reached", use())
    elif caught != kind:
        print("swallowed" if caught is None else "%s instead of %s" % (caught, kind))
    else:
        # A failed import can be repeated, as without us.
        use()
        print("reached")


try:
    if sys.argv[1] == "start":
        start()
    elif sys.argv[1] == "wait":
        wait()
    else:
        importing(sys.argv[2])
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(42)
