"""Which models the fused kernels take, and what is said where they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models
from torch import nn

from dttrl.errors import InputError
from dttrl.kernels.architecture import take_apart
from dttrl.sampling.transformers import TransformersSampler


def build(family: str, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "vocab_size": 20,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
    config = getattr(transformers, f"{family}Config")(**{**fields, **changes})
    return getattr(transformers, f"{family}ForCausalLM")(config)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Llama", {}), ("Mistral", {"sliding_window": None}), ("Qwen2", {}), ("Qwen3", {})],
)
def test_known_families_are_taken_apart(family: str, changes: dict[str, Any]) -> None:
    model = build(family, **changes)
    part = take_apart(model)
    assert part is not None
    assert (part.heads, part.kv_heads, part.width) == (2, 1, 32)
    assert part.head_norm == (family == "Qwen3")
    cos, sin = part.rotary_table(7, torch.device("cpu"))
    states = torch.zeros(1, 1, 64)
    expected = model.model.rotary_emb(states, torch.arange(7)[None])
    torch.testing.assert_close(torch.cat([cos, cos], -1), expected[0][0])
    torch.testing.assert_close(torch.cat([sin, sin], -1), expected[1][0])


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Mistral", {"sliding_window": 8}),
        ("Llama", {"head_dim": 24}),
        ("Llama", {"hidden_act": "gelu"}),
        ("Llama", {"mlp_bias": True}),
        ("Gemma", {}),
    ],
)
def test_others_are_left_to_the_general_path(family: str, changes: dict[str, Any]) -> None:
    assert take_apart(build(family, **changes)) is None


def test_a_replaced_linear_layer_is_left_to_the_general_path() -> None:
    class Adapted(nn.Linear):
        pass

    model = build("Llama")
    model.model.layers[1].mlp.up_proj = Adapted(64, 32, bias=False)
    assert take_apart(model) is None


def test_asking_for_fused_decoding_where_it_cannot_be_is_an_error() -> None:
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))
    with pytest.raises(InputError, match="fused decoding needs"):
        TransformersSampler(build("Gemma"), tokens, (), autocast_dtype=torch.bfloat16, fused=True)
    with pytest.raises(InputError, match="bfloat16"):
        TransformersSampler(build("Llama"), tokens, (), fused=True)
