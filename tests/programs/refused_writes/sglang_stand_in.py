"""What SGLang writes to the config."""

import torch._dynamo.config
import torch._inductor.config


def set_torch_compile_config():
    torch._inductor.config.coordinate_descent_tuning = True
    torch._inductor.config.triton.unique_kernel_names = True
    torch._inductor.config.fx_graph_cache = True
    torch._dynamo.config.accumulated_cache_size_limit = 1024
    torch._dynamo.config.cache_size_limit = 1024
