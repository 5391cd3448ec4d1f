"""timm's vision transformer, of four blocks."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, TrialBench

ABOUT = ("modes",)
NEEDS = ("timm",)


def make_program(bench: TrialBench) -> Program:
    import timm

    name = "vit_base_patch16_224" if bench.gpu else "vit_tiny_patch16_224"
    model = timm.create_model(name, depth=bench.size(4, 1))
    compiled = bench.compile(bench.module(model))
    inputs = bench.inputs(bench.size(4, 1), 3, 224, 224)
    return lambda number: compiled(inputs(number))
