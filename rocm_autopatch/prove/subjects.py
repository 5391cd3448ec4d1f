"""What is tried: each mode and switch as a policy of its own, and the mode that programs ask for.

The base is ``default``. All ratios are to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BASE = "default"
INDUCTOR = "torch._inductor.config"


@dataclass(frozen=True)
class Subject:
    """A subject of evidence: its policy without ``version``, and the mode of its programs.

    ``group`` is what trials name in their ABOUT. ``keys`` are the config keys without which torch
    does not have it. With ``gpu`` it captures graphs, which there are on GPUs only. ``about`` are
    further entries of policies, which its trials say something of.
    """

    name: str
    group: str
    mode: str | None
    policy: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    gpu: bool = False
    about: tuple[str, ...] = ()


def _mode(
    name: str, mode: str, group: str = "modes", about: tuple[str, ...] = (), **policy: Any
) -> Subject:
    captures = mode in ("reduce-overhead", "max-autotune")
    said = {"extends": ["safe"], **policy}
    return Subject(name, group, mode, said, gpu=captures, about=about)


def _switch(name: str, key: str, value: Any, about: tuple[str, ...] = ()) -> Subject:
    entry = {"pin": value, "insist": True}
    policy = {"extends": ["safe"], "config": {INDUCTOR: {key: entry}}}
    return Subject(name, "switches", None, policy, (f"{INDUCTOR}.{key}",), about=(key, *about))


# A search among all libraries and templates that torch itself has.
_BACKENDS = {"pin": "ATEN,TRITON,CPP", "insist": True}
_GEMMS = "max_autotune_gemm_backends"
_ALL_BACKENDS = {INDUCTOR: {_GEMMS: _BACKENDS}}
_SEARCH = "max-autotune-no-cudagraphs"
_GRAPHED = {"max-autotune": "graphs"}
_SEARCHES = ("max_autotune", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM")
_CAPTURE = ("reduce-overhead", "triton.cudagraphs", "triton.cudagraph_trees")
# What safe leaves as torch has it, and the limit of recompiles.
_OF_TORCH = (
    *("epilogue_fusion", "pattern_matcher", "reorder_for_locality", "shape_padding"),
    "recompile_limit",
)

SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for subject in (
        Subject(BASE, "modes", None, {"extends": ["safe"]}, about=_OF_TORCH),
        _mode("graphs", "reduce-overhead", compile_modes={"reduce-overhead": "graphs"}),
        # Inference is the same code as of graphs.
        _mode(
            "training-graphs",
            "reduce-overhead",
            "training",
            compile_modes={"reduce-overhead": "training-graphs"},
        ),
        # Torch alone: a policy that changes nothing.
        _mode("cudagraphs", "reduce-overhead", about=_CAPTURE, extends=[]),
        _mode("autotune", _SEARCH, "search", _SEARCHES),
        _mode("autotune-graphs", "max-autotune", "search", compile_modes=_GRAPHED),
        _mode("max-autotune", "max-autotune", "search", ("max-autotune",), extends=[]),
        _mode("gemm-templates", _SEARCH, "search", (_GEMMS,), config=_ALL_BACKENDS),
        _switch("coordinate_descent_tuning", "coordinate_descent_tuning", True),
        _switch("aggressive_fusion", "aggressive_fusion", True),
        _switch("max_fusion_size", "max_fusion_size", 128),
        _switch("benchmark_kernel", "benchmark_kernel", True),
        _switch("multi_kernel", "triton.multi_kernel", 1),
        _switch("freezing", "freezing", True),
        _switch("memory_planning", "memory_planning", True),
        _switch(
            "max_autotune_pointwise",
            "max_autotune_pointwise",
            True,
            ("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",),
        ),
        Subject(
            "expandable_segments",
            "switches",
            None,
            {
                "extends": ["safe"],
                "env": {"PYTORCH_ALLOC_CONF": {"set": "expandable_segments:True", "insist": True}},
            },
            about=("PYTORCH_ALLOC_CONF",),
        ),
    )
}
