# requires: diffusers transformers accelerate
# mypy: ignore-errors
"""A Flux pipeline: first the blocks of its transformer are compiled, then the whole of it."""

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)

torch.manual_seed(0)
transformer = FluxTransformer2DModel(
    in_channels=16,
    num_layers=1,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=32,
    pooled_projection_dim=16,
    axes_dims_rope=(4, 4, 8),
)
vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4)
pipe = FluxPipeline(
    scheduler=FlowMatchEulerDiscreteScheduler(),
    vae=vae.eval(),
    transformer=transformer.eval(),
    **dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")),
)
pipe.set_progress_bar_config(disable=True)
words = {"prompt_embeds": torch.randn(1, 6, 32), "pooled_prompt_embeds": torch.randn(1, 16)}


def latents():
    seed, size = torch.Generator().manual_seed(1), {"height": 16, "width": 16}
    return pipe(**words, **size, num_inference_steps=2, generator=seed, output_type="latent").images


wanted = latents()
pipe.transformer.compile_repeated_blocks(fullgraph=True, mode="reduce-overhead")
blocks = latents()
pipe.transformer = torch.compile(pipe.transformer, mode="max-autotune-no-cudagraphs")
whole = latents()
print("latents", list(wanted.shape), [round(value, 4) for value in whole[0, 0, :6].tolist()])
print("as eager", *(torch.allclose(found, wanted, atol=1e-3) for found in (blocks, whole)))
