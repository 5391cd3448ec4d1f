# requires: transformers accelerate
# mypy: ignore-errors
"""Three steps of transformers' Trainer with torch_compile=True."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 128, (12, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]

arguments = TrainingArguments(
    output_dir="trained",
    max_steps=3,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    torch_compile=True,
    torch_compile_mode="reduce-overhead",
    dataloader_num_workers=1,
    disable_tqdm=True,
    log_level="error",
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
for row in trainer.state.log_history:
    if "loss" in row:
        print("loss", row["step"], float(row["loss"]))
