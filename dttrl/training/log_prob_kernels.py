"""Triton kernels that take one token's log-probability a row from logits, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl


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
