"""Copies.

hooks: alone?
"""

import copy
import pickle
from importlib.util import find_spec, module_from_spec

spec = find_spec("alone")
for thing in (spec, spec.loader, find_spec("target"), [spec, spec.loader], vars(spec.loader)):
    made = [copy.copy(thing), copy.deepcopy(thing)]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(thing, protocol)
        print(b"rocm" in data, b"exec_module" in data)
        made.append(pickle.loads(data))
    for one in made:
        print(one == thing, thing == one, type(one), sorted(getattr(one, "__dict__", "")))
for one in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
    module = module_from_spec(one)
    one.loader.exec_module(module)
    print(module.VALUE, vars(one.loader), vars(spec.loader))
