"""Triton's own AMD compiler."""

from triton.backends.amd.compiler import HIPBackend as HIPBackend
