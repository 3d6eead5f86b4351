"""A tiny causal language model with random weights, as a Hugging Face folder, and questions for it."""

from __future__ import annotations

import json
from pathlib import Path

CHARACTERS = "0123456789+=?\\boxed{} \n"


def write_model(folder: Path, *, seed: int = 0) -> Path:
    """Write a two-layer Llama (about 20 k parameters) whose tokens are characters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", *dict.fromkeys(CHARACTERS)]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_questions(path: Path, n: int = 6, *, with_answers: bool = True) -> Path:
    """Write sums of two digits as questions, one a line."""
    rows = []
    for i in range(n):
        row = {"id": f"q{i}", "prompt": f"{i}+{i + 1}=?\\boxed{{", "source": "sums"}
        if with_answers:
            row["answer"] = str(2 * i + 1)
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
