"""Best of N (BoN): the answer of the rollout of the highest confidence.

Rollouts without an answer or without a finite confidence do not take part. Where several share the highest
confidence, the answer that most of them give wins, then the first of them in sample order; the vote counts as
tied when they give different answers. Confidences may be negative: only their order counts.
"""

from __future__ import annotations

import numpy as np

from dttrl.voting import majority
from dttrl.voting.election import BoolArray, FloatArray, IntArray, Tally, Vote, summarize, voters_or_all


def elect(class_RN: IntArray, confidence_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    """Elect the answer of the surest of ``voter_RN``; shapes as in :mod:`dttrl.voting.election`."""
    voter_RN = voter_RN & (class_RN >= 0) & np.isfinite(confidence_RN)
    best_R = np.max(confidence_RN, axis=1, where=voter_RN, initial=-np.inf, keepdims=True)
    best_RN = voter_RN & (confidence_RN == best_R)
    result = majority.elect(class_RN, confidence_RN, best_RN)
    several_R = (best_RN & (class_RN != result.winner_R[:, None])).any(axis=1)
    return Tally(result.winner_R, several_R, result.margin_R)


def best_of_n(class_RN: IntArray, confidence_RN: FloatArray) -> Vote:
    """Vote by the surest rollout; questions without any confidence get the plain majority."""
    confidence_RN = voters_or_all(class_RN, confidence_RN)
    return summarize(class_RN, confidence_RN, elect(class_RN, confidence_RN, class_RN >= 0))
