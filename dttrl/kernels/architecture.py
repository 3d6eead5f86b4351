"""Which models the fused kernels compute, and where in such a model each weight is."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

_FAMILIES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
# Rotary tables of these kinds do not depend on how long the sequence is.
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported model taken apart: modules, and sizes in heads and numbers."""

    model: Any
    layers: tuple[Any, ...]
    embedding: Any
    norm: Any
    head: Any
    rotary: Any
    heads: int
    kv_heads: int
    width: int
    """Numbers a head."""
    eps: float
    head_norm: bool
    """Whether queries and keys are normalised a head (Qwen3)."""

    def rotary_table(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, float32 (length, width / 2) each."""
        probe = torch.zeros(1, dtype=torch.float32, device=device)
        with torch.autocast(device.type, enabled=False):
            cos, sin = self.rotary(probe, torch.arange(length, device=device)[None])
        half = self.width // 2
        return cos[0, :, :half].float().contiguous(), sin[0, :, :half].float().contiguous()


@cache
def triton_installed() -> bool:
    """Say whether Triton can be imported and finds the C compiler it builds launchers with."""
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(
        shutil.which(name) for name in compilers if name
    )


def fusable(model: Any, autocast_dtype: torch.dtype | None) -> Architecture | None:
    """Return the parts of a model if the kernels can run and compute it: Triton, bfloat16, a known family."""
    arithmetic = autocast_dtype or next(model.parameters()).dtype
    return take_apart(model) if arithmetic == torch.bfloat16 and triton_installed() else None


def take_apart(model: Any) -> Architecture | None:
    """Return the parts of a model that the kernels can compute; None for any other.

    Supported are the plain causal language models of the Llama, Mistral, Qwen2 and Qwen3 families: full
    attention, SiLU, unmodified linear layers without adapters, and heads of 32, 64, 128 or 256 numbers.
    """
    if type(model).__name__ not in _FAMILIES or not type(model).__module__.startswith("transformers."):
        return None
    config, body = model.config, model.model
    attention = body.layers[0].self_attn
    width = attention.head_dim
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    plain = (
        width in (32, 64, 128, 256)
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and _attends_to_everything(config, body)
        and all(_plain_linears(layer) for layer in body.layers)
        and type(model.lm_head) is nn.Linear
        and model.lm_head.bias is None
        and type(body.embed_tokens) is nn.Embedding
    )
    if not plain:
        return None
    return Architecture(
        model=model,
        layers=tuple(body.layers),
        embedding=body.embed_tokens,
        norm=body.norm,
        head=model.lm_head,
        rotary=body.rotary_emb,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        width=width,
        eps=body.norm.variance_epsilon,
        head_norm=hasattr(attention, "q_norm"),
    )


def _attends_to_everything(config: Any, body: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in body.layers]
    return getattr(config, "sliding_window", None) is None and not any(windows)


def _plain_linears(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    others = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return (
        all(type(linear) is nn.Linear for linear in (*inputs, *others))
        and len({linear.bias is None for linear in inputs}) == 1
        and all(linear.bias is None for linear in others)
    )
