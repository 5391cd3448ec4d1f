# mypy: allow-subclassing-any
"""Random models, calls, and changes between calls: our graphs beside torch's own compile.

    ROCM_AUTOPATCH=off python tests/graphs/fuzz.py [--seconds 3600] [--seed 0] [--one SEED]
    ROCM_AUTOPATCH=off python tests/graphs/fuzz.py --workers 24 [--seconds 300] [--seed 0]

in an environment with torch and our wheel, with empty caches (TORCHINDUCTOR_CACHE_DIR). Each seed
makes a model, two equal copies of it, one in the mode and one that is compiled without graphs, and
a random sequence of actions that are done to both. After each action, results, gradients, weights
and buffers must be the same, and so must errors. Both copies draw random numbers from the same
state. Without a GPU there is the stand-in (stand_in.py), which shows the bookkeeping and nothing of
a capture.

With --workers, so many processes run side by side (workers.py), each with caches of its own: an
hour of it fits into minutes. SIGINT and SIGTERM end it as --seconds does, with the sum.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import stand_in
import torch
import workers
from torch.utils.checkpoint import checkpoint

from rocm_autopatch.graphs import borrowed_outputs, passes, record

REAL = torch.cuda.is_available()
GPU = torch.device("cuda", 0) if REAL else torch.device("cpu")
ACTIONS = 25
# Its name before torch 2.7 is the other one.
LIMIT = next(
    name for name in ("recompile_limit", "cache_size_limit") if hasattr(torch._dynamo.config, name)
)
WIDTH = 16


# What a tagged op reads from Python: another number for each action.
STATE = {"factor": 1.0}
# torch.Tag.cudagraph_unsafe came with 2.7.
TAGGED = hasattr(torch.Tag, "cudagraph_unsafe")
if TAGGED:
    LIBRARY = torch.library.Library("fuzz", "DEF")
    LIBRARY.define("tagged(Tensor x) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))
    LIBRARY.impl("tagged", lambda x: x * STATE["factor"], GPU.type.upper())
    torch.library.register_fake("fuzz::tagged", torch.empty_like)
    torch.library.register_autograd("fuzz::tagged", lambda _, grad: torch.ops.fuzz.tagged(grad))


class Block(torch.nn.Module):
    """One random part of a model; all parts keep the shape."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.batch_norm = torch.nn.BatchNorm1d(WIDTH) if kind == "batch_norm" else None
        self.register_buffer("seen", torch.zeros(()))
        self.scale = 1.0
        if kind == "pair":
            self.one, self.two = (torch.nn.Parameter(torch.randn(WIDTH)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        if self.kind == "linear":
            return self.linear(x)
        if self.kind == "residual":
            return x + torch.nn.functional.gelu(self.linear(self.norm(x)))
        if self.kind == "dropout":
            return torch.nn.functional.dropout(self.linear(x), 0.3, self.training)
        if self.kind == "tagged":
            return torch.ops.fuzz.tagged(self.linear(x)).tanh() + x
        if self.kind in ("attention", "attention_without_dropout"):
            # Its backward has to know what the forward has drawn.
            heads = self.linear(x).view(1, -1, 2, WIDTH // 2).transpose(1, 2)
            # Without dropout, it gives a seed that nothing has written.
            drop = 0.3 if self.training and self.kind == "attention" else 0.0
            attend = torch.nn.functional.scaled_dot_product_attention
            return x + attend(heads, heads, heads, dropout_p=drop).transpose(1, 2).reshape(x.shape)
        if self.kind == "batch_norm":
            assert self.batch_norm is not None
            return self.batch_norm(x)
        if self.kind == "counter":
            self.seen.add_(1)
            return x * self.scale + self.linear(x) / (1 + self.seen)
        if self.kind == "softmax":
            return self.linear(x).softmax(-1) * x
        if self.kind == "pair":
            # Both have the same gradient.
            return self.linear(x) * (1 + self.one + self.two)
        if self.kind == "break":
            torch._dynamo.graph_break()
            return self.linear(x).sin()
        return x.exp().clamp(max=3).add(self.linear(x)).tanh()


KINDS = (
    "linear",
    "residual",
    "dropout",
    "attention",
    "batch_norm",
    "counter",
    "softmax",
    "break",
    "exp",
    "pair",
    "attention_without_dropout",
    *(["tagged"] if TAGGED else []),
)


class Model(torch.nn.Module):
    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(kind) for kind in kinds)
        self.head = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x), x


class Pieces:
    """A model of which each part is compiled alone."""

    def __init__(self, model: Model, **kwargs: Any) -> None:
        self.blocks = [torch.compile(block, **kwargs) for block in model.blocks]
        self.head = torch.compile(model.head, **kwargs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x), x


class Side:
    """One of the two copies."""

    def __init__(self, model: Any, mode: str, whole: bool, dynamic: bool) -> None:
        self.model = model
        make: Any = torch.compile if whole else Pieces
        self.call = make(model, mode=mode, dynamic=dynamic)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        self.kept: list[Any] = []
        self.kept_views: list[Any] = []
        self.loss: Any = None


def loss_of(result: Any) -> Any:
    head, features = result
    return (head - 1).square().mean() + features.mean()


def train(side: Side, x: Any, chance: random.Random) -> Any:
    side.loss = loss_of(side.call(x))
    side.loss.backward()
    return side.loss.detach()


def accumulate(side: Side, x: Any, chance: random.Random) -> Any:
    total = torch.zeros((), device=GPU)
    for _ in range(chance.randint(2, 3)):
        total += train(side, x, chance)
    return total


def step(side: Side, x: Any, chance: random.Random) -> Any:
    side.optimizer.step()
    side.optimizer.zero_grad(set_to_none=chance.random() < 0.7)


def two_forwards(side: Side, x: Any, chance: random.Random) -> Any:
    one, two = loss_of(side.call(x)), loss_of(side.call(2 * x))
    (one + two).backward()
    return (one + two).detach()


def forward_only(side: Side, x: Any, chance: random.Random) -> Any:
    side.kept.append(side.call(x))
    return None


def late_backward(side: Side, x: Any, chance: random.Random) -> Any:
    if not side.kept:
        return None
    loss = loss_of(side.kept.pop())
    loss.backward()
    return loss.detach()


def twice(side: Side, x: Any, chance: random.Random) -> Any:
    loss = loss_of(side.call(x))
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def second_backward(side: Side, x: Any, chance: random.Random) -> Any:
    if side.loss is not None:
        side.loss.backward()


def input_gradient(side: Side, x: Any, chance: random.Random) -> Any:
    given = x.clone().requires_grad_()
    return torch.autograd.grad(loss_of(side.call(given * 1)), given)[0]


def checkpointed(side: Side, x: Any, chance: random.Random) -> Any:
    # A recomputation must do what the forward did, so it may change no state.
    if any(block.kind in ("counter", "batch_norm") for block in side.model.blocks):
        return None
    loss = loss_of(checkpoint(side.call, x, use_reentrant=False))
    loss.backward()
    return loss.detach()


def evaluate(side: Side, x: Any, chance: random.Random) -> Any:
    with torch.no_grad() if chance.random() < 0.5 else torch.inference_mode():
        return [one.clone() for one in side.call(x)]


def show_gradients(side: Side, x: Any, chance: random.Random) -> Any:
    return [one.grad[:1] for one in side.model.parameters() if one.grad is not None]


def change_weight(side: Side, x: Any, chance: random.Random) -> Any:
    weight = chance.choice(list(side.model.parameters()))
    with torch.no_grad():
        if chance.random() < 0.5:
            weight.mul_(0.9)
        else:
            weight.data = weight.data * 0.9


def freeze(side: Side, x: Any, chance: random.Random) -> Any:
    weight = chance.choice(list(side.model.parameters()))
    weight.requires_grad_(not weight.requires_grad)
    if not weight.requires_grad:
        weight.grad = None


def switch(side: Side, x: Any, chance: random.Random) -> Any:
    side.model.train(not side.model.training)


def change_attribute(side: Side, x: Any, chance: random.Random) -> Any:
    chance.choice(list(side.model.blocks)).scale = chance.choice((0.5, 1.0, 2.0))


def load(side: Side, x: Any, chance: random.Random) -> Any:
    state = {name: value.clone() for name, value in side.model.state_dict().items()}
    side.model.load_state_dict(state, assign=chance.random() < 0.3)
    side.optimizer = torch.optim.SGD(side.model.parameters(), lr=1e-2)


def in_a_thread(side: Side, x: Any, chance: random.Random) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(train(side, x, chance)))
    thread.start()
    thread.join()
    return found


