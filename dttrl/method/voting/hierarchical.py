"""Hierarchical voting of DistriVoting (arXiv:2603.03872, eq. 20-22).

The range of confidences is cut into N_C equal intervals ``(c_min + (i - 1) h, c_min + i h]``, the lowest
value belonging to the first. Each interval elects an answer by weighted majority; the interval winners then
vote, each with the mean confidence of the rollouts that gave it.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.voting import weighted
from dttrl.method.voting.election import Tally, tally_within

N_INTERVALS = 10
"""N_C of the paper."""


def elect(class_RN: IntArray, weight_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    """Elect by intervals of ``weight_RN`` (at least 0); shapes as in :mod:`dttrl.method.voting.election`."""
    voter_RN = voter_RN & (class_RN >= 0) & np.isfinite(weight_RN)
    weighted.check(weight_RN, voter_RN)
    n_elections = len(class_RN)
    first = np.arange(n_elections)[:, None] * N_INTERVALS
    interval_RN = first + _interval(weight_RN, voter_RN)
    size = n_elections * N_INTERVALS
    winner_F = tally_within(class_RN, weight_RN, weight_RN, voter_RN, interval_RN, size).winner_R

    gave_winner_RN = voter_RN & (class_RN == winner_F[interval_RN])
    given = interval_RN[gave_winner_RN]
    count_F = np.bincount(given, minlength=size)
    total_F = np.bincount(given, weights=weight_RN[gave_winner_RN], minlength=size)
    mean_F = np.where(count_F > 0, total_F / np.maximum(count_F, 1), np.nan)
    # Highest interval first: a tie that confidence cannot break goes to the surer interval.
    winner_RI = winner_F.reshape(n_elections, N_INTERVALS)[:, ::-1]
    mean_RI = mean_F.reshape(n_elections, N_INTERVALS)[:, ::-1]
    return weighted.elect(winner_RI, mean_RI, winner_RI >= 0)


def _interval(weight_RN: FloatArray, voter_RN: BoolArray) -> IntArray:
    low_R = np.min(weight_RN, axis=1, where=voter_RN, initial=np.inf, keepdims=True)
    high_R = np.max(weight_RN, axis=1, where=voter_RN, initial=-np.inf, keepdims=True)
    width_R = (high_R - low_R) / N_INTERVALS
    usable_R = np.isfinite(width_R) & (width_R > 0)
    scaled_RN = (np.where(voter_RN, weight_RN, 0.0) - np.where(usable_R, low_R, 0.0)) / np.where(
        usable_R, width_R, 1.0
    )
    index_RN = np.ceil(np.where(usable_R & voter_RN, scaled_RN, 1.0)).astype(np.int32) - 1
    return np.clip(index_RN, 0, N_INTERVALS - 1)
