"""Token statistics: confidence, log-probability of the token, entropy, self-certainty.

All are taken from the model's own distribution (before temperature and truncation), in nats. On the device,
in float32, one log-softmax serves all, and apart from plain sums there is only a top-k, never a sort.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dttrl.confidence import token_confidence, token_entropy

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


def flat_statistics(logprobs: Any, tokens: int) -> NDArray[np.float32]:
    """Return statistics (4, T) from vLLM's ``FlatLogprobs``: those of ``token_statistics``, from k entries.

    The first entry of a position is the sampled token, the k largest follow. The entropy is
    :func:`~dttrl.confidence.token_entropy`; self-certainty needs the whole vocabulary and is NaN.
    """
    value_TK = np.array(logprobs.logprobs, dtype=np.float32).reshape(tokens, -1)
    return row_statistics(value_TK[:, 0], value_TK[:, 1:])


def row_statistics(chosen_T: NDArray[np.float32], top_TK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return statistics (4, T) from the sampled tokens' log-probabilities and the k largest."""
    k = top_TK.shape[1]
    unknown_T = np.full(len(chosen_T), np.nan, np.float32)
    return np.stack([token_confidence(top_TK, k=k), chosen_T, token_entropy(top_TK, k=k), unknown_T])
