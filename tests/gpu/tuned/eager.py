"""No compile at all: no switch of a compiler can help."""

import argparse
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="for a CPU")
small = parser.parse_args().small
device = "cpu" if small else "cuda"
torch.manual_seed(0)
torch.set_num_threads(1)
size = 64 if small else 4096
matrix = torch.randn(size, size, device=device)
times = []
for _ in range(10 if small else 60):
    began = time.perf_counter()
    product = matrix @ matrix
    total = product.sum().item()
    times.append(time.perf_counter() - began)
print(f"product: {statistics.median(times[3:]) * 1e3:.5f} ms")
print(f"sum: {total:.3f}")
