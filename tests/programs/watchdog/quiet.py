"""Short compiles, forks, and an end of the interpreter during a compile."""

import inspect
import os
import threading
import time
import warnings

import torch
import torch._dynamo.convert_frame as convert_frame
from hangs import show, uses

from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import on_demand, sleeper, underway

warnings.simplefilter("always")
# On a busy machine, the thread would end between two compiles.
on_demand.LOOK = 3600.0
x = torch.randn(4)


def model(x):
    return x + 1


def threads():
    return len(os.listdir("/proc/self/task"))


before = threads(), sleeper.current
f = torch.compile(model, backend="eager", dynamic=False)
f(x)
during = sleeper.current is not None
started = sleeper.current
for size in range(5):
    f(torch.randn(size + 5))
same = sleeper.current is started
pid = os.fork()
if not pid:
    # The child compiles, with a thread of its own.
    torch._dynamo.reset()
    fine = sleeper.current is None and torch.equal(f(x), x + 1) and sleeper.current is not None
    os._exit(0 if fine else 3)
child = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
after_fork = sleeper.current is None
torch._dynamo.reset()


def forks(gm, inputs):
    # It forks during a compile. The parent's compile is still watched.
    pid = os.fork()
    if not pid:
        os._exit(0 if underway.running == {} else 3)
    status.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    status.append(sleeper.current is not None)
    return gm.forward


status = []
torch.compile(model, backend=forks)(x)


# An interrupt between the entry and its try leaves an ended compile behind.
def interrupted():
    class Owner:
        fx_codegen_and_compile = staticmethod(model)

    watchdog._watch_graphs(Owner)
    leave, watchdog._leave = watchdog._leave, lambda *_: None
    Owner.fx_codegen_and_compile(x)
    watchdog._leave = leave


interrupted()
left = len(underway.running)
stale = underway.here.watch
torch._dynamo.reset()
f(x)
left = [left, len(underway.running), underway.here.watch is stale, stale.lasts()]
signature = str(inspect.signature(convert_frame._compile)), convert_frame._compile.__name__
show(before, during, same, child, after_fork, status, left, signature[1], uses())


def never(gm, inputs):
    threading.Event().wait()


thread = threading.Thread(target=lambda: torch.compile(model, backend=never)(torch.ones(9)))
thread.daemon = True
thread.start()
time.sleep(0.2)
