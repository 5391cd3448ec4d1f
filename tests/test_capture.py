"""The capture patch on the real torch: what a compile in a graph capture does under each setting.

Torch here is a build for the CPU, which captures nothing. The programs below pretend: inside
``with capture():`` this thread's ``torch.cuda.is_initialized`` and ``is_current_stream_capturing``
say yes, and where the random generator is the subject, its readers find a GPU whose generator
raises in a capture, as it does up to torch 2.9. Dynamo, its backends and all functions between them
and that generator are the real ones. On a real GPU: experiments/gpu/capture.py.

ROCM_AUTOPATCH_TEST_TORCH names an interpreter with another torch, which must find rocm_autopatch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.conftest import Interpreter

HEAD = """
import contextlib, inspect, json, logging, sys, threading, torch
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
    return capturing() and sys._getframe(1).f_code.co_name == "_capturing" or IS_INITIALIZED()

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

import torch._dynamo.convert_frame as m
from rocm_autopatch.patches import capture as patch
from torch._dynamo.utils import counters

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
    with release("2.9.1" if patch.startup.release(torch.__version__) > (2, 9) else
                 torch.__version__):
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
def show(*values): print(json.dumps(values))
"""
LINE = HEAD[: HEAD.index("def forward")].count("\n") + 1


# This fixture asks for the torch by name, which conftest.py can't see.
pytestmark = pytest.mark.slow


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Interpreter:
    other = os.environ.get("ROCM_AUTOPATCH_TEST_TORCH")
    python: Interpreter = (
        Interpreter(Path(other)) if other else request.getfixturevalue("torch_python")
    )
    return python


@pytest.fixture
def run(python: Interpreter, tmp_path: Path) -> Any:
    """What a program prints with ``show``."""

    def run(code: str) -> Any:
        later = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        done = forked.run(python, HEAD, code, env={"ROCM_AUTOPATCH": "off"}, later=later)
        return json.loads(done.stdout.splitlines()[-1])

    return run


class TestGuard:
    def test_it_raises_before_anything_runs(self, run: Any) -> None:
        code = """
row = install("guard")
f = torch.compile(forward, backend=backend)
with capture():
    said = [tried(f, x), tried(f, x)]
before = [len(graphs), counters["stats"]["unique_graphs"], row["uses"]]
with capture():  # in a thread that does not capture, it compiles
    thread = threading.Thread(target=lambda: f(x))
    thread.start(); thread.join()
after = [len(graphs), row["uses"]]
with capture():
    right = torch.equal(f(x), forward(x))
show(said, before, after, right, len(graphs), row["uses"], row["status"])
"""
        said, before, after, right, graphs, uses, status = run(code)
        assert said[0] == said[1]
        assert said[0] == (
            f"RuntimeError: torch.compile was about to compile forward (<string>:{LINE}) during "
            "CUDA graph capture. First run it outside the capture, as a warm-up with inputs like "
            "these, until nothing is left to compile. Then capture. (rocm_autopatch, capture: "
            "guard)"
        )
        assert before == [0, 0, 2]
        assert (after, right, graphs, uses, status) == ([1, 2], True, 1, 2, "applied")

    def test_it_comes_before_the_native_error(self, run: Any) -> None:
        code = """
generator = add_gpu()
f = torch.compile(forward)
with capture():
    native = tried(f, x)
torch._dynamo.reset()
reached, generator.reached[:] = generator.reached[:], []
row = install("guard")
with capture():
    said = tried(f, x)
quiet = generator.reached[:]
f(x)
with capture():
    right = torch.allclose(f(x), forward(x))
show(native, reached, said, quiet, generator.reached.count("get"), right)
"""
        native, reached, said, quiet, reads, right = run(code)
        assert "Cannot call CUDAGeneratorImpl::current_seed" in native
        assert reached[0] == "get"
        assert said.startswith("RuntimeError: torch.compile was about to compile forward")
        assert quiet == []
        assert reads >= 3  # convert_frame, aot_autograd, compile_fx
        assert right is True

    def test_recompiles_and_resumed_functions(self, run: Any) -> None:
        code = """
