# mypy: ignore-errors
"""An Interface whose function compiles at its first call, in a thread of Gradio's."""

import gradio
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
compiled = torch.compile(model, mode="reduce-overhead")


def predict(value):
    with torch.inference_mode():
        found = compiled(torch.full((2, 16), float(value)))
    return f"result {[round(value, 4) for value in found[0].tolist()]}"


gradio.Interface(predict, gradio.Number(), gradio.Textbox()).launch(quiet=True)
