"""Token statistics on the device: confidence, log-probability of the token, entropy, self-certainty.

All are taken from the model's own distribution (before temperature and truncation), in float32 and
nats. One log-softmax serves all, and apart from plain sums there is only a top-k, never a sort.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STATISTICS = 4


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
