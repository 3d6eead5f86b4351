"""The hidden states of a Llama-family model for rows padded on the right, differentiable, in bfloat16.

Arithmetic as under autocast: float32 weights and residual stream, bfloat16 in matrix products. No attention
mask is needed, since causal attention never looks at padding on the right.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dttrl.training.fused.functions import AddNorm, Gate, Rotate
from dttrl.training.fused.shadow import Shadow

# Not cuDNN's: it prepares a plan for every new shape, and every micro-batch has another.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def hidden_states(shadow: Shadow, ids_NL: Tensor) -> Tensor:
    """Return the normed states after the last layer, bfloat16 (N * L, H).

    Gradients of the layers' matrices go to the shadow's sums, all others to their parameters.
    """
    part, (rows, length) = shadow.architecture, ids_NL.shape
    cos, sin = part.rotary_table(length, ids_NL.device)
    stream_TH = F.embedding(ids_NL.reshape(-1), part.embedding.weight).float()
    delta_TH = None
    with torch.autocast(ids_NL.device.type, enabled=False), sdpa_kernel(_BACKENDS):
        for layer, weights in zip(part.layers, shadow.weights.layers, strict=True):
            stream_TH, x_TH = AddNorm.apply(stream_TH, delta_TH, layer.input_layernorm.weight, part.eps)
            qkv_TW = shadow.linear(x_TH, weights.qkv, weights.qkv_bias)
            q, k, v = Rotate.apply(qkv_TW, cos, sin, length, part.heads, part.kv_heads)
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=part.heads != part.kv_heads,
            )
            delta_TH = shadow.linear(mixed.transpose(1, 2).reshape(rows * length, -1), weights.out)
            norm_H = layer.post_attention_layernorm.weight
            stream_TH, x_TH = AddNorm.apply(stream_TH, delta_TH, norm_H, part.eps)
            delta_TH = shadow.linear(Gate.apply(shadow.linear(x_TH, weights.gate_up)), weights.down)
        return AddNorm.apply(stream_TH, delta_TH, part.norm.weight, part.eps)[1]
