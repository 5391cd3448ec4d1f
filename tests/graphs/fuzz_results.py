# mypy: allow-subclassing-any
"""Random functions of inference whose results a program keeps in random ways, or does not keep.

    ROCM_AUTOPATCH=off python tests/graphs/fuzz_results.py [--seconds 150] [--seed 1]

in an environment with torch and our package. After each call all that is kept must be as it was,
and each result must be the plain function's. Without a GPU there is the stand-in (stand_in.py), in
which a replay spoils what it may overwrite. The exit status is 1 if a seed failed.
"""

from __future__ import annotations

import argparse
import copy
import io
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import stand_in
import torch

from rocm_autopatch.graphs import graphed, record

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
leaves_of = torch.utils._pytree.tree_leaves


def doubled(x: Any) -> Any:
    return x * 2


def views(x: Any) -> Any:
    y = x + 1
    return y, y[1:], y.t(), 7


def nested(x: Any) -> Any:
    return {"a": x.sin(), "b": (x.cos(), x - 1)}


def broken(x: Any) -> Any:
    y = x * 3
    torch._dynamo.graph_break()
    return y, y.relu() + 1


def odd(x: Any) -> Any:
    return (x @ x.t()).sum(), torch.view_as_complex(torch.stack([x, x], -1)), x[:0] * 1


def twice(x: Any) -> Any:
    y = x.exp()
    return y, y


FUNCTIONS = (doubled, views, nested, broken, odd, twice)


def _as_module(tensor: Any) -> Any:
    module = torch.nn.Module()
    module.register_buffer("kept", tensor)
    return module.kept


def _saved(tensor: Any) -> Any:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    stream.seek(0)
    return torch.load(stream, map_location=GPU)


KEEPERS: tuple[Callable[[Any], Any], ...] = (
    lambda tensor: tensor,
    lambda tensor: tensor.reshape(-1)[:1],
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    lambda tensor: tensor.data,
    copy.deepcopy,
    _saved,
    _as_module,
    lambda tensor: tensor.add_(1),
)


def is_same(one: Any, other: Any) -> bool:
    pairs = [*zip(leaves_of(one), leaves_of(other))]
    return all(
        torch.allclose(left, right) if isinstance(left, torch.Tensor) else left == right
        for left, right in pairs
    )


def _make(draw: random.Random) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    plain = draw.choice(FUNCTIONS)

    def own(x: Any) -> Any:
        return plain(x)

    how = draw.choice(("all", "none", "mode", "mode"))
    if how == "mode":
        return plain, torch.compile(own, mode="reduce-overhead", dynamic=False)
    return plain, graphed(own, guards="all" if plain is broken else how)


def run_seed(seed: int) -> None:
    """Raises AssertionError for a wrong result, or one that has changed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    with torch.inference_mode(draw.random() < 0.3), torch.no_grad():
        functions = [_make(draw) for _ in range(draw.randint(1, 4))]
        kept: list[tuple[Any, Any]] = []
        often = draw.choice((0, 0.1, 0.5, 1))
        for number in range(draw.randint(8, 40)):
            plain, function = draw.choice(functions)
            x = torch.randn(draw.choice((2, 2, 3)), 4, device=GPU)
            got = function(x)
            assert is_same(got, plain(x)), f"call {number} of {plain.__name__} is wrong"
            if draw.random() < often:
                tensor = draw.choice([one for one in leaves_of(got) if torch.is_tensor(one)])
                one = draw.choice(KEEPERS)(tensor)
                kept.append((one, one.clone()))
            if draw.random() < 0.3:
                del got
            if kept and draw.random() < 0.3:
                kept.pop(draw.randrange(len(kept)))
            changed = [one for one, wanted in kept if not is_same(one, wanted)]
            assert not changed, f"after call {number}, of {plain.__name__}, {changed} has changed"


def main() -> int:
    parser = argparse.ArgumentParser(description="Results that are kept in random ways.")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if GPU.type == "cpu":
        stand_in.install()
    stand_in.graphs_in_modes()
    end, seed, failed, replays = time.monotonic() + asked.seconds, asked.seed, 0, 0
    while time.monotonic() < end:
        try:
            run_seed(seed)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
        replays += sum(row["replays"] for row in record.render_rows())
        record._rows.clear()
        torch._dynamo.reset()
        seed += 1
    print(f"{seed - asked.seed} seeds, {replays} replays, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
