"""Does torch's cache of graphs give a program code that another one's settings were compiled into?

    python experiments/live/donated_buffer.py

For any interpreter with torch. Three processes compile the same model, each calls the backward of
the compiled one and of the eager one, and tells by how much the gradients differ:

- *once*: one backward, as most programs do. torch lets it overwrite what its forward has saved.
- *twice, in its caches*: ``torch._functorch.config.donated_buffer`` is off, so that a second
  backward is allowed. Nothing saved may be overwritten then. It finds the code of *once*.
- *twice, in caches of its own*.

It is torch alone: our hook is off. The exit status is 1 if the second one is wrong.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from typing import Any

_WRONG = 1e-5


def differs(twice: bool) -> float:
    """The largest difference of a gradient."""
    import torch
    import torch._functorch.config

    config: Any = torch._functorch.config
    custom_op: Any = torch.library.custom_op
    config.donated_buffer = not twice
    # Inductor does not fuse it, so what is saved around it lies in memory.
    schema = "(Tensor x) -> Tensor"
    double, back = (
        custom_op(f"autopatch_live::{name}", _double, mutates_args=(), schema=schema)
        for name in ("double", "back")
    )
    for one in (double, back):
        one.register_fake(torch.empty_like)
    double.register_autograd(lambda ctx, grad: back(grad), setup_context=lambda *_, **__: None)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Softmax(-1))
    other = copy.deepcopy(net)
    x = torch.randn(8, 16)

    def forward(model: Any) -> Any:
        return double(model(x)).sin().square().mean()

    for loss in (torch.compile(forward)(net), forward(other)):
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
    pairs = zip(net.parameters(), other.parameters())
    return max(float((one.grad - its.grad).abs().max()) for one, its in pairs)


def _double(x: Any) -> Any:
    return 2 * x


def main() -> int:
    if len(sys.argv) > 1:
        print(differs(sys.argv[1] == "twice"))
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as own:
        for name, how, caches in (
            ("once", "once", shared),
            ("twice, in its caches", "twice", shared),
            ("twice, in caches of its own", "twice", own),
        ):
            env = {**os.environ, "ROCM_AUTOPATCH": "off", "TORCHINDUCTOR_CACHE_DIR": caches}
            said = subprocess.run(
                [sys.executable, __file__, how], env=env, check=True, stdout=subprocess.PIPE
            ).stdout
            found[name] = float(said)
            print(f"{name}: gradients differ by {found[name]:.3g}", flush=True)
    return int(found["twice, in its caches"] > _WRONG)


if __name__ == "__main__":
    sys.exit(main())
