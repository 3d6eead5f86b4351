"""Triton kernels from logits to tokens and token statistics; nothing waits for the device.

``choose_in_place`` serves a decoding step of our own: two launches, the pass over the logits, and one that
chooses a token a row and writes its statistics. ``observe`` and ``draw`` are what vLLM's hooks call: they
take logits of any float type, float32 inside, with rows of any stride.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dttrl.kernels.row_kernels import Summary, place_of, write_statistics


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, sums, largest, uniform, step, token, position, tokens_out, numbers_out, size, blocks, rows, k,
    inverse_temperature, RUN: tl.constexpr, BLOCKS: tl.constexpr, RUNS: tl.constexpr,
    GREEDY: tl.constexpr, STATISTICS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(step)
    own_logits = logits + row * size
    own_sums = sums + row * blocks * 5
    number = 0.0 if GREEDY else tl.load(uniform + t * rows + row)
    answer = place_of(own_logits, own_sums, number, size, blocks, inverse_temperature, RUN, BLOCKS, GREEDY)
    tl.store(token + row, answer.to(tl.int64))
    tl.store(tokens_out + t * rows + row, answer.to(tl.int64))
    tl.store(position + row, tl.load(position + row) + 1)
    if STATISTICS:
        write_statistics(
            own_logits, own_sums, largest + row * blocks * 64, answer, numbers_out + t * 4 * rows + row,
            rows, size, blocks, k, RUN, BLOCKS, RUNS,
        )  # fmt: skip


def choose_in_place(
    summary: Summary,
    logits_RV: Tensor,
    uniform_TR: Tensor,
    step: Tensor,
    token_R: Tensor,
    position_R: Tensor,
    tokens_TR: Tensor,
    numbers_T4R: Tensor | None,
    *,
    k: int,
    temperature: float,
) -> None:
    """Choose a token a row from bfloat16 logits (R, V) by inverse CDF, with the plain path's statistics.

    ``temperature`` 0 takes the first of the largest logits. Writes at the place ``step`` (int32, one entry):
    ``tokens_TR`` int64, ``numbers_T4R`` float32 as in ``token_statistics``; and the token to ``token_R`` and
    one more to ``position_R``. ``summary`` is room for the pass over the logits.
    """
    rows, size = logits_RV.shape
    inverse = 1.0 if temperature == 0 else 1.0 / temperature
    summary.take(logits_RV, inverse)
    _choose[(rows,)](
        logits_RV, summary.sums, summary.largest, uniform_TR, step, token_R, position_R, tokens_TR,
        tokens_TR if numbers_T4R is None else numbers_T4R, size, summary.blocks, rows, min(k, size),
        inverse, **summary.shape, RUNS=summary.runs, GREEDY=temperature == 0,
        STATISTICS=numbers_T4R is not None, num_warps=4,
    )  # fmt: skip


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