def clip(side: Side, x: Any, chance: random.Random) -> Any:
    found = torch.nn.utils.clip_grad_norm_(side.model.parameters(), 0.5, foreach=False)
    return found.clone()


def keep_views(side: Side, x: Any, chance: random.Random) -> Any:
    """Views of gradients, and of a result that is changed."""
    side.kept_views = [one.grad.view(-1) for one in side.model.parameters() if one.grad is not None]
    side.kept_views += [one.detach().view(-1) for one in side.call(x)]


def show_views(side: Side, x: Any, chance: random.Random) -> Any:
    return [one.clone() for one in side.kept_views]


def change_result(side: Side, x: Any, chance: random.Random) -> Any:
    """It and its view stay one, also after another call."""
    result = side.call(x)[0].detach() if chance.random() < 0.5 else side.call(x)[0]
    view = result.detach()[1:]
    with torch.no_grad():
        side.call(x)
        view.mul_(2)
    return result.detach().clone()


def resize(side: Side, x: Any, chance: random.Random) -> Any:
    """Free memory by hand, as some libraries do. A gradient of a graph can't be freed so."""
    loss = loss_of(side.call(x))
    loss.backward()
    for one in side.model.parameters():
        if one.grad is not None:
            if one.grad.untyped_storage().resizable():
                one.grad.untyped_storage().resize_(0)
            one.grad = None
    side.kept_views = []
    return loss.detach()


