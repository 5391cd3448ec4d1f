"""A finder that leaves at its first match, asks the others, and runs code after the module.

vLLM 0.33 patches torch._inductor.pattern_matcher in this way (vllm/env_override.py).
"""

import importlib.util
import sys


class Wraps:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            module.CHANGED = module.VALUE + 40

        spec.loader.exec_module = execute_and_change
        return spec


for name in ("target", "target.inner"):
    sys.meta_path.insert(0, Wraps(name))
import target.inner

print(target.CHANGED, target.inner.CHANGED)
print(any(isinstance(finder, Wraps) for finder in sys.meta_path))
