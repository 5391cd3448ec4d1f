"""Asked for 1,500 times.

hooks: made? made2?
"""

from importlib.util import find_spec, module_from_spec

from memory import Plain, install, show

one = Plain()
install(one, "made", "made2", "other")
specs = [find_spec(name) for _ in range(1500) for name in ("made", "made2", "other")]
print(len(specs), vars(one), specs[0] == specs[3], specs[1] == specs[-2])
import made
import other

show(other, made)
module = module_from_spec(specs[-2])
one.exec_module(module)
print(module.VALUE, vars(one))
