"""The hidden states of a Llama-family model for rows padded on the right, differentiable, in bfloat16.

Arithmetic as under autocast: float32 weights and residual stream, bfloat16 in matrix products. No attention
mask is needed, since causal attention never looks at padding on the right. Residual with norm, rotary
embedding and gate are kernels with a backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dttrl.kernels import update_kernels
from dttrl.kernels.decode_kernels import add_norm, gate, warps
from dttrl.kernels.shadow import Shadow

# Not cuDNN's: it prepares a plan for every new shape, and every micro-batch has another.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# Programs that share the rows of a backward norm; each leaves one row of the weight's gradient to add up.
_PROGRAMS = 512


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


class AddNorm(torch.autograd.Function):
    """(stream float32, delta bfloat16 or None, weight) to the sum and its RMS norm in bfloat16."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, stream_TH: Tensor, delta_TH: Tensor | None, weight_H: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        add = delta_TH is not None
        total_TH = torch.empty_like(stream_TH) if add else stream_TH
        scale_T = torch.empty(len(stream_TH), device=stream_TH.device)
        out_TH = add_norm(stream_TH, delta_TH, weight_H, eps, total_RH=total_TH, scale_R=scale_T)
        ctx.save_for_backward(total_TH, weight_H, scale_T)
        ctx.add = add
        ctx.set_materialize_grads(False)
        # A tensor returned as it came would be taken for a view of the input.
        return (total_TH if add else stream_TH.view_as(stream_TH)), out_TH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # noqa: D102
        grad_total, grad_out = grads
        total_TH, weight_H, scale_T = ctx.saved_tensors
        if grad_out is None:
            carried = grad_total.to(torch.bfloat16) if ctx.add and grad_total is not None else None
            return grad_total, carried, None, None
        rows, width = total_TH.shape
        programs = min(rows, _PROGRAMS)
        grad_stream = torch.empty_like(total_TH)
        grad_delta = torch.empty_like(grad_out) if ctx.add else grad_stream
        grad_weight = torch.empty(programs, width, device=total_TH.device)
        update_kernels.norm_backward[(programs,)](
            total_TH, weight_H, scale_T, grad_out.contiguous(),
            total_TH if grad_total is None else grad_total.contiguous(),
            grad_stream, grad_delta, grad_weight, rows, width, ADD=ctx.add, CARRIED=grad_total is not None,
            BLOCK=triton.next_power_of_2(width), num_warps=warps(width),
        )  # fmt: skip
        return grad_stream, (grad_delta if ctx.add else None), grad_weight.sum(0).to(weight_H.dtype), None


class Rotate(torch.autograd.Function):
    """Queries, keys and values (N, L, heads, D) of ``qkv`` (N * L, ...), the first two turned by position."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, qkv_TW: Tensor, cos: Tensor, sin: Tensor, length: int, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = qkv_TW.shape[1] // (heads + 2 * kv_heads)
        sizes = [heads, kv_heads, kv_heads]
        parts = qkv_TW.split([size * width for size in sizes], dim=1)
        out_TW = _rotate(parts, cos, sin, length, 1.0, sizes, width)
        ctx.save_for_backward(cos, sin)
        ctx.length, ctx.sizes, ctx.width = length, sizes, width
        out = out_TW.view(-1, length, heads + 2 * kv_heads, width)
        q, k, v = out.split(sizes, dim=2)
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # noqa: D102
        cos, sin = ctx.saved_tensors
        parts = [
            grad.contiguous().view(-1, size * ctx.width) for grad, size in zip(grads, ctx.sizes, strict=True)
        ]
        return _rotate(parts, cos, sin, ctx.length, -1.0, ctx.sizes, ctx.width), *[None] * 5


def _rotate(
    parts: Any, cos: Tensor, sin: Tensor, length: int, sign: float, sizes: list[int], width: int
) -> Tensor:
    tokens, heads = parts[0].shape[0], sum(sizes)
    out = torch.empty(tokens, heads * width, dtype=parts[0].dtype, device=parts[0].device)
    update_kernels.rotate[(tokens,)](
        *parts, *[part.stride(0) for part in parts], out, cos, sin, length, sign, HEADS=sizes[0],
        KV_HEADS=sizes[1], HALF=width // 2, PADDED=triton.next_power_of_2(heads), num_warps=4,
    )  # fmt: skip
    return out


class Gate(torch.autograd.Function):
    """silu(first half) * second half of each row."""

    @staticmethod
    def forward(ctx: Any, both_TG: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(both_TG)
        return gate(both_TG)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: D102
        (both_TG,) = ctx.saved_tensors
        grad_both = torch.empty_like(both_TG)
        rows, width = both_TG.shape[0], both_TG.shape[1] // 2
        update_kernels.gate_backward[(rows, triton.cdiv(width, 1024))](
            both_TG, grads[0].contiguous(), grad_both, width, BLOCK=1024, num_warps=4
        )
        return grad_both
