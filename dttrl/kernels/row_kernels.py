"""What the kernels over a row of logits share: one pass that sums it up, a token by inverse CDF, statistics.

The pass reads every logit once, a block of the vocabulary a program, and leaves sums a block and the largest
logit of every 64. From these a token's block is found and its place from that block alone, and the largest
logits are taken one by one from the runs of 64 that hold them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

RUN = 64
BLOCK = 4096
_SUMS = 5


@triton.jit
def _summarise(  # type: ignore[no-untyped-def]
    logits, sums, largest, size, stride, blocks, inverse_temperature, RUN: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    run = tl.arange(0, 64)
    place = block * 64 * RUN + run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    inside = place < size
    x = tl.load(logits + row * stride + place, mask=inside, other=float("-inf")).to(tl.float32)
    top_of_run = tl.max(x, 1)
    tl.store(largest + (row * blocks + block) * 64 + run, top_of_run)
    top = tl.max(top_of_run, 0)
    finite_top = tl.where(top == float("-inf"), 0.0, top)
    difference = tl.where(x == float("-inf"), 0.0, x - finite_top)
    weight = tl.where(x == float("-inf"), 0.0, tl.exp(difference))
    at = sums + (row * blocks + block) * 5
    tl.store(at, top)
    tl.store(at + 1, tl.sum(tl.sum(weight, 1), 0))
    tl.store(at + 2, tl.sum(tl.sum(weight * difference, 1), 0))
    tl.store(at + 3, tl.sum(tl.sum(tl.where(inside, x, 0.0), 1), 0))
    warm = tl.where(x == float("-inf"), 0.0, tl.exp(difference * inverse_temperature))
    tl.store(at + 4, tl.sum(tl.sum(warm, 1), 0))


@triton.jit
def _sum_of_largest(logits, largest, top, size, count, k, RUN: tl.constexpr, RUNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of (logit - top) over the k largest of a row, and how many of them are finite (float32).

    Equal logits are taken together: at most k rounds, each a look into the one run that holds the value.
    """
    NONE: tl.constexpr = 1 << 30
    runs = tl.arange(0, RUNS)
    best = tl.load(largest + runs, mask=runs < count, other=float("-inf"))
    value = top
    left = tl.full([], 0, tl.int32) + k
    gathered = tl.full([], 0.0, tl.float32)
    while (left > 0) & (value > float("-inf")):
        holder = tl.min(tl.where(best == value, runs, NONE), 0)
        place = holder * RUN + tl.arange(0, RUN)
        y = tl.load(logits + place, mask=place < size, other=float("-inf")).to(tl.float32)
        taken = tl.minimum(tl.sum((y == value).to(tl.int32), 0), left)
        gathered += taken.to(tl.float32) * (value - top)
        left -= taken
        best = tl.where(runs == holder, tl.max(tl.where(y < value, y, float("-inf")), 0), best)
        value = tl.max(best, 0)
    return gathered, (tl.full([], 0, tl.int32) + k - left).to(tl.float32)


