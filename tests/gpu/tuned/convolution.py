"""A convolution net of timm."""

import argparse
import statistics
import time

import timm
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="for a CPU")
small = parser.parse_args().small
device = "cpu" if small else "cuda"
torch.manual_seed(0)
torch.set_num_threads(1)
net = timm.create_model("resnet10t" if small else "resnet50", num_classes=100).to(device).eval()
call = torch.compile(net)
images = torch.randn(1, 3, 64, 64) if small else torch.randn(32, 3, 224, 224, device=device)
times = []
with torch.no_grad():
    for _ in range(5 if small else 40):
        began = time.perf_counter()
        scores = call(images)
        total = scores.sum().item()
        times.append(time.perf_counter() - began)
print(f"batch: {statistics.median(times[2:]) * 1e3:.5f} ms")
torch.save(scores.cpu(), "convolution.pt")