install("guard")
def broken(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2
f = torch.compile(forward, backend=backend, dynamic=False)
g = torch.compile(broken, backend=backend)
f(x)
with torch.no_grad(), capture():
    shapes = tried(f, torch.randn(5))
m._compile, ours = m._compile.__wrapped__, m._compile
seen = []
def first(*args, **kwargs):
    # The part after the break is compiled when it is reached, which is in the capture.
    seen.append(args[0].co_name)
    return (ours if len(seen) > 1 else ours.__wrapped__)(*args, **kwargs)
m._compile = first
with capture():
    resumed = tried(g, x)
show(shapes, resumed)
"""
        shapes, resumed = run(code)
        assert "was about to compile forward" in shapes
        assert "was about to compile torch_dynamo_resume_in_broken_at_" in resumed

    def test_suppressed_errors_fall_back_to_eager(self, run: Any) -> None:
        code = """
row = install("guard")
torch._dynamo.config.suppress_errors = True
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, row["uses"], len(graphs))
"""
        assert run(code) == [True, 1, 0]

    def test_what_a_higher_order_op_compiles_for_itself(self, run: Any) -> None:
        code = """
from torch._higher_order_ops import utils
row = install("guard")
def op():
    return torch.cond(torch.tensor(True), torch.sin, torch.cos, (x,))
with capture():
    found = tried(op)
show(hasattr(utils, "_in_hop_compile"), str(found), str(x.sin()), row["uses"])
"""
        marked, found, right, uses = run(code)
        if marked:  # since 2.11
            assert (found, uses) == (right, 0)
        else:
            assert uses == 1


# Each prints or raises. Without a capture, nothing may differ with us.
CALLS = [
    "f(x).tolist()",
    "torch.compile(forward, fullgraph=True)(x).tolist()",
    "torch._dynamo.explain(breaks)(x).graph_break_count",
    "torch.compile(breaks, backend=backend)(x).tolist(), len(graphs)",
    "torch.compile(breaks, backend=backend, fullgraph=True)(x)",
    "torch.compile(raises, backend=backend)(x)",
    "torch.compile(forward, backend=bad)(x)",
    "torch.compile(states, backend=backend)(x), len(graphs)",
    "str(torch._dynamo.export(forward)(x).graph_module.code)",
    "torch.compile(uneven, backend=backend, fullgraph=True)(x)",
    "str(inspect.signature(m._compile)), m._compile.__name__, m._compile.__module__",
]
SAME = f"""
import re
def breaks(x):
    x = x + 1
    print("a break", file=sys.stderr)
    return x * 2
def raises(x):
    return (x + 1)[9, 9, 9]
def states(x):
    return len(torch.cuda.default_generators), torch.get_rng_state().shape, x.tolist()
def uneven(x):
    return x + torch.ones(3)
def bad(gm, inputs):
    raise ValueError("no")
lines = []
class Handler(logging.Handler):
    def emit(self, record):
        if "stack (elided" in record.getMessage():
            # This is the stack itself: our frame is among those that are left out.
            lines.append(record.getMessage().partition("\\n")[2])
logger = logging.getLogger("torch._dynamo.convert_frame")
logger.addHandler(Handler())
logger.setLevel(logging.DEBUG)
f = torch.compile(forward)
seen = []
for call in {CALLS!r}:
    torch._dynamo.reset()
    graphs.clear()
    seen.append(re.sub("0x[0-9a-f]+", "0x", repr(tried(eval, call))))
show(seen, lines, torch.rand(3).tolist(), IS_INITIALIZED())
"""


def test_nothing_differs_where_nothing_is_captured(run: Any) -> None:
    without = run(f"None\n{SAME}")
    assert len(without[1]) > 5
    assert without[3] is False
    assert "forward" in without[1][0] or "<string>" in without[1][0]
    for settings in ("install('guard')", "up_to_2_9()", "install('guard', observe=True)"):
        ours = run(f"{settings}\n{SAME}")
        for call, with_us, alone in zip(CALLS, ours[0], without[0]):
            assert with_us == alone, call
        assert ours[1:] == without[1:]


class TestTheCheck:
    def test_cuda_is_not_asked_before_it_runs(self, run: Any) -> None:
        code = """
row = install("guard")
torch.cuda.is_initialized = IS_INITIALIZED
asked = []
torch.cuda.is_current_stream_capturing = lambda: asked.append(1)
right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, asked, row["uses"])
"""
        assert run(code) == [True, [], 0]

    def test_a_question_that_fails(self, run: Any) -> None:
        code = """
row = install("guard")
asked = []
def fails():
    asked.append(1)
    raise RuntimeError("CUDA error: operation would make the legacy stream depend on a capture")
torch.cuda.is_current_stream_capturing = fails
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, asked, row["uses"])
"""
        assert run(code) == [True, [1], 0]


class TestSettings:
    def test_what_is_chosen(self, run: Any) -> None:
        code = """