@triton.jit
def place_of(  # type: ignore[no-untyped-def]
    logits, sums, number, size, blocks, inverse_temperature,
    RUN: tl.constexpr, BLOCKS: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Token of a row at ``number`` in [0, 1) of its cumulative probability; GREEDY: first of the largest."""
    NONE: tl.constexpr = 1 << 30
    BLOCK: tl.constexpr = 64 * RUN
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    at = sums + index * 5
    top_B = tl.load(at, mask=there, other=float("-inf"))
    top = tl.max(top_B, 0)
    # Which block holds the token, and what weight comes before that block.
    if GREEDY:
        block = tl.min(tl.where(there & (top_B == top), index, NONE), 0)
        before = 0.0
        target = 0.0
    else:
        alive_B = there & (top_B > float("-inf"))
        difference_B = tl.where(alive_B, top_B - top, 0.0)
        warm_B = tl.load(at + 4, mask=there, other=0.0)
        weight_B = tl.where(alive_B, warm_B * tl.exp(difference_B * inverse_temperature), 0.0)
        cumulative_B = tl.cumsum(weight_B, 0)
        target = number * tl.max(cumulative_B, 0)
        block = tl.min(tl.where((cumulative_B > target) & (weight_B > 0), index, NONE), 0)
        before = tl.max(tl.where(index < block, cumulative_B, 0.0), 0)
    block = tl.minimum(block, blocks - 1)
    place = tl.arange(0, BLOCK)
    inside = block * BLOCK + place < size
    x = tl.load(logits + block * BLOCK + place, mask=inside, other=float("-inf")).to(tl.float32)
    if GREEDY:
        chosen = tl.min(tl.where(x == top, place, NONE), 0)
    else:
        weight = tl.where(x > float("-inf"), tl.exp((x - top) * inverse_temperature), 0.0)
        cumulative = before + tl.cumsum(weight, 0)
        last = tl.max(tl.where(weight > 0, place, 0), 0)
        chosen = tl.min(tl.where((cumulative > target) & (weight > 0), place, NONE), 0)
        # By rounding the block's own sum may end just under the target.
        chosen = tl.minimum(chosen, last)
    # The bound is for logits that are not numbers.
    chosen = tl.minimum(chosen, tl.minimum(BLOCK, size - block * BLOCK) - 1)
    return block * BLOCK + chosen


@triton.jit
def write_statistics(  # type: ignore[no-untyped-def]
    logits, sums, largest, token, out, rows, size, blocks, k,
    RUN: tl.constexpr, BLOCKS: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Write a row's four statistics (see ``token_statistics``) to ``out``, ``rows`` apart."""
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    at = sums + index * 5
    top_B = tl.load(at, mask=there, other=float("-inf"))
    top = tl.max(top_B, 0)
    alive_B = there & (top_B > float("-inf"))
    difference_B = tl.where(alive_B, top_B - top, 0.0)
    fade_B = tl.exp(difference_B)
    sum_B = tl.load(at + 1, mask=alive_B, other=0.0) * fade_B
    mean_B = tl.load(at + 2, mask=alive_B, other=0.0) * fade_B + sum_B * difference_B
    total = tl.sum(sum_B, 0)
    log_total = tl.log(total)
    plain = tl.sum(tl.load(at + 3, mask=there, other=0.0), 0) / size
    gathered, finite = _sum_of_largest(logits, largest, top, size, blocks * 64, k, RUN, RUNS)
    own = tl.load(logits + token).to(tl.float32)
    tl.store(out, log_total - gathered / finite)
    tl.store(out + rows, own - top - log_total)
    tl.store(out + 2 * rows, log_total - tl.sum(mean_B, 0) / total)
    tl.store(out + 3 * rows, top + log_total - plain - tl.log(tl.full([], 0.0, tl.float32) + size))


class Summary:
    """Room for what the pass over logits (rows, size) leaves: float32 sums a block, largest logits a run."""

    def __init__(self, rows: int, size: int, device: torch.device) -> None:
        self.rows, self.size = rows, size
        self.blocks = triton.cdiv(size, BLOCK)
        self.sums = torch.empty(rows, self.blocks, _SUMS, device=device)
        self.largest = torch.empty(rows, self.blocks * (BLOCK // RUN), device=device)

    @property
    def shape(self) -> dict[str, int]:
        """The kernels' compile-time constants."""
        return {"RUN": RUN, "BLOCKS": triton.next_power_of_2(self.blocks)}

    @property
    def runs(self) -> int:
        """Runs of a row, made a power of two."""
        return int(triton.next_power_of_2(self.blocks * (BLOCK // RUN)))

    def take(self, logits_RV: Tensor, inverse_temperature: float = 1.0) -> None:
        """Queue the pass over logits of any float type whose rows are contiguous."""
        _summarise[(self.rows, self.blocks)](
            logits_RV,
            self.sums,
            self.largest,
            self.size,
            logits_RV.stride(0),
            self.blocks,
            inverse_temperature,
            RUN=RUN,
            num_warps=4,
        )
