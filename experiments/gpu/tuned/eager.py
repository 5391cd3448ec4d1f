"""No compile at all: no switch of a compiler can help."""

import argparse
import time

import timing
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="for a CPU")
small = parser.parse_args().small
device = "cpu" if small else "cuda"
torch.manual_seed(0)
torch.set_num_threads(1)
size = 64 if small else 4096
matrix = torch.randn(size, size, device=device, dtype=torch.float32 if small else torch.bfloat16)


def product() -> tuple[float, float]:
    """The seconds of a product, and its sum."""
    began = time.perf_counter()
    total = (matrix @ matrix).float().sum().item()
    return time.perf_counter() - began, total


product()
seconds, total = timing.median_of(product)
print(f"product: {seconds * 1e3:.5f} ms")
print(f"sum: {total:.3f}")
