"""No source.

hooks: compiled
"""

from importlib.util import find_spec

spec = find_spec("compiled")
print(spec == find_spec("compiled"), spec, vars(spec.loader))
print(spec.loader.get_source("compiled"), spec.loader.get_code("compiled"))
import compiled

print(compiled.VALUE, compiled.__file__, vars(compiled.__loader__))
