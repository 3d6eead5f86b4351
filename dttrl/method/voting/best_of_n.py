"""Best of N (BoN): the answer of the rollout of the highest confidence.

Rollouts without an answer or without a finite confidence do not take part. Where several share the highest
confidence, the answer that most of them give wins, then the first of them in sample order; the vote counts as
tied when they give different answers. Confidences may be negative: only their order counts.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.voting.election import Tally, Vote, sighted, summarize, tally


def best_of_n(class_RN: IntArray, confidence_RN: FloatArray) -> Vote:
    """Vote by the surest rollout; questions without any confidence get the plain majority."""
    confidence_RN, voter_RN = sighted(class_RN, confidence_RN)
    seen_RN = np.where(voter_RN, confidence_RN, -np.inf)
    surest_R = seen_RN.argmax(axis=1)
    rows = np.arange(len(class_RN))
    best_R = seen_RN[rows, surest_R]
    winner_R = np.where(best_R > -np.inf, class_RN[rows, surest_R], -1).astype(np.int32)
    margin_R = (winner_R >= 0).astype(np.float64)
    several_R = np.zeros(len(class_RN), dtype=bool)
    # Only where the highest confidence is shared do the answers that share it have to be counted.
    shared = np.flatnonzero(((seen_RN == best_R[:, None]) & voter_RN).sum(axis=1) > 1)
    if shared.size:
        best_SN = seen_RN[shared] == best_R[shared, None]
        result = tally(class_RN[shared], None, confidence_RN[shared], best_SN)
        winner_R[shared], margin_R[shared] = result.winner_R, result.margin_R
        several_R[shared] = (best_SN & (class_RN[shared] != result.winner_R[:, None])).any(axis=1)
    return summarize(class_RN, confidence_RN, Tally(winner_R, several_R, margin_R))
