"""Find_spec."""

from importlib.util import find_spec

spec = find_spec("target")
print(spec.origin, type(spec.loader), spec.loader.get_source("target")[:9])
print(find_spec("target.absent"), find_spec("absent"))
