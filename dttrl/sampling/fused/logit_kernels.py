"""Tokens and token statistics from the logits of another engine: the kernels that vLLM's hooks call.

They take logits of any float type, float32 inside, with rows of any stride; nothing waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dttrl.sampling.fused.row_kernels import Summary, place_of, write_statistics


@triton.jit
def _observe(  # type: ignore[no-untyped-def]
    logits, sums, largest, token, out, rows, size, stride, blocks, k,
    RUN: tl.constexpr, BLOCKS: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    # The bound is for a row without a token, whose statistics nobody reads.
    own = tl.minimum(tl.maximum(tl.load(token + row).to(tl.int64), 0), size - 1)
    write_statistics(
        logits + row * stride, sums + row * blocks * 5, largest + row * blocks * 64, own, out + row,
        rows, size, blocks, k, RUN, BLOCKS, RUNS,
    )  # fmt: skip


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits, sums, uniform, token, size, stride, blocks, RUN: tl.constexpr, BLOCKS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(uniform + row)
    answer = place_of(
        logits + row * stride, sums + row * blocks * 5, number, size, blocks, 1.0, RUN, BLOCKS, False
    )
    tl.store(token + row, answer.to(tl.int64))


def observe(logits_RV: Tensor, token_R: Tensor, k: int, out_4R: Tensor) -> None:
    """Write the statistics of the tokens ``token_R`` (integers) into ``out_4R`` (float32, contiguous).

    The numbers are those of ``token_statistics`` of ``log_softmax(logits_RV)``.
    """
    rows, size = logits_RV.shape
    logits_RV = _rows(logits_RV)
    summary = Summary(rows, size, logits_RV.device)
    summary.take(logits_RV)
    _observe[(rows,)](
        logits_RV, summary.sums, summary.largest, token_R.contiguous(), out_4R, rows, size,
        logits_RV.stride(0), summary.blocks, min(k, size), **summary.shape, RUNS=summary.runs, num_warps=4,
    )  # fmt: skip


def draw(logits_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the token (R,), int64, at ``uniform_R`` (float32, [0, 1)) of each row's cumulative probability.

    Tokens whose logit is minus infinity are never drawn.
    """
    rows, size = logits_RV.shape
    logits_RV = _rows(logits_RV)
    summary = Summary(rows, size, logits_RV.device)
    summary.take(logits_RV)
    token_R = torch.empty(rows, dtype=torch.long, device=logits_RV.device)
    _draw[(rows,)](
        logits_RV, summary.sums, uniform_R, token_R, size, logits_RV.stride(0), summary.blocks,
        **summary.shape, num_warps=4,
    )  # fmt: skip
    return token_R


def _rows(logits_RV: Tensor) -> Tensor:
    return logits_RV if logits_RV.stride(1) == 1 else logits_RV.contiguous()
