# mypy: ignore-errors
"""A deployment whose replica compiles its model at the first request."""

import torch
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0.5})
class Predict:
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        )
        self.model = torch.compile(model, mode="reduce-overhead")

    def __call__(self, request):
        with torch.inference_mode():
            found = self.model(torch.ones(2, 16))
        return f"result {[round(value, 4) for value in found[0].tolist()]}"


application = Predict.bind()
