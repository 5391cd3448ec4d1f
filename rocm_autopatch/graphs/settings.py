"""Settings of torch that decide which kernels run, and that no guard of Dynamo's looks at."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _known_functions(*names: str) -> list[Callable[[], object]]:
    """These functions of torch's, without those that this version does not have."""
    found = (getattr(torch._C, name, None) for name in names)
    return [one for one in found if one is not None]


_flags = _known_functions(
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "get_default_dtype",
    "_get_deterministic_algorithms",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled",
    "_get_sdp_priority_order",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
)
# These raise once a program has set a precision that they have no name for: torch 2.9 has such.
_precision = _known_functions(
    "_get_float32_matmul_precision", "_get_cublas_allow_tf32", "_get_cudnn_allow_tf32"
)
_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
_autocast = torch.is_autocast_enabled


def current_settings() -> tuple[object, ...]:
    """The settings of this thread and process, in a form that can be compared and hashed."""
    try:
        precision = [read() for read in _precision]
    except RuntimeError:
        precision = [torch._C._get_fp32_precision_getter(*one) for one in _PRECISIONS]
    autocast = _autocast() and torch.get_autocast_dtype("cuda")
    # The order in which kinds of attention are tried is a list.
    flags = [read() for read in _flags]
    return (autocast, *precision, *[tuple(one) if type(one) is list else one for one in flags])
