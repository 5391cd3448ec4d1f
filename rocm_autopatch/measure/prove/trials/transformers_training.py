"""A training step of transformers' BERT with autocast to bfloat16, as in fine-tuning.

The gradients are compared as one vector: some are zero but for rounding.
"""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

ABOUT = ("training",)
NEEDS = ("transformers.models.bert.modeling_bert",)
TRAINING = True


def make_program(bench: TrialBench) -> Program:
    from transformers import BertConfig, BertForSequenceClassification

    torch = bench.torch
    width = bench.size(512, 64)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
        vocab_size=1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).to(bench.device).train()
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = bench.compile(model)
    tokens = bench.tokens(1000, 8, bench.size(64, 16))
    labels = bench.tokens(2, 8)

    def call(number: int) -> Result:
        with torch.no_grad():
            for weight, first in zip(model.parameters(), start):
                weight.copy_(first)
        optimizer.zero_grad()
        with torch.autocast(bench.device, torch.bfloat16):
            loss = compiled(tokens(number), labels=labels(number)).loss
        loss.backward()
        gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        optimizer.step()
        # They come from numbers of 16 bits.
        return [loss.detach().bfloat16(), gradients.bfloat16()]

    return call
