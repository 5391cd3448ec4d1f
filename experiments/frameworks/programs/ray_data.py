# requires: ray[data]
# mypy: ignore-errors
"""Ray Data's map_batches with an actor that compiles its model."""

import logging

import numpy
import ray
import torch


class Predict:
    def __init__(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        )
        self.model = torch.compile(model, mode="reduce-overhead")

    def __call__(self, batch):
        with torch.inference_mode():
            found = self.model(torch.tensor(batch["data"], dtype=torch.float32))
        return {"result": found.sum(dim=1).numpy()}


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
ray.data.DataContext.get_current().enable_progress_bars = False
# It writes names that are new in each run.
logging.getLogger("ray.data").setLevel(logging.WARNING)
rows = numpy.linspace(0, 1, 8 * 16).reshape(8, 16)
found = (
    ray.data.from_numpy(rows)
    .map_batches(Predict, batch_size=4, compute=ray.data.ActorPoolStrategy(size=1))
    .take_all()
)
print("results", sorted(round(float(row["result"]), 4) for row in found))
ray.shutdown()
