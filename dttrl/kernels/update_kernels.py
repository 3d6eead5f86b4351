"""Triton kernels of a training pass: norm, rotary embedding, gate and log-probabilities, both ways."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_backward(  # type: ignore[no-untyped-def]
    total, weight, scales, grad_out, grad_total, grad_stream, grad_delta, grad_weight, rows, width,
    ADD: tl.constexpr, CARRIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of ``norm``; a program takes every n-th row and leaves its share of the weight's."""
    first = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < width
    w = tl.load(weight + place, mask=inside, other=0.0)
    share = tl.zeros([BLOCK], tl.float32)
    for row in range(first, rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * width + place
        scale = tl.load(scales + row)
        normal = tl.load(total + at, mask=inside, other=0.0) * scale
        g = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        share += g * normal
        g *= w
        result = (g - normal * (tl.sum(g * normal, 0) / width)) * scale
        if CARRIED:
            result += tl.load(grad_total + at, mask=inside, other=0.0)
        tl.store(grad_stream + at, result, mask=inside)
        if ADD:
            tl.store(grad_delta + at, result.to(grad_delta.dtype.element_ty), mask=inside)
    tl.store(grad_weight + first.to(tl.int64) * width + place, share, mask=inside)


@triton.jit
def rotate(  # type: ignore[no-untyped-def]
    queries, keys, values, query_stride, key_stride, value_stride, out, cos, sin, length, sign,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write queries and keys turned by their positions, and values, side by side; one token a program.

    ``sign`` -1 turns back, which is the backward pass.
    """
    token = tl.program_id(0).to(tl.int64)
    position = token % length
    half = tl.arange(0, HALF)[None, :]
    head = tl.arange(0, PADDED)[:, None]
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    q_at = queries + token * query_stride + head * 2 * HALF + half
    k_at = keys + token * key_stride + (head - HEADS) * 2 * HALF + half
    v_at = values + token * value_stride + (head - HEADS - KV_HEADS) * 2 * HALF + half
    a = (
        tl.load(q_at, mask=is_query, other=0.0).to(tl.float32)
        + tl.load(k_at, mask=is_key, other=0.0).to(tl.float32)
        + tl.load(v_at, mask=is_value, other=0.0).to(tl.float32)
    )
    b = (
        tl.load(q_at + HALF, mask=is_query, other=0.0).to(tl.float32)
        + tl.load(k_at + HALF, mask=is_key, other=0.0).to(tl.float32)
        + tl.load(v_at + HALF, mask=is_value, other=0.0).to(tl.float32)
    )
    c = tl.where(is_value, 1.0, tl.load(cos + position * HALF + half))
    s = tl.where(is_value, 0.0, tl.load(sin + position * HALF + half) * sign)
    at = out + token * (HEADS + 2 * KV_HEADS) * 2 * HALF + head * 2 * HALF + half
    there = head < HEADS + 2 * KV_HEADS
    tl.store(at, (a * c - b * s).to(out.dtype.element_ty), mask=there)
    tl.store(at + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=there)


@triton.jit
def gate_backward(both, grad_out, grad_both, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradient of silu(first half) * second half."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    at = row * 2 * width + place
    gate = tl.load(both + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + at + width, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad_out + row * width + place, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    kind = grad_both.dtype.element_ty
    tl.store(grad_both + at, (g * up * share * (1 + gate * (1 - share))).to(kind), mask=inside)
    tl.store(grad_both + at + width, (g * gate * share).to(kind), mask=inside)


@triton.jit
def select_forward(  # type: ignore[no-untyped-def]
    logits, token, chosen, log_sum, size, inverse_temperature, BLOCK: tl.constexpr
):
    """Log-probability of one token a row and the row's log-sum-exp, in one pass over the logits."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * size + place, mask=place < size, other=float("-inf")).to(tl.float32)
        x *= inverse_temperature
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = new_top
    highest = tl.max(top, 0)
    result = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    x = tl.load(logits + row * size + tl.load(token + row)).to(tl.float32) * inverse_temperature
    tl.store(log_sum + row, result)
    tl.store(chosen + row, x - result)


@triton.jit
def select_backward(  # type: ignore[no-untyped-def]
    logits, token, log_sum, grad, size, inverse_temperature, BLOCK: tl.constexpr
):
    """Replace the logits by the gradient of ``select_forward`` with respect to them."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    at = logits + row * size + place
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32) * inverse_temperature
    own = tl.where(place == tl.load(token + row), 1.0, 0.0)
    g = tl.load(grad + row) * inverse_temperature
    result = g * (own - tl.exp(x - tl.load(log_sum + row)))
    tl.store(at, result.to(logits.dtype.element_ty), mask=inside)
