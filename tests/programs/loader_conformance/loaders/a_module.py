"""A module.

hooks: made?
"""

import types

from memory import install, show

loader = types.ModuleType("loader")


def execute(module):
    module.VALUE = "of a module"


loader.create_module, loader.exec_module = (lambda spec: None), execute
install(loader)
import made

show(made)
print(loader.exec_module is execute)
