"""The programs that ``prove`` tries, one file each.

A trial's file has

- a docstring, whose first line says what the program is;
- ``ABOUT``: the groups of subjects that it is for ("modes", "training", "search", "switches"), or
  their names;
- ``NEEDS``: modules that it imports, without whose packages it can't be;
- ``GPU = True`` if it needs a GPU;
- ``TURN = N`` if calls differ: call N is of the kind of call 0;
- ``TIMED = False`` if nobody asks how fast it is;
- ``TRAINING = True`` if it computes gradients; other programs run under ``torch.no_grad()``;
- ``make_program(bench)`` returns the program, a function. That takes the number of a call, makes
  the call, and returns a tensor or a sequence of tensors, to be compared with eager mode's.

The next calls of eager mode and of the compiled program follow each other, so the two must not
share anything. A new trial is one file, and its name in ``NAMES``: the most telling ones first,
because a battery that runs out of time ends somewhere.
"""

from __future__ import annotations

import importlib
from types import ModuleType

NAMES = (
    *("mlp", "decoder", "shapes", "training", "weights"),
    # What is publicly known to break graphs on ROCm.
    *("host_copy", "memset", "many_nodes", "topk", "capturing_threads"),
    *("transformers_training", "accumulation", "checkpoint", "regions", "experts"),
    *("transformers_generate", "transformers_bert", "timm_vit", "convolution", "attention"),
    *("prefill_decode", "streams", "threads", "dropout", "large", "gemms"),
    "diffusers_unet",
)
# Those of --quick.
QUICK = ("mlp", "decoder", "shapes", "weights", "transformers_generate")


def load_trial(name: str) -> ModuleType:
    """The module of a trial. It imports nothing but what every Python has."""
    return importlib.import_module(f"{__name__}.{name}")


def is_about(trial: ModuleType, name: str, group: str) -> bool:
    """Whether a trial is about the subject *name* of *group*."""
    return name in trial.ABOUT or group in trial.ABOUT
