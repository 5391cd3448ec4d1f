"""transformers' BERT, of four layers."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, TrialBench

ABOUT = ("modes", "freezing", "multi_kernel", "coordinate_descent_tuning")
NEEDS = ("transformers.models.bert.modeling_bert",)


def make_program(bench: TrialBench) -> Program:
    from transformers import BertConfig, BertModel

    width = bench.size(768, 64)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=bench.size(4, 1),
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
    )
    compiled = bench.compile(bench.module(BertModel(config)))
    tokens = bench.tokens(30000, 1, bench.size(128, 16))
    return lambda number: compiled(tokens(number)).last_hidden_state