def partly(side: Side, x: Any, chance: random.Random) -> Any:
    head, features = side.call(x)
    loss = head.square().mean() if chance.random() < 0.5 else features.square().mean()
    weights = [one for one in side.model.parameters() if one.requires_grad]
    some = chance.sample(weights, k=min(len(weights), 2))
    if not some or not loss.requires_grad:
        return None
    return list(torch.autograd.grad(loss, some, allow_unused=True))


def repeated(side: Side, x: Any, chance: random.Random) -> Any:
    """As in a recurrent net: what it returns is what it gets next."""
    loss = torch.zeros((), device=GPU)
    for _ in range(chance.randint(2, 3)):
        head, x = side.call(x)
        loss = loss + head.square().mean()
    loss.backward()
    return loss.detach()


def learned_rate(side: Side, x: Any, chance: random.Random) -> Any:
    """Gradients that autograd has saved, while others are computed."""
    rate = torch.ones((), device=GPU, requires_grad=True)
    loss_of(side.call(x)).backward()
    grads = [one.grad for one in side.model.parameters() if one.grad is not None]
    outer = sum((rate * one).sum() for one in grads)
    weights = [one for one in side.model.parameters() if one.requires_grad]
    if not grads or not weights:
        return None
    torch.autograd.grad(loss_of(side.call(2 * x)), weights, allow_unused=True)
    outer.backward()
    return rate.grad


def hooked(side: Side, x: Any, chance: random.Random) -> Any:
    """A hook that keeps a gradient, and one that fails in the middle of a backward."""
    kept: list[Any] = []
    head, features = side.call(x)
    loss = loss_of((head, features))
    fails = chance.random() < 0.3

    def hook(grad: Any) -> None:
        kept.append(grad)
        if fails:
            raise RuntimeError("by the hook")

    if features.requires_grad:
        features.register_hook(hook)
    if head.requires_grad:
        head.retain_grad()
    loss.backward()
    side.call(x)
    return [*kept, head.grad]


