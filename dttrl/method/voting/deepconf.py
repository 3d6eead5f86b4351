"""DeepConf's offline vote (arXiv:2508.15260): the surest share of the rollouts votes with its confidence.

The threshold is the percentile ``100 (1 - top)`` of the confidences, interpolated linearly, and what reaches
it is kept, so that equals are kept or dropped together. Only rollouts with an answer and a finite confidence
count. Which confidence it is (the last tokens, the lowest windows, the whole rollout) was decided when the
rollouts were scored: ``dttrl score --region tail:2048``, ``bottom:0.1:2048`` or ``lowest:2048``.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.voting import weighted
from dttrl.method.voting.election import Vote, sighted, summarize, tally

TOP = 0.1
"""Share that votes in the released offline code."""


def keep_top(confidence_RN: FloatArray, voter_RN: BoolArray, top: float) -> BoolArray:
    """Return which voters reach the percentile of their row, bool (R, N)."""
    count_R = voter_RN.sum(axis=1)
    if not confidence_RN.shape[1]:
        return voter_RN
    sorted_RN = np.sort(np.where(voter_RN, confidence_RN, np.inf), axis=1)
    place_R = (1 - top) * np.maximum(count_R - 1, 0)
    below_R = np.floor(place_R).astype(np.int64)
    above_R = np.minimum(below_R + 1, np.maximum(count_R - 1, 0))
    rows = np.arange(len(count_R))
    some_R = count_R > 0
    low_R = np.where(some_R, sorted_RN[rows, below_R], 0.0)
    high_R = np.where(some_R, sorted_RN[rows, above_R], 0.0)
    # As numpy.percentile interpolates: from the nearer end, so that both ends are hit exactly.
    part_R = place_R - below_R
    gap_R = high_R - low_R
    threshold_R = np.where(part_R < 0.5, low_R + gap_R * part_R, high_R - gap_R * (1 - part_R))
    kept_RN: BoolArray = voter_RN & (confidence_RN >= threshold_R[:, None])
    return kept_RN


def deepconf(
    class_RN: IntArray, confidence_RN: FloatArray, *, top: float = TOP, f_vote: str = "weighted"
) -> Vote:
    """Vote with the surest share ``top``, weighted or by heads (``f_vote`` majority).

    Questions without any confidence get the plain majority.
    """
    confidence_RN, voter_RN = sighted(class_RN, confidence_RN)
    kept_RN = keep_top(confidence_RN, voter_RN, top)
    if f_vote == "majority":
        result = tally(class_RN, None, confidence_RN, kept_RN)
    else:
        result = weighted.elect(class_RN, confidence_RN, kept_RN)
    return summarize(class_RN, confidence_RN, result)
