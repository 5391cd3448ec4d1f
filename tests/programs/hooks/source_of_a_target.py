"""What inspect finds of a target."""

import inspect

import target

print(inspect.getsource(target)[:40], inspect.getfile(target), inspect.getmodule(target))
