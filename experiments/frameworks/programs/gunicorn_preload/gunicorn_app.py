# mypy: ignore-errors
"""A WSGI application whose model is compiled in the worker that is first asked."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
compiled = torch.compile(model, mode="reduce-overhead")


def application(environ, start_response):
    with torch.inference_mode():
        found = compiled(torch.ones(2, 16))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"result {[round(value, 4) for value in found[0].tolist()]}".encode()]
