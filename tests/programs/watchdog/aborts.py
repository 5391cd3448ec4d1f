"""Compiles that take too long, in Python, and get an exception."""

import threading
import time

import torch
from hangs import change, show, tried, uses

from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import aborts, underway

x = torch.randn(4)


def model(x):
    return x + 1


def loops(gm, inputs):
    while True:
        time.sleep(0.005)


def swallows(gm, inputs):
    "As the search for a kernel does with a candidate that fails."
    seen = 0
    while seen < 2:
        try:
            loops(gm, inputs)
        except Exception:
            seen += 1
    return gm.forward


def compiled(backend):
    torch._dynamo.reset()
    return tried(torch.compile(model, backend=backend), x)


compiled("eager")
change(abort_after=0.25)
aborts.SHORTEST = 0.1

said = [compiled(loops)]
try:
    torch._dynamo.reset()
    torch.compile(model, backend=loops)(x)
except Exception as error:
    while error is not None and not isinstance(error, TimeoutError):
        error = error.__cause__ or error.__context__
    kind = [type(error).__name__, type(error).__module__, str(error)]
torch._dynamo.config.suppress_errors = True
eager = compiled(loops)
torch._dynamo.config.suppress_errors = False
before = uses("abort_after")
said.append([compiled(swallows), uses("abort_after") - before])

# The compile ends at about the time of the abort: it raises, or it ends normally.
late = []
for number in range(16):
    nap = 0.25 + (number - 8) * 0.002

    def naps(gm, inputs, nap=nap):
        end = time.monotonic() + nap - 0.01
        while time.monotonic() < end:
            time.sleep(0.001)
        return gm.forward

    before = uses("abort_after")
    got = compiled(naps)
    try:
        for _ in range(2000):  # Nothing arrives when it is over.
            pass
    except TimeoutError:
        late.append(number)
    if isinstance(got, str):
        # Dynamo may turn it into another error, such as a guard that fails.
        late.append("ended" if uses("abort_after") > before else got)
    else:
        late.append("compiled" if torch.equal(got, x + 1) else got)


# A compile of another thread, which began later, is not ended because of this one.
ended = threading.Event()


def graph(name):
    return torch.fx.symbolic_trace(model)


def other():
    def compile(gm, inputs, **more):
        ended.wait()
        return gm

    results.append(tried(wrapped(compile), graph("other"), [x]))


def wrapped(function):
    class Owner:
        fx_codegen_and_compile = staticmethod(function)

    watchdog._watch_graphs(Owner)
    return Owner.fx_codegen_and_compile


results = []


def first(gm, inputs):
    thread.start()
    watch = underway.running[threading.get_ident()]
    while len(underway.running) < 2 or watch.due is None:
        time.sleep(0.01)
    # It is overdue from now on.
    watch.next_abort = 0.0
    change()
    loops(gm, inputs)


thread = threading.Thread(target=other)
change(abort_after=600.0)
mine = compiled(first)
ended.set()
thread.join()
show(
    said,
    kind,
    eager.tolist(),
    late,
    mine,
    [one if isinstance(one, str) else type(one).__name__ for one in results],
    underway.running == {},
    uses("abort_after"),
)
