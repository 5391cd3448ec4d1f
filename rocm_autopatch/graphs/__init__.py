"""Graphs: a function that launches many GPU kernels, replayed as one HIP or CUDA graph.

:func:`graphed` wraps a model or a function, compiled or not. A policy may have
``torch.compile(mode="reduce-overhead")`` run through the same graphs (``mode.py``), because
Inductor's own capture is what is unsafe on ROCm, and capturing by hand is not. docs/graphs.md.

Imports torch: nothing here belongs to the start of an interpreter.
"""

from rocm_autopatch.graphs.buckets import Bucket
from rocm_autopatch.graphs.refusal import Refused
from rocm_autopatch.graphs.wrapper import Graphed, graphed

__all__ = ["Bucket", "Graphed", "Refused", "graphed"]
