"""What a program reads on the stand-in with memory to fill, as one line of JSON."""

import json

import torch

seed = torch.initial_seed()
torch.manual_seed(7)
expected = torch.rand(3).tolist()
torch.manual_seed(7)
torch.cuda.manual_seed_all(7)
steps = torch.arange(6, device="cuda").view(2, 3)
drawn = torch.randn(8, device="cuda")
mask = torch.ones(4, 4, dtype=torch.bool, device="cuda").tril()
flat = torch.zeros(4, device="cuda")
flat[1:3] = torch.tensor([2.0, 3.0])
large = torch.ones(1 << 20, device="cuda")
state = torch.cuda.get_rng_state()
torch.cuda.set_rng_state(state)
half = torch.full((2, 2), 1.5, device="cuda", dtype=torch.half)
weights = torch.nn.functional.dropout(torch.ones(64, device="cuda"), 0.5)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    flat.add_(0)
graph.replay()
print(
    json.dumps(
        {
            "sum": steps.sum().item(),
            "where": (steps > 3).nonzero().tolist(),
            "chosen": steps[steps % 2 == 0].tolist(),
            "mask": int(mask.sum()),
            "flat": flat.cpu().tolist(),
            "half": (half @ half).tolist(),
            "equal": torch.equal(steps, steps.clone()),
            "large": [large.sum().item(), large.nonzero().numel()],
            "drawn": bool(drawn.any()),
            "dropped": sorted(set(weights.tolist())),
            # The CPU draws what it would draw beside a GPU.
            "cpu": torch.rand(3).tolist() == expected,
            "text": str(steps[0]),
        }
    )
)
