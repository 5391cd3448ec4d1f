# requires: numpy
# mypy: ignore-errors
"""FSDP2: two processes share a small model, each block of it compiled."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, rows):
        return rows + self.down(torch.nn.functional.gelu(self.up(self.norm(rows))))


def train(rank):
    store = dist.FileStore("store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        block.compile(mode="reduce-overhead")
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print("loss", round(mean.item() / 2, 4), flush=True)
    if rank == 0:
        shard = model[0].up.weight
        print(type(shard).__name__, list(shard.shape), list(shard.to_local().shape), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
