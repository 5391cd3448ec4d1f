"""A small UNet of diffusers, for a denoising step."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, TrialBench

ABOUT = ("modes",)
NEEDS = ("diffusers.models.unets.unet_2d_condition",)
GPU = True


def make_program(bench: TrialBench) -> Program:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=128,
        attention_head_dim=8,
    )
    compiled = bench.compile(bench.module(model))
    samples, texts = bench.inputs(2, 4, 32, 32), bench.inputs(2, 77, 128)
    step = bench.torch.tensor(7, device=bench.device)
    return lambda number: compiled(samples(number), step, texts(number)).sample
