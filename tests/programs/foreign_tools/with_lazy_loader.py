"""Modules of torch are loaded when they are used."""

import importlib.util
import sys

for name in ("torch", "torch._inductor.config"):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(type(module).__name__)
import torch

print(torch.version.hip)
import program

program.main()
