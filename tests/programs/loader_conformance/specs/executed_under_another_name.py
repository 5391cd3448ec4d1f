"""Executed under another name.

hooks: alone?
"""

from importlib.util import find_spec, module_from_spec, spec_from_file_location, spec_from_loader

spec = find_spec("alone")
for other in (
    spec_from_file_location("another", spec.origin, loader=spec.loader),
    spec_from_loader("another", spec.loader, origin="here"),
    spec_from_file_location("another", spec.origin),
):
    module = module_from_spec(other)
    try:
        other.loader.exec_module(module)
    except ImportError as error:
        print(error)
    print(module.__name__, getattr(module, "VALUE", None), vars(spec.loader))
import types

for name in ("bare", "alone"):
    module = types.ModuleType(name)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(type(error), error)
    print(sorted(vars(module)))
