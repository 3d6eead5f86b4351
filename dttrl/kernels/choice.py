"""The next token by inverse CDF: one uniform number a row decides, whatever batch the row is in.

``torch.multinomial`` draws from one generator for the whole batch, so that a row's tokens would depend on its
neighbours. Here a row brings its own uniform number u in [0, 1) and takes the first token whose cumulative
probability exceeds u.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dttrl.settings.sections import Sampling

_FIRST_LOOK = 256


def choose(logits_BV: Tensor, probability_BV: Tensor | None, uniform_B: Tensor, settings: Sampling) -> Tensor:
    """Return the chosen token of each row, int64 (B,).

    ``logits_BV`` are the raw logits in float32; ``probability_BV`` their softmax where it is known already
    (it saves a pass at temperature 1). The order is temperature, then top-k, then top-p on what top-k left.
    Tokens that tie with the last one kept are kept too: logits of bfloat16 models tie often, and a set that
    depended on how a sort breaks ties would not be the same in every batch.
    """
    if settings.temperature == 0:
        return logits_BV.argmax(-1)
    if 0 < settings.top_k < logits_BV.shape[-1]:
        least_B1 = torch.topk(logits_BV, settings.top_k, dim=-1).values[:, -1:]
        logits_BV, probability_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf), None
    if probability_BV is None or settings.temperature != 1:
        probability_BV = torch.softmax(logits_BV / settings.temperature, -1)
    if settings.top_p < 1:
        least_B1 = _least_of_nucleus(probability_BV, settings.top_p)
        probability_BV = probability_BV.masked_fill(probability_BV < least_B1, 0)
    return pick(probability_BV, uniform_B)


def pick(probability_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return the first token, int64 (B,), whose cumulative weight exceeds u times the total weight."""
    cumulative_BV = probability_BV.cumsum(-1)
    # A float32 below 1 is at most 1 - 2**-24, which times the total rounds to less than the total: the
    # token found has a weight. (The bound is for logits that are not numbers.)
    target_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    place_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    return place_B1.clamp_(max=probability_BV.shape[-1] - 1)[:, 0]


def _least_of_nucleus(probability_BV: Tensor, top_p: float) -> Tensor:
    """Return the smallest probability (B, 1) in the smallest set of top tokens of mass ``top_p``."""
    descending_BK = _descending(probability_BV, top_p)
    before_BK = descending_BK.cumsum(-1) - descending_BK
    last_B1 = (before_BK < top_p).sum(-1, keepdim=True).sub_(1).clamp_(min=0)
    return descending_BK.gather(-1, last_B1)


def _descending(probability_BV: Tensor, top_p: float) -> Tensor:
    """Return the largest probabilities of each row, descending, at least as many as the nucleus needs."""
    # On the CPU looking at a result costs nothing, and a few entries nearly always hold the nucleus.
    if probability_BV.device.type == "cpu" and probability_BV.shape[-1] > 4 * _FIRST_LOOK:
        largest_BK = torch.topk(probability_BV, _FIRST_LOOK, dim=-1).values
        if bool((largest_BK.sum(-1) >= top_p).all()):
            return largest_BK
    return torch.sort(probability_BV, dim=-1, descending=True).values
