"""What prove takes for a wrong output."""

import json

import torch

from rocm_autopatch.measure.prove.bench import difference_to_eager

one, large = torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64) * 1e6
changed = one.clone()
changed[5] += 0.01
nan = one.clone()
nan[5] = float("nan")
inf = one.clone()
inf[5] = float("inf")
whole = torch.arange(64)
cases = {
    "the same": (one, one),
    "rounding": (one, one * (1 + 1e-6)),
    "large": (large, large + 1),
    "half": (one.bfloat16(), (one * 1.003).bfloat16()),
    "zeros": (one * 0, one * 0),
    "whole": (whole, whole.clone()),
    "truth": (one > 0, one > 0),
    "list": ([one, whole], (one, whole)),
    "one element": (one, changed),
    "half, off": (one.bfloat16(), (one * 1.1).bfloat16()),
    "not zero": (one * 0, one),
    "nan": (one, nan),
    "inf": (one, inf),
    "no tensor": (one, [one]),
    "None": (one, None),
    "shape": (one, one[None]),
    "dtype": (one, one.double()),
    "whole, off": (whole, whole + (whole == 7)),
    "length": ([one, one], [one]),
    "stacked": ([one, one], torch.stack([one, one])),
    "second": ([one, one], [one, nan]),
}
print(
    json.dumps(
        {name: not float(difference_to_eager(torch, *pair)) <= 1 for name, pair in cases.items()}
    )
)
