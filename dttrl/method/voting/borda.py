"""Borda vote by rank of confidence, as proposed with self-certainty (arXiv:2502.18581).

The rollout of rank r among N (1: the surest) casts ``(N - r + 1)^p`` votes; p = 0 is the majority vote and a
large p best-of-N. Equals share the votes of their ranks evenly. N counts the rollouts with an answer and a
finite confidence; which confidence that is was decided when the rollouts were scored (self-certainty in the
paper), and it may be negative, as only its order counts.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.voting.election import Vote, sighted, summarize, tally
from dttrl.method.voting.ranks import by_sample, rank, share_by_table

POWER = 0.5
"""p of the paper's default."""


def borda(class_RN: IntArray, confidence_RN: FloatArray, *, p: float = POWER) -> Vote:
    """Vote by ranks; questions none of whose rollouts has a confidence get the plain majority."""
    confidence_RN, voter_RN = sighted(class_RN, confidence_RN)
    ranks = rank(confidence_RN, voter_RN)
    votes_N = np.arange(1, class_RN.shape[1] + 1, dtype=np.float64) ** p
    cumulative = np.concatenate([[0.0], np.cumsum(votes_N)])
    weight_RN = by_sample(ranks, share_by_table(ranks, cumulative[None, :]))
    return summarize(class_RN, confidence_RN, tally(class_RN, weight_RN, confidence_RN, voter_RN))
