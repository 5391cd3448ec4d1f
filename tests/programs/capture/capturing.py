"""A capture and a GPU that are pretended, the patch, and a function to compile."""

import contextlib
import json
import sys
import threading

import torch
import torch._dynamo.convert_frame as m

from rocm_autopatch.patches import capture as patch

torch.manual_seed(0)
NATIVE = "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture"
IS_INITIALIZED = torch.cuda.is_initialized
here = threading.local()


@contextlib.contextmanager
def capture():
    here.capturing = True
    try:
        yield
    finally:
        here.capturing = False


def capturing():
    return getattr(here, "capturing", False)


def is_initialized():
    "Yes for the patch; for Inductor, which looks for a GPU when it hashes, the truth."
    return (capturing() and sys._getframe(1).f_code.co_name == "_is_capturing") or IS_INITIALIZED()


torch.cuda.is_initialized = is_initialized
torch.cuda.is_current_stream_capturing = capturing


class Generator:
    def __init__(self):
        self.state, self.reached = torch.arange(16, dtype=torch.uint8), []

    def get_state(self):
        self.reach("get")
        return self.state.clone()

    def set_state(self, state):
        self.reach("set")
        self.state = state

    def reach(self, how):
        self.reached.append(how)
        if capturing():
            raise RuntimeError(NATIVE)


def add_gpu():
    "A GPU for those who ask on behalf of the RNG state; Inductor still compiles for the CPU."
    generator = Generator()
    readers = ("preserve_rng_state", "_fn", "checkpoint_params")
    torch.cuda.is_available = lambda: sys._getframe(1).f_code.co_name in readers
    torch.cuda.default_generators = (generator,)
    torch.cuda.random._lazy_init = lambda: None
    torch.cuda.random._lazy_call = lambda call, **_: call()
    torch.cuda.random.current_device = lambda: 0
    return generator


def install(setting, keep=(), observe=False):
    (row,) = patch.apply(m, [("capture", setting, "layer", "why", (), ())], keep, observe)
    return row


@contextlib.contextmanager
def release(version):
    "What a torch of that version would choose: its Python code is still this one's."
    before, torch.__version__ = torch.__version__, type(torch.__version__)(version)
    try:
        yield
    finally:
        torch.__version__ = before


def up_to_2_9(setting="skip-rng"):
    newer = patch.startup.release(torch.__version__) > (2, 9)
    with release("2.9.1" if newer else torch.__version__):
        return install(setting)


def tried(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


graphs = []


def backend(gm, inputs):
    graphs.append(gm)
    return gm.forward


def forward(x):
    return torch.relu(x) + x


x = torch.randn(4)


def show(*values):
    print(json.dumps(values))