versions = ["2.4.1", "2.9.1+rocm7.2.0.lw.git7e1940d4", "2.9.0a0+git1", "2.10.0a0+git1", "2.13.0"]
def chosen(setting, **more):
    original = m._compile
    row = install(setting, **more)
    changed, m._compile = m._compile is not original, original
    return [row["status"], row["before"], row["after"], row["uses"], changed, row["reason"]]
rows = []
for version in versions:
    with release(version):
        rows.append([chosen("guard")[0], chosen("skip-rng")[0]])
with release("2.8.0"):
    others = [chosen("off"), chosen("guard"), chosen("skip-rng")]
    others += [chosen("guard", keep=("capture",)), chosen("skip-rng", observe=True)]
wrong = tried(install, "skip")
def trace_frame():
    return torch.cuda.is_current_stream_capturing()
m.trace_frame = trace_frame
with release("2.14.0"):
    itself = [chosen("guard"), chosen("skip-rng"), chosen("guard", observe=True)[:1]]
with release("2.11.0"):
    del m.trace_frame
    itself.append(chosen("skip-rng"))
del m._compile
show(rows, others, wrong, itself, tried(install, "guard"))
"""
        rows, others, wrong, itself, without = run(code)
        assert rows == [["applied"] * 2] * 3 + [["applied", "skipped"]] * 2
        assert others == [
            ["skipped", "off", "off", 0, False, "the policy sets capture: off"],
            [
                *("applied", "off", "guard", 0, True),
                "torch 2.8.0 has no such check of its own; torch has one since 2.14 "
                "(pytorch#185410)",
            ],
            [
                *("applied", "off", "skip-rng", 0, True),
                "torch 2.8.0 can't read the generator in a capture (pytorch#162505)",
            ],
            ["kept", "off", "off", 0, False, "ROCM_AUTOPATCH_KEEP"],
            [
                *("observed", "off", "off", 0, True),
                "torch 2.8.0 can't read the generator in a capture (pytorch#162505)",
            ],
        ]
        assert wrong == "ValueError: 'skip' is not one of off, guard, skip-rng"
        nothing = ["skipped", "off", "off", 0, False]
        assert itself == [
            [*nothing, "torch itself raises since 2.14 (pytorch#185410)"],
            [
                *nothing,
                "since 2.14 torch raises instead of compiling in a capture (pytorch#185410)",
            ],
            ["skipped"],
            [*nothing, "the generator can be read in a capture since torch 2.10 (pytorch#162505)"],
        ]
        assert without == (
            "AttributeError: this torch has no _compile in torch._dynamo.convert_frame"
        )

    def test_observing_counts(self, run: Any) -> None:
        code = """
row = install("guard", observe=True)
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, row["uses"], row["after"])
"""
        assert run(code) == [True, 1, "off"]


class TestSkipRng:
    @pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
    def test_it_compiles(self, run: Any, name: str) -> None:
        code = f"""
generator = add_gpu()
f = torch.compile(forward, backend={name!r})
with capture():
    native = tried(f, x)
torch._dynamo.reset()
generator.reached.clear()
f(x)
reads = generator.reached.count("get")
torch._dynamo.reset()
generator.reached.clear()
row = up_to_2_9()
names = ("default_generators", "get_rng_state", "set_rng_state")
before = [getattr(torch.cuda, name) for name in names]
state, cpu = generator.state.tolist(), torch.get_rng_state()
with capture():
    right = torch.allclose(f(x), forward(x))
after = [getattr(torch.cuda, name) for name in names]
show(native, reads, right, generator.reached[:], all(map(lambda a, b: a is b, before, after)),
     generator.state.tolist() == state, torch.equal(torch.get_rng_state(), cpu), row["uses"],
     torch.cuda.get_rng_state().tolist() == state, hasattr(patch._thread, "state"))
"""
        native, reads, right, *others = run(code)
        assert "Cannot call CUDAGeneratorImpl::current_seed" in native
        assert reads >= {"eager": 1, "aot_eager": 2, "inductor": 3}[name]
        assert right is True
        assert others == [[], True, True, True, 1, True, False]

    def test_a_backward_pass_compiles_when_it_is_run(self, run: Any) -> None:
        code = """
generator = add_gpu()
up_to_2_9()
w = torch.randn(4, requires_grad=True)
f = torch.compile(lambda x: (torch.nn.functional.dropout(x * w, 0.5)).sin().sum())
with capture():
    loss = f(x)
    quiet = generator.reached[:]
    said = tried(loss.backward)
show(quiet, said)
"""
        quiet, said = run(code)
        assert quiet == []
        # This does not go through _compile. The patch can't change it, so it is the native error.
        assert "Cannot call CUDAGeneratorImpl::current_seed" in said

    def test_errors_undo_it(self, run: Any) -> None:
        code = """
