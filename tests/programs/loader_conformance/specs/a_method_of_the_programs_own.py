"""A method of the program's own.

hooks: alone?
"""

from importlib.util import find_spec, module_from_spec

spec = find_spec("alone")
execute = type(spec.loader).exec_module


def mine(module):
    print("mine")
    execute(spec.loader, module)


spec.loader.exec_module = mine
module = module_from_spec(spec)
spec.loader.exec_module(module)
print(module.VALUE, spec.loader.exec_module is mine, "exec_module" in vars(spec.loader))
del spec.loader.exec_module
print("exec_module" in vars(spec.loader))
