# mypy: allow-subclassing-any
"""Graphs that would be silently wrong: none of them is replayed, and what is well is.

    python -m pytest tests/graphs

Without a GPU, the stand-in shows the bookkeeping alone: what is seen of a call, and what follows.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed
import stand_in
from torch.utils._python_dispatch import TorchDispatchMode

from rocm_autopatch import _RECORD, startup
from rocm_autopatch.graphs import (
    Refused,
    attempts,
    capture,
    captured_ops,
    dynamo_frames,
    graphed,
    host_backup,
    observation,
    partition,
    record,
    self_test,
    soundness,
    verification,
)

replaying = replayed.replaying
REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
KEY = "CUDA" if REAL else "CPU"
pytestmark = pytest.mark.filterwarnings("default")
# torch.Tag.cudagraph_unsafe came with 2.7.
TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
has_tag = pytest.mark.skipif(not TAGS, reason="this torch has no such tag")
trains = pytest.mark.skipif(
    startup.release(torch.__version__) < (2, 6), reason="torch has training graphs from 2.6 on"
)
STATE = {"factor": 1.0}
LIBRARY = torch.library.Library("soundness", "DEF")


def define(name: str, kernel: Callable[..., Any], key: str = KEY, tags: Any = ()) -> None:
    LIBRARY.define(f"{name}(Tensor x) -> Tensor", tags=tags)
    LIBRARY.impl(name, kernel, key)
    if key != "CompositeImplicitAutograd":
        torch.library.register_fake(f"soundness::{name}", torch.empty_like)


define("tagged", lambda x: x * STATE["factor"], tags=TAGS)
# It has the same fault, and torch knows nothing of it.
define("named", lambda x: x * STATE["factor"])
# Ops that execute a tagged one.
define("outer", lambda x: torch.ops.soundness.tagged(x) + 1)
define("composite", lambda x: torch.ops.soundness.tagged(x) + 1, "CompositeImplicitAutograd")
ops = torch.ops.soundness


class Tagged(torch.autograd.Function):
    """A backward that executes a tagged op."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return ops.tagged(gradients[0])


@pytest.fixture(autouse=True)
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    STATE["factor"] = 1.0
    monkeypatch.setattr(soundness, "distrusted", [])
    monkeypatch.setattr(soundness, "budget", soundness.CheckBudget())
    monkeypatch.setattr(captured_ops, "forbidden_here", {})
    monkeypatch.setattr(captured_ops, "_verdicts", {})
    monkeypatch.setattr(partition, "_cut", weakref.WeakKeyDictionary())
    monkeypatch.setenv("ROCM_AUTOPATCH_LOG", "debug")
    with torch.no_grad():
        yield
    if REAL:
        torch.cuda.synchronize()


@pytest.fixture(scope="module", autouse=True)
def our_graphs() -> None:
    if not REAL:
        stand_in.install()
    stand_in.graphs_in_modes()


def reasons(row: Any) -> str:
    return " | ".join([*row["plain"], *(one["reason"] for one in row["refused"]), *row["cuts"]])


def rows_of_modes() -> list[Any]:
    return [row for row in record.render_rows() if row["origin"] != "graphed"]


def compare_calls(wrapped: Any, plain: Any, calls: int = 6) -> None:
    """Each call is right, although what Python holds changes from call to call."""
    for number in range(calls):
        STATE["factor"] = 1.0 + number
        x = torch.randn(5, 8, device=GPU)
        wanted = plain(x)
        torch.testing.assert_close(wrapped(x), wanted)


# Ops that must not be captured

FORMS: dict[str, Callable[[Any], Any]] = {
    "graphed": graphed,
    "compiled": lambda f: graphed(torch.compile(f)),
    "mode": lambda f: torch.compile(f, mode="max-autotune"),
}
UNSAFE: dict[str, Callable[[Any], Any]] = {
    "tagged": lambda x: torch.relu(ops.tagged(x) + 1).sum(0),
    "middle": lambda x: torch.relu(ops.tagged(torch.sin(x)).cos() + x).sum(0),
    "outer": lambda x: ops.outer(x).sum(0),
    "composite": lambda x: ops.composite(x).sum(0),
}


# Of "middle", what is executed behind the op is enough for a graph.
NOTHING_ELSE = replayed.nothing("a tagged op is executed in each call")
PARTS = [pytest.param(one, marks=() if one == "middle" else NOTHING_ELSE) for one in UNSAFE]