generator = add_gpu()
row = up_to_2_9()
real = torch.cuda.default_generators
def bad(gm, inputs):
    raise ValueError("no")
def fails(x):
    raise KeyboardInterrupt
said = []
with capture():
    for backend_ in (bad, fails):
        torch._dynamo.reset()
        try:
            torch.compile(forward, backend=backend_)(x)
        except BaseException as error:
            said.append(type(error).__name__)
        said.append(torch.cuda.default_generators is real)
        said.append(tried(torch.cuda.get_rng_state))
torch._dynamo.reset()
right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(said, right, row["uses"], generator.reached[-2:], hasattr(patch._thread, "state"))
"""
        said, *others = run(code)
        native = "RuntimeError: Cannot call CUDAGeneratorImpl::current_seed during CUDA graph "
        native += "capture"
        assert said[1:3] == said[4:6] == [True, native]
        assert others == [True, 2, ["get", "set"], False]

    def test_other_threads_reach_the_generator(self, run: Any) -> None:
        code = """
generator = add_gpu()
up_to_2_9()
seen = []
def other():
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state + 1)
    seen.append([state.tolist(), torch.cuda.default_generators[0] is generator])
def backend(gm, inputs):
    thread = threading.Thread(target=other)
    thread.start(); thread.join()
    torch.cuda.set_rng_state(torch.full((16,), 7, dtype=torch.uint8))
    mine = torch.cuda.default_generators[0]
    seen.append([torch.cuda.get_rng_state().tolist(), mine.reached is generator.reached])
    seen.append([type(torch.cuda.default_generators[:]).__name__,
                 list(torch.cuda.default_generators) == [generator]])
    return gm.forward
with capture():
    torch.compile(forward, backend=backend)(x)
show(seen, generator.reached, generator.state.tolist())
"""
        seen, reached, state = run(code)
        assert seen == [[list(range(16)), True], [[0] * 16, True], ["tuple", True]]
        assert (reached, state) == (["get", "set"], list(range(1, 17)))

    def test_nested_compiles(self, run: Any) -> None:
        code = """
generator = add_gpu()
row = up_to_2_9()
real = torch.cuda.default_generators
inner, seen = torch.compile(lambda x: torch.sin(x) * 2, backend="eager"), []
def backend(gm, inputs):
    within = torch.cuda.default_generators
    seen.append(torch.equal(inner(x), x.sin() * 2))
    seen.append(torch.cuda.default_generators is within is not real)
    seen.append(torch.cuda.get_rng_state().tolist() == [0] * 16)
    return gm.forward
with capture():
    torch.compile(forward, backend=backend)(x)
show(seen, row["uses"], torch.cuda.default_generators is real, generator.reached)
"""
        assert run(code) == [[True, True, True], 2, True, []]

    def test_modes_do_not_see_it(self, run: Any) -> None:
        code = """
from torch.overrides import TorchFunctionMode
from torch._subclasses import FakeTensorMode
generator = add_gpu()
up_to_2_9()
seen = []
class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))
with Mode(), torch.device("meta"):
    seen.clear()
    with patch._spared(torch.cuda):
        state = torch.cuda.default_generators[0].get_state()
with torch.device("meta"), capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
def inner(y):
    with patch._spared(torch.cuda):
        return y * torch.cuda.default_generators[0].get_state().sum()
grads = torch.func.grad(lambda y: inner(y).sum())(x)
show(seen, [state.device.type, str(state.dtype), list(state.shape), type(state).__name__], right,
     grads.tolist(), generator.reached)
"""
        assert run(code) == [
            [],
            ["cpu", "torch.uint8", [16], "Tensor"],
            True,
            [0.0] * 4,
            [],
        ]

    def test_traced_reads_are_what_they_were(self, run: Any) -> None:
        # Dynamo recognizes these functions by identity. It would trace a replacement.
        code = """
def reads(x):
    y = x + 1
    torch.cuda.get_rng_state()
    return y * 2
def seen():
    torch._dynamo.reset()
    graphs.clear()
    with capture():
        said = tried(torch.compile(reads, backend=backend), x)
    return [str(said), len(graphs)]
generator = add_gpu()
row = up_to_2_9()
show(seen(), row["uses"], generator.reached)
"""
        (said, graphs), uses, reached = run(code)
        # First comes the break, and then the call's own error, which is the program's.
        assert "Cannot call CUDAGeneratorImpl::current_seed" in said
        assert graphs == 1
        assert uses >= 1
        assert reached == ["get"]