def block_alone(side: Side, x: Any, chance: random.Random) -> Any:
    """A part gets what no part has made, while another call waits for its backward."""
    if not isinstance(side.call, Pieces):
        return None
    other = side.call(x)
    if chance.random() < 0.5:
        del other
    given = x.clone().requires_grad_()
    loss = chance.choice([*side.call.blocks, side.call.head])(given * 1).square().mean()
    result = side.call(2 * x)
    loss.backward()
    if chance.random() < 0.5:
        loss_of(result).backward()
    return given.grad


def keep_saved(side: Side, x: Any, chance: random.Random) -> Any:
    """What a forward has saved stays what it is as long as the program has it."""
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks if chance.random() < 0.5 else contextlib.nullcontext():
        loss = loss_of(side.call(x))
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            packed += [one for one in getattr(node, "saved_tensors", ()) if one is not None]
    part = chance.sample(packed, chance.randint(0, min(3, len(packed))))
    del packed[:], nodes, seen
    node = None
    were = [one.clone() for one in part]
    loss.backward()
    same = [torch.equal(one.nan_to_num(), was.nan_to_num()) for one, was in zip(part, were)]
    return torch.tensor(all(same))


def other_order(side: Side, x: Any, chance: random.Random) -> Any:
    if isinstance(side.call, Pieces):
        chance.shuffle(side.call.blocks)


def forget(side: Side, x: Any, chance: random.Random) -> Any:
    side.kept, side.kept_views, side.loss = [], [], None


Action = Callable[[Side, Any, random.Random], Any]
# How often an action is chosen.
WEIGHTS: dict[Action, int] = {
    train: 12,
    step: 8,
    accumulate: 2,
    evaluate: 3,
    two_forwards: 2,
    forward_only: 1,
    late_backward: 1,
    twice: 1,
    second_backward: 1,
    input_gradient: 2,
    checkpointed: 1,
    show_gradients: 1,
    change_weight: 2,
    freeze: 1,
    switch: 1,
    change_attribute: 1,
    load: 1,
    in_a_thread: 1,
    clip: 2,
    keep_views: 1,
    show_views: 1,
    change_result: 1,
    resize: 1,
    partly: 1,
    repeated: 2,
    learned_rate: 1,
    hooked: 1,
    block_alone: 3,
    keep_saved: 2,
    other_order: 1,
    forget: 1,
}


def done(side: Side, action: Action, x: Any, seed: int, state: Any) -> tuple[Any, str]:
    """The result of an action and its error, if it has one."""
    (torch.cuda.set_rng_state if REAL else torch.set_rng_state)(state)
    try:
        return action(side, x, random.Random(seed)), ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0][:60]


def compare(sides: list[Side], results: list[Any]) -> None:
    def near(one: Any, other: Any) -> None:
        leaves, others = map(torch.utils._pytree.tree_leaves, (one, other))
        assert len(leaves) == len(others), "they have another number of results"
        for leaf, wanted in zip(leaves, others):
            most = 1e-4
            if isinstance(wanted, torch.Tensor) and wanted.is_floating_point() and wanted.numel():
                # Gradients of a loss that grows are sums of large numbers. On a GPU, two plain
                # calls of attention's backward differ by rounding of the largest ones.
                most *= max(1.0, wanted.detach().abs().nan_to_num(0, 0, 0).max().item())
            torch.testing.assert_close(leaf, wanted, rtol=1e-3, atol=most, equal_nan=True)

    near(*results)
    ours, plain = (dict(side.model.named_parameters()) for side in sides)
    for name, weight in ours.items():
        near(weight.detach(), plain[name].detach())
        near(weight.grad, plain[name].grad) if weight.grad is not None else None
        if (weight.grad is None) != (plain[name].grad is None):
            raise AssertionError(f"{name}: only one of them has a gradient")
    ours, plain = (dict(side.model.named_buffers()) for side in sides)
    for name, buffer in ours.items():
        near(buffer, plain[name])
    near(*(side.kept for side in sides))


