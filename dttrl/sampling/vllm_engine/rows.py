"""Statistics and draw of one step's rows: by kernels on a CUDA device with Triton, by PyTorch elsewhere."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from dttrl.sampling.choice import pick
from dttrl.sampling.statistics import token_statistics

CHUNK_ENTRIES = 2**26
"""Logits whose log-softmax is held at once (256 MiB, twice): engines give away nearly all memory."""


def observe(
    logits_RV: Tensor, token_R: Tensor, k: int, out_4R: Tensor, *, chunk_entries: int = CHUNK_ENTRIES
) -> None:
    """Write the four statistics of each row's token (see ``token_statistics``) into ``out_4R``, float32."""
    kernels = _kernels(logits_RV.device.type)
    if kernels is not None:
        kernels.observe(logits_RV, token_R, k, out_4R)
        return
    rows, size = logits_RV.shape
    step = max(1, chunk_entries // size)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        logprob_BV = torch.log_softmax(logits_RV[piece], -1, dtype=torch.float32)
        token_statistics(logprob_BV, logprob_BV.exp(), token_R[piece].long(), k, out_4R[:, piece])


def draw(logits_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the token (R,), int64, at ``uniform_R`` in [0, 1) of each row's cumulative probability."""
    kernels = _kernels(logits_RV.device.type)
    if kernels is not None:
        drawn_R: Tensor = kernels.draw(logits_RV, uniform_R)
        return drawn_R
    return pick(torch.softmax(logits_RV, -1, dtype=torch.float32), uniform_R)


@cache
def _kernels(device: str) -> ModuleType | None:
    if device != "cuda":
        return None
    try:
        from dttrl.sampling.fused import logit_kernels
    except ImportError:
        return None
    return logit_kernels
