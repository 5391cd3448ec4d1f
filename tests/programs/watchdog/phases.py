"""Many hangs, one after the other: each in another phase of a compile."""

import os
import sys
import threading
import time

import aiter.jit.core  # the test's stand-in
import torch
from functorch.compile import make_boxed_func
from hangs import hang, rows, say, show, tried
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.select_algorithm import ExternKernelCaller
from torch.utils.file_baton import FileBaton

from rocm_autopatch.patches.watchdog import underway

where = ""


class Enough(Exception):
    "Ends a compile, before it has C++ to compile."


def hangs():
    hang()
    raise Enough


def aot():
    frame = sys._getframe(1)
    while frame and "_functorch" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


@torch.library.custom_op("watchdog_test::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@op.register_fake
def fake_op(x):
    if (where == "dynamo" and not aot()) or (where == "aot" and aot()):
        hangs()
    return torch.empty_like(x)


@register_lowering(torch.ops.watchdog_test.op.default)
def lowering(x):
    if where == "lowering":
        hangs()
    return fallback_handler(torch.ops.watchdog_test.op.default)(x)


def graph_pass(graph):
    hangs()


def backend(gm, inputs):
    hangs()


def only_backward(gm, inputs):
    def inner(gm, inputs, **more):
        if more.get("is_backward"):
            return compile_fx_inner(gm, inputs, **more)
        return make_boxed_func(gm.forward)

    return compile_fx(gm, inputs, inner_compile=inner)


def model(x):
    return torch.relu(op(x)) + 1


def trained(x):
    return torch.tanh(x).sum()


x = torch.randn(8)


def compiled(call, name, *args, **options):
    torch._dynamo.reset()
    say(name)
    return tried(torch.compile(call, **options), *args)


def outer(gm, inputs):
    # This is a short compile within a compile.
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    hangs()


seen = []
config.force_disable_caches = True
for where in ("dynamo", "aot", "lowering"):
    backend_name = "aot_eager" if where == "aot" else "inductor"
    seen.append(compiled(model, where, x, backend=backend_name))
where = ""
with config.patch(post_grad_custom_pre_pass=graph_pass):
    seen.append(compiled(model, "pass", x))
seen.append(compiled(model, "backend", x, backend=backend))
seen.append(compiled(model, "nested", x, backend=outer))
loss = compiled(trained, "backward", x.clone().requires_grad_(), backend=only_backward)
with config.patch(post_grad_custom_pre_pass=graph_pass):
    seen.append(tried(loss.backward))

# A C++ compiler that does not return while the file exists, and then fails.
busy = os.environ["BUSY"]


def waiting():
    "The frame in which the compile waits for the compiler, None if it is not that far."
    frame = sys._current_frames()[threading.main_thread().ident]
    waits = frame.f_code.co_filename.endswith(("threading.py", "subprocess.py", "selectors.py"))
    return frame if waits else None


def let_go():
    while not os.path.exists(busy + ".reached"):
        time.sleep(0.02)
    warned = False
    while not warned:
        # It may also wait for other things, and do others when the watchdog looks. At the second
        # warning, the line of the first one is complete.
        before = waiting()
        hang(2)
        warned = before is not None and before is waiting()
    os.unlink(busy + ".reached")
    os.unlink(busy)


def stuck(*args, **more):
    open(busy, "w").close()
    thread = threading.Thread(target=let_go)
    thread.start()
    compiled(*args, **more)
    thread.join()


config.cpp_cache_precompile_headers = False
config.compile_threads = 1
stuck(trained, "cpp", x)
config.compile_threads = 2
stuck(trained, "worker", x)
mode = "max-autotune-no-cudagraphs"
with torch.no_grad(), config.patch(freezing=True, max_autotune_gemm_backends="CPP,ATEN"):
    stuck(torch.nn.Linear(64, 64), "autotune", torch.randn(32, 64), mode=mode)
# The C++ candidate fails at once now, and then a library's is benchmarked.
measured = ExternKernelCaller.benchmark


def benchmark(self, *args, **more):
    hang()
    return measured(self, *args, **more)


ExternKernelCaller.benchmark = benchmark
os.environ["PYTORCH_TUNABLEOP_ENABLED"] = "1"
with torch.no_grad(), config.patch(freezing=True, max_autotune_gemm_backends="CPP,ATEN"):
    compiled(torch.nn.Linear(64, 64), "library", torch.randn(32, 64), mode=mode)


def builds(gm, inputs):
    aiter.jit.core.build_module("module_test", hangs)


def waits(gm, inputs):
    open(busy, "w").close()
    thread = threading.Thread(target=lambda: (hang(), os.unlink(busy)))
    thread.start()
    FileBaton(busy).wait()
    thread.join()
    raise Enough


compiled(model, "aiter", x, backend=builds)
compiled(model, "baton", x, backend=waits)
say("end")
nothing = underway.running == {} and not getattr(underway.here, "watch", None)
show(nothing, seen, rows())
