"""Triton kernels of a decoding step: residual and norm, attention with rotary embedding, gated activation.

The residual stream is float32, what goes into matrix products bfloat16, and all sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def norm(  # type: ignore[no-untyped-def]
    stream, delta, weight, total, out, scales, width, eps,
    ADD: tl.constexpr, SCALES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Total = stream + delta; out = total * scale * weight; one row a program."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < width
    h = tl.load(stream + row * width + place, mask=inside, other=0.0)
    if ADD:
        h += tl.load(delta + row * width + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + place, h, mask=inside)
    scale = tl.rsqrt(tl.sum(h * h, 0) / width + eps)
    if SCALES:
        tl.store(scales + row, scale)
    w = tl.load(weight + place, mask=inside, other=0.0)
    tl.store(out + row * width + place, (h * scale * w).to(out.dtype.element_ty), mask=inside)


def add_norm(
    stream_RH: Tensor,
    delta_RH: Tensor | None,
    weight_H: Tensor,
    eps: float,
    *,
    total_RH: Tensor | None = None,
    scale_R: Tensor | None = None,
) -> Tensor:
    """Add ``delta_RH`` to the float32 stream; return its RMS norm times the weight, bfloat16.

    The sum goes to ``total_RH`` (default: in place), and what a row was divided by, inverted, to ``scale_R``.
    """
    rows, width = stream_RH.shape
    out_RH = torch.empty(rows, width, dtype=torch.bfloat16, device=stream_RH.device)
    norm[(rows,)](
        stream_RH, stream_RH if delta_RH is None else delta_RH, weight_H,
        stream_RH if total_RH is None else total_RH, out_RH, stream_RH if scale_R is None else scale_R,
        width, eps, ADD=delta_RH is not None, SCALES=scale_R is not None,
        BLOCK=triton.next_power_of_2(width), num_warps=warps(width),
    )  # fmt: skip
    return out_RH


def warps(width: int) -> int:
    """Return how many warps share a row."""
    return 4 if width <= 2048 else 8


@triton.jit
def _gate(both, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    gate = tl.load(both + row * 2 * width + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * width + width + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + place, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def gate(both_RG: Tensor) -> Tensor:
    """Return silu(first half) * second half of each row, in the dtype given."""
    rows, width = both_RG.shape[0], both_RG.shape[1] // 2
    out = torch.empty(rows, width, dtype=both_RG.dtype, device=both_RG.device)
    _gate[(rows, triton.cdiv(width, 1024))](both_RG, out, width, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    qkv, keys, values, out, slot, position, cos, sin, q_weight, k_weight, eps, scale, capacity,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, MEMBERS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = WIDTH // 2
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(position + row)
    half = tl.arange(0, HALF)
    full = tl.arange(0, WIDTH)
    member = tl.arange(0, MEMBERS)
    real = (member < GROUP)[:, None]
    base = qkv + row * (HEADS + 2 * KV_HEADS) * WIDTH
    q_at = base + (head * GROUP + member)[:, None] * WIDTH + half[None, :]
    q1 = tl.load(q_at, mask=real, other=0.0).to(tl.float32)
    q2 = tl.load(q_at + HALF, mask=real, other=0.0).to(tl.float32)
    k_at = base + (HEADS + head) * WIDTH + half
    k1 = tl.load(k_at).to(tl.float32)
    k2 = tl.load(k_at + HALF).to(tl.float32)
    if NORM:
        q_scale = tl.rsqrt((tl.sum(q1 * q1, 1) + tl.sum(q2 * q2, 1)) / WIDTH + eps)[:, None]
        q1 = q1 * q_scale * tl.load(q_weight + half)[None, :]
        q2 = q2 * q_scale * tl.load(q_weight + HALF + half)[None, :]
        k_scale = tl.rsqrt((tl.sum(k1 * k1, 0) + tl.sum(k2 * k2, 0)) / WIDTH + eps)
        k1 = k1 * k_scale * tl.load(k_weight + half)
        k2 = k2 * k_scale * tl.load(k_weight + HALF + half)
    c = tl.load(cos + length * HALF + half)
    s = tl.load(sin + length * HALF + half)
    q1r = (q1 * c[None, :] - q2 * s[None, :]).to(tl.bfloat16)
    q2r = (q2 * c[None, :] + q1 * s[None, :]).to(tl.bfloat16)
    k1r = (k1 * c - k2 * s).to(tl.bfloat16)
    k2r = (k2 * c + k1 * s).to(tl.bfloat16)
    v = tl.load(base + (HEADS + KV_HEADS + head) * WIDTH + full)
    cache = (tl.load(slot + row).to(tl.int64) * KV_HEADS + head) * capacity * WIDTH
    new = cache + length.to(tl.int64) * WIDTH
    tl.store(keys + new + half, k1r)
    tl.store(keys + new + HALF + half, k2r)
    tl.store(values + new + full, v)
    # The new token is taken from registers: what was just written need not be visible yet.
    top = (
        tl.sum(q1r.to(tl.float32) * k1r.to(tl.float32)[None, :], 1)
        + tl.sum(q2r.to(tl.float32) * k2r.to(tl.float32)[None, :], 1)
    ) * scale
    total = tl.zeros([MEMBERS], tl.float32) + 1.0
    mixed = tl.zeros([MEMBERS, WIDTH], tl.float32) + v.to(tl.float32)[None, :]
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = at < length
        key_at = keys + cache + at[None, :] * WIDTH + half[:, None]
        key1 = tl.load(key_at, mask=seen[None, :], other=0.0)
        key2 = tl.load(key_at + HALF, mask=seen[None, :], other=0.0)
        score = (tl.dot(q1r, key1) + tl.dot(q2r, key2)) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weight, 1)
        value = tl.load(values + cache + at[:, None] * WIDTH + full[None, :], mask=seen[:, None], other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(tl.bfloat16), value)
        top = new_top
    result = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * HEADS + head * GROUP + member)[:, None] * WIDTH + full[None, :], result, mask=real)


def attend(
    qkv_RW: Tensor,
    cache_2SKCD: Tensor,
    slot_R: Tensor,
    position_R: Tensor,
    rotary: tuple[Tensor, Tensor],
    head_norm: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Attention of one new token a row over its row of the cache, which takes the token's key and value.

    ``qkv_RW`` bfloat16 holds queries, keys and values before the rotary embedding; ``slot_R`` and
    ``position_R`` (int32) say which slot of the cache is the row's and how many tokens it holds;
    ``rotary`` is cosines and sines, float32 (C, D / 2). Returns bfloat16 (R, heads * D).
    """
    _, _, kv_heads, capacity, width = cache_2SKCD.shape
    rows = qkv_RW.shape[0]
    heads = qkv_RW.shape[1] // width - 2 * kv_heads
    out = torch.empty(rows, heads * width, dtype=torch.bfloat16, device=qkv_RW.device)
    q_weight, k_weight = head_norm if head_norm is not None else (rotary[0], rotary[0])
    _attend[(rows, kv_heads)](
        qkv_RW, cache_2SKCD[0], cache_2SKCD[1], out, slot_R, position_R, *rotary, q_weight, k_weight, eps,
        # Powers of two are cheaper than powers of e.
        width**-0.5 * 1.4426950408889634, capacity, HEADS=heads, KV_HEADS=kv_heads, WIDTH=width,
        MEMBERS=max(16, triton.next_power_of_2(heads // kv_heads)), BLOCK=64 if width <= 128 else 32,
        NORM=head_norm is not None, num_warps=4, num_stages=3 if width <= 64 else 2,
    )  # fmt: skip
    return out
