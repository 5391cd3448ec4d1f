"""Two functions of SGLang without the rest of it: the argument is their file."""

import ast
import contextlib
import json
import os
import sys
import types
from unittest import mock

import torch

file = sys.argv[1]
with open(file) as stream:
    tree = ast.parse(stream.read())
wanted = ("set_torch_compile_config", "patch_model")
tree.body = [node for node in tree.body if getattr(node, "name", "") in wanted]
for node in tree.body:
    node.returns = None
    for argument in node.args.args:
        argument.annotation = None
names = mock.MagicMock()
space = {"os": os, "torch": torch, "contextmanager": contextlib.contextmanager, "_is_hip": True}
space.update(get_bool_env_var=lambda *_: False, _to_torch=lambda *_, **__: None)
space.update(monkey_patch_torch_compile=lambda: None)
exec(compile(tree, file, "exec"), space)
space["set_torch_compile_config"]()
config = torch._inductor.config
model = types.SimpleNamespace(forward=lambda x: x)
asked = []
compiled = torch.compile
torch.compile = lambda forward, **options: asked.append(options["mode"]) or forward
with space["patch_model"](model, True, 1, mock.MagicMock()):
    pass
options = torch._inductor.list_mode_options(asked[0])
found = {"mode": asked[0], "max_autotune": options.get("max_autotune", config.max_autotune)}
name = "coordinate_descent_tuning"
found[name] = options.get(name, getattr(config, name))
found["max_autotune_gemm_backends"] = config.max_autotune_gemm_backends
print(json.dumps(found))