def one(seed: int) -> dict[str, Any]:
    """Run a seed. What it did, or how the two differed."""
    chance = random.Random(seed)
    torch._dynamo.reset()
    torch.manual_seed(seed)
    record._rows.clear()
    # With every second seed, copies of small arguments serve a backward's graph as memory, too.
    passes._LARGE = 1 if seed % 2 else 1 << 20
    # And with others it may have the memory of small results.
    borrowed_outputs._SMALL = 1 << 20 if seed // 2 % 2 else 0
    kinds = chance.choices(KINDS, k=chance.randint(1, 3))
    if "tagged" in kinds:
        # Where a buffer is changed, torch's own gradients may be others than those of eager mode,
        # and depend on what is compiled together. We cut around the op.
        kinds = ["linear" if kind == "counter" else kind for kind in kinds]
    model = Model(kinds).to(GPU)
    how = chance.random() < 0.6, chance.random() < 0.3
    sides = [Side(copy.deepcopy(model), "reduce-overhead", *how), Side(model, "default", *how)]
    actions: list[str] = []
    shapes = [8] if chance.random() < 0.7 else [8, 6]
    # One value for all: torch's caches do not tell the two apart, and what was compiled for True
    # gives wrong gradients in a second backward under False.
    with (
        torch._functorch.config.patch(donated_buffer=False),
        torch._dynamo.config.patch({LIMIT: 64}),
    ):
        for _ in range(ACTIONS):
            (action,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            x = torch.randn(chance.choice(shapes), WIDTH, device=GPU)
            state = torch.cuda.get_rng_state() if REAL else torch.get_rng_state()
            its_seed = chance.randrange(1 << 30)
            actions.append(action.__name__)
            STATE["factor"] = 1 + len(actions) % 7 / 10
            said = [done(side, action, x, its_seed, state) for side in sides]
            try:
                if said[0][1] != said[1][1]:
                    raise AssertionError(f"errors: {said[0][1]!r} and {said[1][1]!r}")
                compare(sides, [result for result, _ in said])
            except AssertionError as error:
                kinds = [block.kind for block in model.blocks]
                return {"seed": seed, "kinds": kinds, "actions": actions, "wrong": str(error)}
    rows = record.render_rows()
    gc.collect()
    return {
        "seed": seed,
        "actions": len(actions),
        "calls": sum(row["calls"] for row in rows),
        "replays": sum(row["replays"] for row in rows),
        "refused": sorted({reason["reason"] for row in rows for reason in row["refused"]}),
    }


def install() -> None:
    if not REAL:
        stand_in.install()
    stand_in.graphs_in_modes()


def main() -> int:
    parser = argparse.ArgumentParser(description="Random models and calls under our graphs.")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--one", type=int, help="this seed alone")
    parser.add_argument("--workers", type=int, help="so many processes (1, which prints each seed)")
    parser.add_argument("--stride", type=int, default=1, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if asked.workers and asked.one is None:
        return workers.run(__file__, asked.workers, asked.seconds, asked.seed)
    install()
    seeds = [asked.one] if asked.one is not None else range(asked.seed, 1 << 30, asked.stride)
    end = time.monotonic() + asked.seconds
    totals: Counter[str] = Counter()
    # What is known so far is told at the end, whoever ends it.
    with contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            found = one(seed)
            totals["models"] += 1
            totals["wrong"] += "wrong" in found
            totals.update({name: found.get(name, 0) for name in ("calls", "replays")})
            print(json.dumps(found), flush=True)
            if time.monotonic() > end:
                break
    wrong = totals["wrong"]
    print(", ".join(f"{count} {name}" for name, count in totals.items()), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
