# requires: diffusers transformers accelerate
# mypy: ignore-errors
"""A Stable Diffusion pipeline whose UNet and decoder are compiled."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8,
    layers_per_block=1,
    block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=2,
    norm_num_groups=4,
)
vae = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4)
pipe = StableDiffusionPipeline(
    vae=vae.eval(),
    unet=unet.eval(),
    scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
    text_encoder=None,
    tokenizer=None,
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
)
pipe.set_progress_bar_config(disable=True)
words = {"prompt_embeds": torch.randn(1, 5, 16), "negative_prompt_embeds": torch.randn(1, 5, 16)}


def image():
    seed = torch.Generator().manual_seed(1)
    return pipe(**words, num_inference_steps=3, generator=seed, output_type="pt").images


wanted = image()
pipe.unet.to(memory_format=torch.channels_last)
pipe.unet = torch.compile(pipe.unet, mode="max-autotune", fullgraph=True)
pipe.vae.decode = torch.compile(pipe.vae.decode, mode="reduce-overhead", fullgraph=True)
found = image()
print("image", list(found.shape), round(float(found.mean()), 4), round(float(found.std()), 4))
print("as eager", torch.allclose(found, wanted, atol=1e-3))
