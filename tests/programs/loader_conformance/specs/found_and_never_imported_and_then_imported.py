"""Found and never imported, and then imported.

hooks: alone
"""

from importlib.util import find_spec, module_from_spec

specs = [find_spec("alone") for _ in range(20)]
module = module_from_spec(specs[3])
specs[3].loader.exec_module(module)
import alone

print(module.VALUE, alone.VALUE, module is alone, {str(vars(spec.loader)) for spec in specs})
again = module_from_spec(specs[4])
specs[4].loader.exec_module(again)
specs[4].loader.exec_module(module)
print(again.VALUE, vars(specs[4].loader))
