"""Triton kernels that turn the logits of a step into tokens and token statistics without leaving the device.

Two launches: the pass over the logits, and one that chooses a token a row and writes its statistics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dttrl.sampling.fused.row_kernels import Summary, place_of, write_statistics


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits,
    sums,
    largest,
    uniform,
    step,
    token,
    position,
    tokens_out,
    numbers_out,
    size,
    blocks,
    rows,
    k,
    inverse_temperature,
    RUN: tl.constexpr,
    BLOCKS: tl.constexpr,
    RUNS: tl.constexpr,
    GREEDY: tl.constexpr,
    STATISTICS: tl.constexpr,
):
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


class Chooser:
    """Chooses a token a row from bfloat16 logits (R, V) by inverse CDF, with the plain path's statistics.

    ``temperature`` 0 takes the first of the largest logits. Writes at the place ``step`` (int32, one entry):
    ``tokens_TR`` int64, ``numbers_T4R`` float32 as in ``token_statistics``; and the token to ``token_R`` and
    one more to ``position_R``.
    """

    def __init__(self, rows: int, size: int, device: torch.device) -> None:
        self._summary = Summary(rows, size, device)

    def choose(
        self,
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
        """Queue the two kernels; nothing waits."""
        rows, size = logits_RV.shape
        inverse = 1.0 if temperature == 0 else 1.0 / temperature
        summary = self._summary
        summary.take(logits_RV, inverse)
        _choose[(rows,)](
            logits_RV,
            summary.sums,
            summary.largest,
            uniform_TR,
            step,
            token_R,
            position_R,
            tokens_TR,
            tokens_TR if numbers_T4R is None else numbers_T4R,
            size,
            summary.blocks,
            rows,
            min(k, size),
            inverse,
            **summary.shape,
            RUNS=summary.runs,
            GREEDY=temperature == 0,
            STATISTICS=numbers_T4R is not None,
            num_warps=4,
        )
