# mypy: ignore-errors
"""A page that compiles a model once for all sessions."""

import streamlit
import torch


@streamlit.cache_resource
def load():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    return torch.compile(model, mode="reduce-overhead")


with torch.inference_mode():
    found = load()(torch.ones(2, 16))
streamlit.text(f"result {[round(value, 4) for value in found[0].tolist()]}")
