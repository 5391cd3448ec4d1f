# requires: sentence-transformers
# mypy: ignore-errors
"""Sentence embeddings of a model that is put together from modules and compiled."""

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "a", "small", "model", "reads", "one", "text"]
tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
config = BertConfig(vocab_size=len(words), intermediate_size=64, **size)
BertModel(config).save_pretrained("bert")
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
).save_pretrained("bert")

modules = [Transformer("bert", max_seq_length=32), Pooling(32), Normalize()]
model = SentenceTransformer(modules=modules, device="cpu")
texts = ["a small model", "one text reads", "a text", "small small small model"]
wanted = model.encode(texts, convert_to_tensor=True)
model.compile(mode="reduce-overhead", dynamic=True)
found = model.encode(texts, convert_to_tensor=True)
print("embedding", [round(value, 4) for value in found[0, :6].tolist()])
print("similarity", [round(value, 4) for value in model.similarity(found, found)[0].tolist()])
print("as eager", torch.allclose(found, wanted, atol=1e-4))
