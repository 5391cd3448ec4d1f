"""Executes the config modules of the real torch again with each variable set."""

import importlib
import json
import os
import sys
import types

import torch  # noqa: F401, before its config modules

names, asked = json.loads(sys.argv[1]), json.loads(sys.argv[2])
modules = [importlib.import_module(name) for name in names]
codes = [compile(open(m.__file__).read(), m.__file__, "exec") for m in modules]


def execute():
    found = {}
    for module, code in zip(modules, codes):
        anew = types.ModuleType(module.__name__)
        anew.__file__, anew.__package__ = module.__file__, module.__package__
        sys.modules[module.__name__] = anew
        try:
            exec(code, anew.__dict__)
            for key, entry in anew._config.items():
                if not entry.alias:
                    found[module.__name__ + "." + key] = repr(getattr(anew, key))
        finally:
            sys.modules[module.__name__] = module
    return found


plain, answers = execute(), []
for env in asked:
    os.environ.update(env)
    try:
        now = execute()
        answers.append([key for key in now if now[key] != plain[key]])
    except Exception as error:
        answers.append(type(error).__name__)
    for name in env:
        del os.environ[name]
print(json.dumps(answers))