@has_tag
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("program", PARTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_tagged_op(form: str, program: str, inference: bool) -> None:
    function = UNSAFE[program]
    with torch.inference_mode(inference):
        wrapped = FORMS[form](function)
        compare_calls(wrapped, function)
    rows = [wrapped.row] if form != "mode" else rows_of_modes()
    assert re.search(r"executes soundness.(tagged|outer|composite).default", reasons(rows[-1]))


@replayed.nothing("torch's own list has the op")
@pytest.mark.parametrize("form", FORMS)
def test_an_op_of_torchs_list(form: str) -> None:
    def function(x: Any) -> Any:
        helper = torch.ops.aten._fused_moving_avg_obs_fq_helper_functional
        one = torch.ones(1, device=GPU)
        whole = torch.ones(1, dtype=torch.int64, device=GPU)
        return helper(x, whole, whole, one, one, one, whole.int(), 0.9, 0, 255, 0)[0] + 1

    wrapped = FORMS[form](function)
    compare_calls(wrapped, function)
    [row] = [wrapped.row] if form != "mode" else rows_of_modes()
    assert "_fused_moving_avg_obs_fq_helper" in reasons(row)


@replayed.nothing("the op may be captured on this device, and not where the ledger has it")
@pytest.mark.parametrize("form", FORMS)
def test_an_op_of_the_ledger(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(captured_ops.forbidden_here, "aten::topk", "pytorch#184265")
    wrapped = FORMS[form](lambda x: torch.topk(x, 2).values * 2)
    compare_calls(wrapped, lambda x: torch.topk(x, 2).values * 2)
    [row] = [wrapped.row] if form != "mode" else rows_of_modes()
    assert "aten.topk" in reasons(row)


@pytest.mark.parametrize("setting", captured_ops._SETTINGS)
@pytest.mark.parametrize("name", ["soundness::named", "soundness::named.default"])
@replayed.nothing("the program has told Inductor to cut around the op")
def test_an_op_that_the_program_names(setting: str, name: str) -> None:
    from torch._inductor import config

    if not hasattr(config, setting):
        pytest.skip(f"this torch has no {setting}")
    with config.patch({setting: [name]}):
        wrapped = graphed(lambda x: ops.named(x).sum(0))
        compare_calls(wrapped, lambda x: ops.named(x).sum(0))
    assert "executes soundness.named.default" in reasons(wrapped.row)


def test_an_op_that_nobody_names() -> None:
    wrapped = graphed(lambda x: torch.sort(x).values * 2)
    for _ in range(4):
        x = torch.randn(5, 8, device=GPU)
        torch.testing.assert_close(wrapped(x), torch.sort(x).values * 2)


def test_compiled_code_is_not_compiled_anew() -> None:
    """Before torch 2.11, the guards of Dynamo fail wherever a dispatch mode is on."""
    wrapped = graphed(torch.compile(lambda x: x.sin() * 2))
    numbers = []
    for _ in range(6):
        x = torch.randn(5, 8, device=GPU)
        torch.testing.assert_close(wrapped(x), x.sin() * 2)
        numbers.append(capture.count_compiles())
    assert len({*numbers}) == 1


def hidden_part(x: Any) -> Any:
    torch._dynamo.graph_break()
    return x * STATE["factor"]


@pytest.mark.skipif(dynamo_frames.GUARDS_IGNORE_MODES, reason="this torch shows all ops")
@replayed.nothing("what is between two graphs is not seen")
def test_ops_that_are_not_seen() -> None:
    def function(x: Any) -> Any:
        return hidden_part(x.sin()).cos()

    wrapped = graphed(torch.compile(function), guards="none")
    for _ in range(4):
        x = torch.randn(5, 8, device=GPU)
        torch.testing.assert_close(wrapped(x), function(x))
    assert "breaks into several graphs" in reasons(wrapped.row)
    # Until what Dynamo has compiled is gone, all such functions are refused.
    torch._dynamo.reset()


@has_tag
@trains
def test_only_the_backward_is_refused() -> None:
    @torch.compile(mode="reduce-overhead")  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        return Tagged.apply(x.sin()).sum()

    with torch.enable_grad():
        for number in range(8):
            x = torch.randn(5, 8, device=GPU, requires_grad=True)
            STATE["factor"] = 1.0 + number
            step(x).backward()
            torch.testing.assert_close(x.grad, x.cos().detach() * STATE["factor"])
    backward = [row for row in record.render_rows() if row["name"].startswith("backward of")]
    assert backward
    assert any("executes soundness.tagged.default" in reasons(row) for row in backward)
    assert not any(row["replays"] for row in backward)


@replayed.nothing("the function reads a value")
def test_a_function_is_called_once_for_each_call() -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(1)
        return x * x.sum().item()

    wrapped = graphed(function, guards="none")
    for number in range(1, 6):
        wrapped(torch.ones(2, device=GPU))
        assert len(calls) == number
    assert "must not be captured" in reasons(wrapped.row)


@replayed.nothing("torch's list can't be read")
def test_a_torch_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.utils as utils

    monkeypatch.delattr(utils, "get_first_incompatible_cudagraph_node")
    captured_ops._torchs_question.cache_clear()
    try:
        wrapped = graphed(lambda x: x + 1)
        compare_calls(wrapped, lambda x: x + 1)
        assert "has no list of the ops" in reasons(wrapped.row)
    finally:
        captured_ops._torchs_question.cache_clear()


def test_a_compile_in_an_observed_call() -> None:
    """Dynamo compiles as without the mode that looks at ops."""
    inner = torch.compile(lambda x: torch.sin(x) * 2, backend="eager")
    turns = []

    def function(x: Any) -> Any:
        turns.append(1)
        return inner(x) if len(turns) > 1 else torch.sin(x) * 2

    compare_calls(graphed(function, guards="none"), lambda x: torch.sin(x) * 2, calls=8)


# Memory that nobody owns


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("form", ["function", "module", "compiled"])
def test_autocast(form: str, verify: bool, around: bool) -> None:
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(GPU)
    forms: dict[str, Any] = {
        "function": lambda x: model(x),
        "module": model,
        "compiled": torch.compile(model, backend="inductor" if REAL else "eager"),
    }
    wrapped = graphed(forms[form], verify=verify, guards="none")

    def cast() -> Any:
        return torch.autocast(GPU.type, torch.bfloat16)

    outer = cast() if around else None
    if outer:
        outer.__enter__()
    rubbish = []
    for number in range(12):
        x = torch.randn(8, 64, device=GPU)
        with cast():
            got = wrapped(x).float()
        if number == 7 and outer:
            outer.__exit__(None, None, None)
        with cast():
            wanted = model(x).float()
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
        rubbish = [torch.full((64, 64), 7.0, dtype=torch.bfloat16, device=GPU) for _ in range(64)]
    del rubbish
    for one in wrapped._graphs.signatures.values():
        assert not one.state.borrowed, "a cast of a weight is autocast's own"


def test_a_tensor_that_is_gone() -> None:
    held = {"table": torch.ones(8, device=GPU)}

    class Holder:
        def __call__(self, x: Any) -> Any:
            return x + held.get("table", 0)

    wrapped = graphed(Holder(), guards="none")
    for _ in range(4):
        assert (wrapped(torch.zeros(8, device=GPU)) == 1).all()
    assert wrapped.row["replays"] == 2
    del held["table"]
    for _ in range(3):
        assert (wrapped(torch.zeros(8, device=GPU)) == 0).all()
    assert "a tensor is gone" in reasons(wrapped.row)


# What the caller is handed

SHARED: dict[str, Callable[[Any], Any]] = {
    "conjugate": lambda x: (lambda y: (y, y.conj()))(torch.complex(x, x * 3)),
    "negative": lambda x: (lambda y: (y.real, y.conj().imag))(torch.complex(x, x * 3)),
    "alone": lambda x: torch.complex(x, x * 3).conj(),
    "part": lambda x: (lambda y: (y[1:], y[:-1].conj()))(torch.complex(x, x * 3)),
    "strided": lambda x: torch.complex(x, x * 3)[::2].conj(),
}


@pytest.mark.parametrize("outputs", ["clone", "alias"])
@pytest.mark.parametrize("program", SHARED)
def test_conjugates(program: str, outputs: str) -> None:
    function = SHARED[program]
    wrapped = graphed(function, outputs=outputs)
    for number in range(6):
        x = torch.arange(4.0, device=GPU) + number
        got, wanted = (torch.utils._pytree.tree_leaves(f(x)) for f in (wrapped, function))
        for one, other in zip(got, wanted):
            assert torch.equal(one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg())
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        del got, one


@pytest.mark.parametrize("program", SHARED)
def test_conjugates_in_the_mode(program: str) -> None:
    function = SHARED[program]
    compiled = torch.compile(function, mode="max-autotune", backend="inductor")
    for number in range(5):
        x = torch.arange(4.0, device=GPU) + number
        got, wanted = (torch.utils._pytree.tree_leaves(f(x)) for f in (compiled, function))
        for one, other in zip(got, wanted):
            assert torch.equal(one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg())


def test_a_conjugate_as_an_argument() -> None:
    def function(x: Any) -> Any:
        return x * (2 if x.is_conj() else 3), x.is_conj()

    wrapped = graphed(function)
    for number in range(8):
        x = torch.complex(torch.randn(4, device=GPU), torch.randn(4, device=GPU))
        x = x.conj() if number % 2 else x
        got, wanted = wrapped(x), function(x)
        assert got[1] == wanted[1]
        torch.testing.assert_close(got[0], wanted[0])


@replayed.nothing("what the caller is handed differs from a plain call")
def test_the_result_that_is_handed_out_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from rocm_autopatch.graphs.buffers import GraphOutputs

    take = GraphOutputs.take
    monkeypatch.setattr(GraphOutputs, "take", lambda *args: take(*args) + 1)
    wrapped = graphed(lambda x: x * 2, verify=True, guards="none")
    for _ in range(4):
        x = torch.randn(4, device=GPU)
        assert torch.equal(wrapped(x), x * 2)
    assert "differs from a plain call" in reasons(wrapped.row)


# Values that a plain call does not determine


def test_one_element_with_any_stride() -> None:
    """An argument that was expanded has one, and is compared with what it was."""
    wrapped = graphed(lambda x: x * 2)
    for _ in range(4):
        x = torch.ones((), device=GPU).expand(1)
        assert wrapped(x) == 2
    assert wrapped.row["replays"] == 2


def unwritten(x: Any) -> Any:
    return x + 1, torch.empty(4, dtype=torch.int64, device=GPU)


def partly_written(x: Any) -> Any:
    out = torch.empty(8, device=GPU)
    out[:4] = x
    return out


def from_call_to_call(x: Any) -> Any:
    numbers.append(len(numbers))
    return x + 1, torch.full((3,), numbers[-1], device=GPU)


numbers: list[int] = []


def computed_from_unwritten(x: Any) -> Any:
    return partly_written(x) * 2


UNDETERMINED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "never written": (unwritten, lambda result: result[0]),
    "partly written": (partly_written, lambda result: result[:4]),
}


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in, what is only allocated gets other values in each call, as on a GPU."""
    count = iter(range(100, 10**6))
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *args, **more: (
            empty(*args, **more).fill_(next(count))
            if not torch._C._len_torch_dispatch_stack()
            else empty(*args, **more)
        ),
    )


@pytest.mark.parametrize("program", UNDETERMINED)
def test_unwritten_values_refuse_no_graph(program: str, spoilt: None) -> None:
    function, written = UNDETERMINED[program]
    wrapped = graphed(function, verify=True, guards="none")
    for _ in range(5):
        x = torch.randn(4, device=GPU)
        torch.testing.assert_close(written(wrapped(x)), written(function(x)))
    assert wrapped.row["replays"] == 3


@pytest.mark.parametrize("program", [*UNDETERMINED, "computed from it"])
@replayed.nothing("a replay is wrong")
def test_unwritten_values_hide_nothing(
    program: str, spoilt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if REAL:
        pytest.skip("the stand-in makes wrong replays")
    monkeypatch.setattr(stand_in.StandIn, "wrong", True)
    computed = computed_from_unwritten, UNDETERMINED["partly written"][1]
    function, written = UNDETERMINED.get(program, computed)
    wrapped = graphed(function, verify=True, guards="none")
    for _ in range(5):
        x = torch.randn(4, device=GPU)
        torch.testing.assert_close(written(wrapped(x)), written(function(x)))
    assert "differs from a plain call" in reasons(wrapped.row)


@replayed.nothing("compares values only")
def test_what_explains_a_difference() -> None:
    def tell(got: Any, *plain: Any) -> bool:
        return verification._is_undetermined(
            torch.tensor(got), [torch.tensor(one) for one in plain]
        )

    # Never written: each further call has what its memory was filled with.
    assert tell([5, 9], [5, 8], [5, 1], [5, 2])
    assert tell([5.0, 9.0], [5.0, 8.0], [5.0, 1.0], [5.0, 2.0])
    assert tell([5.0, 9e9], [5.0, 8.0], [5.0, 1.0], [5.0, 2.0])
    assert not tell([6.0, 9.0], [5.0, 8.0], [5.0, 1.0], [5.0, 2.0])
    # Equal in all plain calls.
    assert not tell([6], [5], [5], [5])
    # Another one in each call: whole numbers may be anything, others about as far apart.
    assert tell([99], [5], [6], [7])
    assert tell([5.03], [5.0], [5.01], [4.98])
    assert not tell([9.0], [5.0], [5.01], [4.98])
    # Written with the same value in one of the calls only.
    assert not tell([9.0], [1.0], [1.0], [1.0])
    # Where one row varies by itself, another one may: about as many elements, about as far apart.
    none, row = [[0.0] * 3] * 9, [[4.0] * 3]
    same = [*none, [0.0] * 3]
    assert tell([*none, [5.0] * 3], same, same, same, [*row, *none])
    assert not tell([*none, [50.0] * 3], same, same, same, [*row, *none])
    assert not tell([[5.0] * 3] * 10, same, same, same, [*none, [4.0, 0.0, 0.0]])
    assert tell([7, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 9])
    assert not tell([70, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 9])
    assert not tell([7, 7, 7, 7, 7, 0], [0] * 6, [0] * 6, [0] * 6, [0, 0, 0, 0, 0, 9])
    # By itself: not by what its memory was filled with, and not without a limit.
    assert not tell([*none, [5.0] * 3], same, same, [*row, *none], [*row, *none])
    assert not tell([1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, 4.0], [0.0, 4.0])
    for endless in (float("inf"), float("nan")):
        assert not tell([1e30, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, endless])
    # Another type is no value.
    assert not verification._is_undetermined(
        torch.zeros(1), [torch.zeros(1, dtype=one) for one in (torch.float, torch.double) * 2]
    )


class LargestTensor(TorchDispatchMode):
    """Notes how many bytes the largest tensor has that an op gives."""

    bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        sizes = [
            one.nbytes
            for one in torch.utils._pytree.tree_leaves(made)
            if isinstance(one, torch.Tensor)
        ]
        self.bytes = max([self.bytes, *sizes])
        return made


@replayed.nothing("compares values only")
def test_comparisons_of_small_tensors_need_little_memory() -> None:
    """For more than 1 MiB at once, torch's allocator takes 20 MiB from the device."""
    got = torch.randn(256, 1000, device=GPU)
    turned = torch.randn(1000, 256, device=GPU).t()
    plain = [got.clone() for _ in range(7)]
    for number, one in enumerate(plain):
        one[0, 0] += number
    if REAL:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
    with LargestTensor() as largest:
        assert verification._describe_difference(plain[1], got).startswith("1 of 256000 elements")
        observation._checksum_of(got)
        observation._checksum_of(turned)
    assert 1_000_000 < largest.bytes <= 1 << 20
    if REAL:
        assert torch.cuda.max_memory_reserved() - before < 20 << 20


@replayed.nothing("compares values only")
def test_any_type_can_be_compared() -> None:
    for name in ("float8_e5m2", "bfloat16", "uint16", "int64", "bool", "complex64"):
        dtype = getattr(torch, name)
        one, other = (torch.tensor(values).to(dtype) for values in ([1, 1], [1, 0]))
        assert "1 of 2 elements" in verification._describe_difference(one, other)
        assert not verification._is_undetermined(one, [other] * 7)


@replayed.nothing("calls nothing")
def test_samples_are_taken_while_nobody_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """To copy them to the host waits for the device, which breaks others' captures on ROCm."""
    inside: list[int] = []
    copies: list[bool] = []
    to = torch.Tensor.to

    @contextmanager
    def alone() -> Iterator[None]:
        inside.append(1)
        yield
        inside.pop()

    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        copies.append(bool(inside))
        return to(self, *args, **kwargs)

    monkeypatch.setattr(verification, "no_other", alone)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    results = [torch.arange(4.0, device=GPU) + number for number in range(8)]
    calls = iter(results)
    pool = stand_in.StandIn(GPU)
    checked = verification.ResultVerification(
        pool, False, lambda prepare: [next(calls), torch.empty(2, device="meta")], lambda: None
    )
    checked.compare([results[7], torch.empty(2, device="meta")])
    assert len(copies) > 8
    assert all(copies)


def test_other_waits_are_made_while_nobody_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of an observed call, and copies to the host and back."""
    inside: list[int] = []
    waits: list[bool] = []

    @contextmanager
    def alone() -> Iterator[None]:
        inside.append(1)
        yield
        inside.pop()

    checksum, copy_ = observation._checksum_of, torch.Tensor.copy_

    def wait(tensor: Any) -> int:
        waits.append(bool(inside))
        return checksum(tensor)

    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        waits.append(bool(inside))
        return copy_(self, *args, **kwargs)

    monkeypatch.setattr(capture, "no_other", alone)
    monkeypatch.setattr(host_backup, "no_other", alone)
    with monkeypatch.context() as patched:
        patched.setattr(observation, "_checksum_of", wait)
        wrapped = graphed(lambda x: x * 2, verify=True)
        for _ in range(4):
            wrapped(torch.ones(4, device=GPU))
    assert len(waits) > 1
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    tensor = torch.ones(4, device=GPU)
    kept = host_backup.HostBackup([tensor], [0])
    kept.copy_leaves()
    kept.restore()
    assert len(waits) > 4
    assert all(waits)


@pytest.mark.parametrize(("varies", "calls"), [(1, 7), (2, 4), (3, 4), (5, 6), (9, 7)])
@replayed.nothing("compares values only")
def test_calls_are_made_until_one_varies(varies: int, calls: int) -> None:
    made: list[Any] = []

    def call(prepare: Callable[[], None]) -> Any:
        prepare()
        made.append(torch.zeros(100, device=GPU))
        made[-1][7] = 5.0 if len(made) == varies + 1 else 0.0
        return made[-1]

    pool = SimpleNamespace(device=torch.device(GPU))
    compared = verification.ResultVerification(pool, False, call, lambda: None)  # type: ignore[arg-type]
    replay = torch.zeros(100, device=GPU)
    replay[3] = 4.0
    # Only what varies among calls with the same values in unwritten memory counts.
    with nullcontext() if 1 < varies < calls else pytest.raises(Refused):
        assert compared.compare(replay)
    assert len(made) == calls


def test_the_order_is_that_of_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may capture in the same memory while a plain call is made."""
    orders: list[int] = []
    call_before, record_graph = (
        getattr(attempts.CaptureAttempt, name) for name in ("_call_before", "_record_graph")
    )

    def calling(self: Any, undo: Any) -> None:
        call_before(self, undo)
        orders.append(self._memory.order())

    def recording(self: Any) -> Any:
        captured = record_graph(self)
        orders.append(captured.order)
        return captured

    monkeypatch.setattr(attempts.CaptureAttempt, "_call_before", calling)
    monkeypatch.setattr(attempts.CaptureAttempt, "_record_graph", recording)
    compare_calls(graphed(lambda x: x * 2, verify=True, guards="none"), lambda x: x * 2, 4)
    assert len(orders) == 2
    assert orders == sorted(orders)


def test_another_thread_captures_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the order of both is not known, and this call is a plain one."""
    take_order = attempts.CaptureAttempt._take_order
    taken: list[int] = []

    def taking(self: Any) -> None:
        take_order(self)
        taken.append(self._order)
        if len(taken) == 2:
            self._memory.order()

    monkeypatch.setattr(attempts.CaptureAttempt, "_take_order", taking)
    wrapped = graphed(lambda x: x * 2, verify=False, guards="none")
    compare_calls(wrapped, lambda x: x * 2, 5)
    assert len(taken) == 4
    assert wrapped.row["plain"]["another thread captures in the same memory"] == 1
    assert wrapped.row["replays"] == 2


def test_further_calls_find_no_graph_in_their_way(
    spoilt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no memory for what a plain call makes beside what a graph has made."""
    graphs: list[Any] = []
    found: list[bool] = []
    record_graph = attempts.CaptureAttempt._record_graph
    call_again = verification.ResultVerification.call_again

    def recording(self: Any) -> Any:
        graphs.append(record_graph(self))
        return graphs[-1]

    def calling(self: Any) -> None:
        found.extend(hasattr(one, "outputs") for one in graphs)
        call_again(self)

    monkeypatch.setattr(attempts.CaptureAttempt, "_record_graph", recording)
    monkeypatch.setattr(verification.ResultVerification, "call_again", calling)
    wrapped = graphed(unwritten, verify=True, check=False, guards="none")
    for _ in range(5):
        x = torch.randn(4, device=GPU)
        assert torch.equal(wrapped(x)[0], x + 1)
    assert wrapped.row["replays"] == 3
    assert found == [False]
    assert [hasattr(one, "outputs") for one in graphs] == [False, True]


@trains
def test_attention_without_dropout() -> None:
    @torch.compile(mode="reduce-overhead")  # type: ignore[untyped-decorator]
    def attend(x: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).sum()

    with torch.enable_grad():
        for _ in range(8):
            x = torch.randn(2, 4, 16, 16, device=GPU, requires_grad=True)
            (wanted,) = torch.autograd.grad(
                torch.nn.functional.scaled_dot_product_attention(x, x, x).sum(), x
            )
            attend(x).backward()
            torch.testing.assert_close(x.grad, wanted, rtol=1e-3, atol=1e-3)
    assert all(row["graphs"] for row in rows_of_modes()), [reasons(r) for r in rows_of_modes()]


# Checks of later replays


class Wrong:
    """Makes replays of the stand-in wrong from some number on."""

    def __init__(self, wrapped: Any, first: int) -> None:
        self.wrapped, self.first = wrapped, first

    def __call__(self, x: Any) -> Any:
        stand_in.StandIn.wrong = self.wrapped.row["replays"] + 1 >= self.first
        try:
            return self.wrapped(x)
        finally:
            stand_in.StandIn.wrong = False


@pytest.mark.skipif(REAL, reason="the stand-in makes wrong replays")
@pytest.mark.parametrize("kind", ["pure", "changes", "draws"])
@pytest.mark.parametrize("first", [2, 17, 64, 3, 5, 33])
def test_a_later_fault_ends_all_graphs(
    kind: str, first: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def function(x: Any) -> Any:
        if kind == "changes":
            x.add_(1)
        return x * 2 + (torch.rand(4, device=GPU) if kind == "draws" else 0)

    wrapped, other = (graphed(function, verify=True, check=True) for _ in range(2))
    for _ in range(5):
        other(torch.zeros(4, device=GPU))
    wrong = 0
    calling = Wrong(wrapped, first)
    for number in range(150):
        x = torch.full((4,), float(number), device=GPU)
        same = x.clone()
        state = torch.get_rng_state()
        got = calling(x)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        wanted = function(same)
        assert torch.equal(torch.get_rng_state(), after)
        wrong += not (torch.equal(got, wanted) and torch.equal(x, same))
    assert wrong < 64
    assert wrapped.row["replays"] < 150
    assert soundness.distrusted
    said = capfd.readouterr().err
    assert said.count("graphs are wrong in this process") == 1
    replays = other.row["replays"]
    other(torch.zeros(4, device=GPU))
    assert other.row["replays"] == replays
    assert "graphs are wrong in this process" in reasons(other.row)
    assert any("graphs are wrong" in one for one in _RECORD["errors"])
    _RECORD["errors"].clear()


@pytest.mark.parametrize(
    ("got", "wanted", "said"),
    [
        ([1.0, 2.0, 3.5], [1.0, 2.5, 3.0], "2 of 3 elements of torch.float32, by 0.5 at most"),
        ([True, False], [True, True], "1 of 2 elements of torch.bool, by 1 at most"),
        ([1, 2], [1.0, 2.0], "torch.int64 of shape [2] instead of torch.float32 of shape [2]"),
        ([1.0], [1.0, 1.0], "torch.float32 of shape [1] instead of torch.float32 of shape [2]"),
        ([float("nan"), 1.0], [float("nan"), 1.0 + 1e-7], None),
        ([1j], [1j + 3], "1 of 1 elements of torch.complex64, by 3 at most"),
    ],
)
@replayed.nothing("it compares two tensors")
def test_what_is_said_of_a_difference(got: Any, wanted: Any, said: str | None) -> None:
    """It leaves nothing that waits for a collection, and holds the results of who asks."""

    class Result:
        pass

    def compare() -> tuple[dict[int, str], weakref.ref[Result]]:
        result = Result()
        one, other = torch.tensor(wanted, device=GPU), torch.tensor(got, device=GPU)
        return verification._differences_of([one], [other]), weakref.ref(result)

    gc.disable()
    try:
        found, result = compare()
        assert found == ({} if said is None else {0: said})
        assert result() is None
    finally:
        gc.enable()


@pytest.mark.skipif(REAL, reason="the stand-in makes wrong replays")
def test_a_graph_that_was_never_compared_is_refused_alone() -> None:
    wrapped, other = (graphed(lambda x: x * 2, verify=False, check=True) for _ in range(2))
    for _ in range(6):
        x = torch.randn(4, device=GPU)
        other(x)
        got = Wrong(wrapped, 2)(x)
    assert torch.equal(got, x * 2)
    assert "a replay differs from a plain call" in reasons(wrapped.row)
    assert (wrapped.row["replays"], other.row["replays"]) == (2, 4)
    assert not soundness.distrusted


def test_checks_of_what_is_well() -> None:
    wrapped = graphed(lambda x: x * 2, check=True)
    for _ in range(70):
        x = torch.randn(4, device=GPU)
        assert torch.equal(wrapped(x), x * 2)
    [graph] = wrapped.row["graphs"]
    # The 2nd, 4th, 8th, 16th, 32nd and 64th of 68.
    assert (graph["replays"], graph["checks"]) == (68, 6)


def test_what_changes_a_buffer_is_not_checked() -> None:
    module = torch.nn.BatchNorm1d(4).to(GPU)
    wrapped = graphed(module, check=True)
    for _ in range(8):
        wrapped(torch.randn(3, 4, device=GPU))
    [graph] = wrapped.row["graphs"]
    assert (graph["replays"], graph["checks"]) == (6, 0)
    assert module.num_batches_tracked == 8


@replayed.nothing("no program")
def test_the_time_of_checks() -> None:
    budget = soundness.CheckBudget()
    assert budget.allows_check(1, 64)
    assert budget.allows_check(1, 128)
    budget.add_check(1, 128, 1.0)
    # 1 % of 200 seconds is twice of what one check takes, and another one takes as long.
    budget._began -= 199
    assert not budget.allows_check(1, 192)
    budget._began -= 2
    assert budget.allows_check(1, 192)


@replayed.nothing("no program")
def test_which_replays_are_checked() -> None:
    number, found = 1, []
    while number < 300:
        number = soundness.next_check(number)
        found.append(number)
    assert found == [2, 4, 8, 16, 32, 64, 128, 192, 256, 320]


@replayed.nothing("the self-test finds a fault")
def test_the_self_test_comes_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tested: list[Any] = []

    def find_faults(device: Any) -> list[str]:
        tested.append(device)
        return ["memset: 3 of 513 values are stale"]

    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    monkeypatch.setattr(soundness, "_tested", set())
    monkeypatch.setattr(soundness, "_obey_ledger", lambda: None)
    monkeypatch.setattr(self_test, "find_faults", find_faults)
    first, second = (graphed(lambda x: x * 2) for _ in range(2))
    for _ in range(5):
        for wrapped in (first, second):
            x = torch.randn(4, device=GPU)
            assert torch.equal(wrapped(x), x * 2)
    assert tested == [GPU]
    assert "memset: 3 of 513 values are stale" in reasons(first.row)
    assert capfd.readouterr().err.count("graphs are wrong in this process") == 1
    _RECORD["errors"].clear()


@replayed.nothing("several ranks")
def test_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "_ranks", "sglang#24011: the watchdog ends the process")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    wrapped = graphed(lambda x: x * 2, guards="none")
    compare_calls(wrapped, lambda x: x * 2)
    assert "sglang#24011" in reasons(wrapped.row)


@replayed.nothing("no program")
@pytest.mark.parametrize("wanted", ["on", "off"])
def test_a_policy_decides(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "applied", "wanted": wanted}
    monkeypatch.setitem(_RECORD["patches"], ("graph_check", "torch"), {"entries": [row]})
    assert graphed(lambda x: x)._graphs.options.check == (wanted == "on")


@replayed.nothing("no program")
@pytest.mark.parametrize("hip", [None, "7.2.0"])
def test_without_a_policy_rocm_decides(hip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert graphed(lambda x: x)._graphs.options.check == bool(hip)
