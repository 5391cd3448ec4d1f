"""What vLLM does with the config when it compiles."""

import os

import torch._inductor.config as config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.utils._config_module import _Config, _ConfigEntry

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
config.compile_threads = 1
key = "custom_should_partition_ops"
config._config[key] = _ConfigEntry(_Config(default=[]), key)


def backend(graph, inputs):
    patches = {
        "max_autotune": True,
        "coordinate_descent_tuning": True,
        "max_autotune_gemm_backends": "TRITON",
        "triton.cudagraphs": True,
    }
    seen.append([config.max_autotune, config.max_autotune_gemm_backends])
    return compile_fx(graph, inputs, config_patches=patches, inner_compile=inner)  #: writes


def inner(graph, inputs, **options):
    seen.append(
        [
            config.max_autotune,
            config.max_autotune_gemm_backends,
            config.triton.cudagraphs,
            config.coordinate_descent_tuning,
        ]
    )
    return compile_fx_inner(graph, inputs, **options)


seen = []
