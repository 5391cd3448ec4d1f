"""Exec_module on the instance.

hooks: made
"""

from memory import Plain, install, show

one = Plain()
execute = one.exec_module
one.exec_module = lambda module: execute(module)
own = one.exec_module
install(one)
import made

show(made)
print(one.exec_module is own, list(vars(one)))
