"""Token statistics on the device: confidence, log-probability of the token, entropy, self-certainty.

All are taken from the model's own distribution (before temperature and truncation), in float32 and
nats. One log-softmax serves all, and apart from plain sums there is only a top-k, never a sort. ``observe``
and ``draw`` take the kernels' way on a CUDA device with Triton.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from dttrl.kernels.choice import choose, pick
from dttrl.settings.sections import Sampling

STATISTICS = 4
CHUNK_ENTRIES = 2**26
"""Logits whose log-softmax is held at once (256 MiB, twice): engines give away nearly all memory."""


def token_statistics(
    logprob_BV: Tensor, probability_BV: Tensor, token_B: Tensor, k: int, out_4B: Tensor
) -> None:
    """Write the statistics of one position into ``out_4B`` (float32), a row each.

    0. Confidence: minus the mean of the top ``min(k, V)`` log-probabilities (DeepConf, arXiv 2508.15260;
       exactly those, whether or not the chosen token is among them). Entries of minus infinity (masked
       tokens) are missing and do not count.
    1. Log-probability of the chosen token.
    2. Entropy over the whole vocabulary.
    3. Self-certainty, KL(uniform || p) (arXiv 2502.18581); infinite where tokens are masked.

    ``probability_BV`` is ``logprob_BV.exp()``.
    """
    size = logprob_BV.shape[-1]
    top_BK = logprob_BV if k >= size else torch.topk(logprob_BV, k, dim=-1, sorted=False).values
    lowest = torch.finfo(logprob_BV.dtype).min
    finite_BK = top_BK >= lowest
    torch.div((top_BK.clamp_min(lowest) * finite_BK).sum(-1), finite_BK.sum(-1).neg_(), out=out_4B[0])
    torch.gather(logprob_BV, -1, token_B[:, None], out=out_4B[1][:, None])
    # 0 * -inf is NaN; the clamped factor makes it the limit, 0.
    torch.neg(torch.linalg.vecdot(probability_BV, logprob_BV.clamp_min(lowest)), out=out_4B[2])
    torch.neg(logprob_BV.mean(-1).add_(math.log(size)), out=out_4B[3])


def choose_observed(
    logits_RV: Tensor, uniform_R: Tensor, settings: Sampling, out_4R: Tensor | None
) -> Tensor:
    """Return the chosen token of each row, int64 (R,), and write its statistics into ``out_4R``, if given."""
    if out_4R is None:
        return choose(logits_RV, None, uniform_R, settings)
    logprob_RV = torch.log_softmax(logits_RV, -1)
    probability_RV = logprob_RV.exp()
    token_R = choose(logits_RV, probability_RV, uniform_R, settings)
    token_statistics(logprob_RV, probability_RV, token_R, settings.k, out_4R)
    return token_R


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
        from dttrl.kernels import logit_kernels
    except ImportError:
        return None
    return logit_kernels
