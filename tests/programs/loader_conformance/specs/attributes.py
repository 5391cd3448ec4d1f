"""Attributes.

hooks: target
"""

from importlib.util import find_spec

for name in ("alone", "target", "target.inner", "spread", "spread.part", "json", "sys"):
    spec = find_spec(name)
    print(repr(spec), list(vars(spec)), spec.parent, spec.cached, spec.has_location)
    print(spec.submodule_search_locations, spec.loader_state, type(spec))
