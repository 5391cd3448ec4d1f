"""Fill caches for a program that trains, where zeros would end it.

    rocm-autopatch cache fill --for mi300x -- python fill_training_step.py

A loss is zero here, and so are gradients: a program that looks at them (a loss that is no number
above 0, a scaler that skips steps, a batch that is drawn by what a model said) stops before it has
compiled all. This calls what the program compiles, with its shapes and its dtypes, and looks at
nothing. Keys come from the code, so it is imported from the program; only the loop is another one.
"""

import torch
from train import BATCH, SIZE, make_model, make_optimizer, training_step

model = make_model().to("cuda")
optimizer = make_optimizer(model)
step = torch.compile(training_step)
for rows in (BATCH, BATCH // 2):  # as the last batch of an epoch
    data = torch.rand(rows, SIZE, device="cuda")
    labels = torch.zeros(rows, dtype=torch.long, device="cuda")
    step(model, data, labels)
    optimizer.step()
    optimizer.zero_grad()
