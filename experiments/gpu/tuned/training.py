"""A training step of a small transformer: forward, backward, AdamW."""

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
width, layers, batch, length = (32, 1, 2, 16) if small else (512, 1, 64, 256)
layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
net = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
head = torch.nn.Linear(width, 100).to(device)
parameters = [*net.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4)
words = torch.randn(batch, length, width, device=device)
wanted = torch.randint(0, 100, (batch, length), device=device)


def loss_of(words: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    outputs = head(net(words)).flatten(0, 1)
    loss: torch.Tensor = torch.nn.functional.cross_entropy(outputs, wanted.flatten())
    return loss


call = torch.compile(loss_of)


def step() -> tuple[float, float]:
    """The seconds of a step, and its loss."""
    began = time.perf_counter()
    loss = call(words, wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    value = loss.item()
    return time.perf_counter() - began, value


for _ in range(5):
    loss = step()[1]
seconds = timing.median_of(step)[0]
print(f"step: {seconds * 1e3:.5f} ms")
print(f"loss: {loss:.6f}")
