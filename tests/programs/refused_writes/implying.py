"""A table of keys that imply others, as torch 2.15 has it.

experiments/matrix/config_versions.py runs the same on the config module of 2.15 itself.
"""

import torch._inductor.config as c

from rocm_autopatch.patches import config


class Implying(type(c)):
    def __getattr__(self, name):
        for source, condition, value in self.__dict__["_implications"].get(name, ()):
            if getattr(self, source) == condition:
                return value
        return super().__getattr__(name)


c.__dict__["_implications"] = {
    "emulate_precision_casts": (("compile_threads", 77, True), ("max_fusion_size", 78, True)),
    "max_fusion_size": (("realize_reads_threshold", 79, 78),),
}
object.__setattr__(c, "__class__", Implying)


def pin(name, value, strength="pin"):
    return config.apply(c, [(name, strength, value, "", "", "layer", "why")], (), False)[0]
