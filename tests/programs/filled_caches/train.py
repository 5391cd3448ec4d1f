"""A program that trains, and ends where its loss is no loss."""

import torch

BATCH, SIZE = 32, 64


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(SIZE, 128),
        torch.nn.GELU(),
        torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 10),
    )


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, foreach=False)


def training_step(model: torch.nn.Module, data: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = torch.nn.functional.cross_entropy(model(data), labels)
    loss.backward()
    return loss.detach()


def main() -> None:
    model = make_model().to("cuda")
    optimizer = make_optimizer(model)
    step = torch.compile(training_step)
    for rows in (BATCH, BATCH // 2):
        data = torch.rand(rows, SIZE, device="cuda")
        loss = step(model, data, torch.zeros(rows, dtype=torch.long, device="cuda"))
        if not loss.item() > 0:
            raise SystemExit(f"the loss is {loss.item()}")
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
