"""Graphs: a function that launches many GPU kernels, replayed as one HIP or CUDA graph.

:func:`graphed` wraps a model or a function, compiled or not. By a policy,
``torch.compile(mode="reduce-overhead")`` uses the same graphs (``mode.py``). On ROCm, Inductor's
own capture is unsafe, and capture by hand is not. See docs/graphs.md.

This package imports torch, so the start of an interpreter must not import it.
"""

from rocm_autopatch.graphs.buckets import Bucket
from rocm_autopatch.graphs.refusal import Refused
from rocm_autopatch.graphs.wrapper import GraphedFunction, graphed

__all__ = ["Bucket", "GraphedFunction", "Refused", "graphed"]
