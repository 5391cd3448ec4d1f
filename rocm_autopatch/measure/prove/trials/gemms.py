"""GEMMs with biases in the shapes of large models: 16 bits, and FP8 where there is any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Inputs, Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as DataType

ABOUT = ("modes", "search", "coordinate_descent_tuning", "benchmark_kernel")
# Rows, and the sizes of the weights: a decode step, a prompt, and a size that is not aligned.
SHAPES = ((1, 4096, 14336), (512, 4096, 4096), (64, 4093, 1021))


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    parts = [
        _linear_calls(bench, dtype, *(size if bench.gpu else max(1, size // 64) for size in shape))
        for dtype in (torch.float16, torch.bfloat16)
        for shape in SHAPES
    ]
    if bench.gpu:
        parts += _fp8_calls(bench)
    # Inductor's graphs of one compile write the results of the next into the same memory.
    return lambda number: [part(number).clone() for part in parts]


def _linear_calls(bench: TrialBench, dtype: DataType, rows: int, inner: int, outer: int) -> Inputs:
    layer = bench.module(bench.torch.nn.Linear(inner, outer), dtype)
    compiled = bench.compile(layer, dynamic=False)
    inputs = bench.inputs(rows, inner, dtype=dtype)
    return lambda number: compiled(inputs(number))


def _fp8_calls(bench: TrialBench) -> list[Inputs]:
    torch = bench.torch
    # MI300 has types of its own, which end at 240.
    fnuz = str(getattr(torch.version, "hip", None) or "") and "gfx94" in str(
        getattr(torch.cuda.get_device_properties(0), "gcnArchName", "")
    )
    dtype = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    weight = torch.randn(4096, 4096, device="cuda").to(dtype)
    bias = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    one = torch.ones((), device="cuda")

    def multiply(x: Tensor) -> Tensor:
        product: Tensor = torch._scaled_mm(
            x.to(dtype), weight.t(), one, one / 64, bias=bias, out_dtype=torch.bfloat16
        )
        return product

    inputs = bench.inputs(64, 4096)
    try:
        multiply(inputs(0))
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return []  # This GPU or this torch has none.
    compiled = bench.compile(multiply, dynamic=False)
    return [lambda number: compiled(inputs(number))]
