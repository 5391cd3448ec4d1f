"""What list_mode_options gives and raises, and how it looks."""

import inspect

import torch
from shown import show

ask = torch._inductor.list_mode_options


def tried(call):
    try:
        return repr(call())
    except Exception as error:
        return repr(error)


show(
    tried(lambda: ask("no-such-mode")),
    tried(lambda: ask(3)),
    tried(lambda: ask(["a"])),
    tried(lambda: ask(mode="default", dynamic=True)),
    tried(lambda: ask("")) == tried(ask),
    str(inspect.signature(ask)),
    ask.__module__,
    ask.__qualname__,
    ask.__doc__,
    torch._inductor.list_options() == torch._inductor.list_options(),
    list(ask()),
)
