"""transformers' ``generate`` with a static cache, which transformers itself compiles."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

ABOUT = ("modes", "switches")
NEEDS = ("transformers.models.llama.modeling_llama",)
GPU = True
TOKENS = 16


def make_program(bench: TrialBench) -> Program:
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    # In 32 bits, so that two tokens that are nearly as likely do not change places by rounding.
    model = bench.module(LlamaForCausalLM(config), bench.torch.float32)
    prompts = bench.tokens(1024, 1, 12)
    settings: dict[str, object] = {"disable_compile": True}
    if bench.compiled:
        mode = bench.mode or "default"
        settings = {"compile_config": CompileConfig(mode=mode, fullgraph=False)}

    def call(number: int) -> Result:
        prompt = prompts(number)
        found: Result = model.generate(
            prompt,
            attention_mask=bench.torch.ones_like(prompt),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
            **settings,
        )
        return found

    return call
