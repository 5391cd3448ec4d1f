"""A program that compiles several graphs: a break, training, a loop with a cache, another shape."""

import torch


@torch.compile
def branches(x: torch.Tensor) -> torch.Tensor:
    """Two graphs: what comes after depends on a value."""
    y = (x @ x).relu().softmax(-1)
    count = y.sum().item()
    return torch.nn.functional.gelu(y) * count


@torch.compile
def decode(cache: torch.Tensor, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One step of a model with a static cache."""
    cache.index_copy_(0, position, token.float().expand(1, cache.shape[1]))
    seen = torch.arange(cache.shape[0], device=cache.device) <= position
    return (cache * seen[:, None]).sum(-1).argmax(keepdim=True)


def train() -> None:
    """Two steps each with optimizers that have kernels for many tensors, and fused ones."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(96, 8)
    ).cuda()
    compiled = torch.compile(model)
    optimizers = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(model.parameters(), fused=True),
    )
    for optimizer in optimizers:
        for _ in range(2):
            rows = torch.randn(16, 64, device="cuda")
            labels = torch.randint(0, 8, (16,), device="cuda")
            loss = torch.nn.functional.cross_entropy(compiled(rows), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert loss.item() == loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    for size in (32, 48):
        branches(torch.ones(size, size, device="cuda"))
    train()
    cache = torch.zeros(16, 8, device="cuda")
    token = torch.ones(1, dtype=torch.long, device="cuda")
    for step in range(4):
        token = decode(cache, token, torch.tensor([step], device="cuda"))
    print(token.tolist())
