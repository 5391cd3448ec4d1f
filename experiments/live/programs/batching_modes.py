"""What transformers decides for each mode, which the arguments name."""

import json
import sys

from transformers import CompileConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import initialization

initialization.get_accelerator_graph_name = lambda: "cuda"
found = {}
for mode in sys.argv[1:]:
    compiled = CompileConfig(mode=mode)
    config = ContinuousBatchingConfig(
        varlen_compile_config=compiled, decode_compile_config=compiled
    )
    initialization.decide_use_cuda_graphs(
        config, is_attn_mask_needed=False, cuda_graph_requested=False
    )
    initialization.decide_use_async_batching(config, is_attn_mask_needed=False)
    found[mode] = [all(config.use_cuda_graph), config.use_async_batching]
print(json.dumps(found))
