"""The count that every voting strategy ends in: weights are summed by answer class and the largest sum wins.

Arrays are ``(R, N)``: R independent elections (questions of a step, or repeats of a budget), N rollouts in
sample order. ``class_RN`` int32 holds the answer class of a rollout within its election, -1 for none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

TIE_TOLERANCE = 1e-12
"""Sums of the same weights in another order differ by rounding; within this share of each other they tie."""


class Vote(NamedTuple):
    """What R elections decided; every field has shape (R,)."""

    winner_R: IntArray
    """Elected class, -1 where nobody voted."""
    tie_R: BoolArray
    """Whether the largest sum was shared (and the tie rule decided)."""
    n_votes_R: IntArray
    """Rollouts among all N whose answer is the elected class."""
    n_valid_R: IntArray
    """Rollouts with an answer."""
    majority_R: IntArray
    """Most frequent class among all rollouts, -1 where there is none."""
    majority_ratio_R: FloatArray
    """Share of the most frequent class among all N rollouts (eq:majority_ratio)."""
    label_ratio_R: FloatArray
    """Share of the elected class among all N rollouts."""
    margin_R: FloatArray
    """Lead of the winner over the runner-up as a share of all weight cast, in [0, 1]."""


class Tally(NamedTuple):
    """Winner, tie and margin of R elections, each (R,); the part of a :class:`Vote` that weights decide."""

    winner_R: IntArray
    tie_R: BoolArray
    margin_R: FloatArray


def class_sums(class_RN: IntArray, value_RN: NDArray[np.generic], voter_RN: BoolArray) -> FloatArray:
    """Sum ``value_RN`` by class over the voters; returns float64 (R, C) with C the largest class + 1."""
    n_elections = class_RN.shape[0]
    n_classes = int(class_RN.max(initial=-1)) + 1
    row_RN = np.broadcast_to(np.arange(n_elections)[:, None], class_RN.shape)
    flat = row_RN[voter_RN].astype(np.int64) * n_classes + class_RN[voter_RN]
    weights = np.asarray(value_RN, dtype=np.float64)[voter_RN]
    sums = np.bincount(flat, weights=weights, minlength=n_elections * n_classes).astype(np.float64)
    return sums.reshape(n_elections, n_classes)


def tally(class_RN: IntArray, weight_RN: FloatArray, confidence_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    """Elect the class of the largest summed weight.

    Ties go to the larger summed confidence of the tied class's voters, then to the class whose first voter
    has the lowest position (sample id). Rollouts without an answer and without a finite weight never vote.
    """
    voter_RN = voter_RN & (class_RN >= 0) & np.isfinite(weight_RN)
    n_elections, n_rollouts = class_RN.shape
    # Shares of 1/N keep sums of the largest floats finite; ratios and order are unchanged.
    score_RC = class_sums(class_RN, weight_RN / max(n_rollouts, 1), voter_RN)
    n_classes = score_RC.shape[1]
    if n_classes == 0:
        none = np.full(n_elections, -1, dtype=np.int32)
        return Tally(none, np.zeros(n_elections, dtype=bool), np.zeros(n_elections))
    present_RC = class_sums(class_RN, np.ones_like(weight_RN), voter_RN) > 0
    score_RC = np.where(present_RC, score_RC, -np.inf)
    best_R = score_RC.max(axis=1)
    tied_RC = present_RC & (score_RC >= (best_R - TIE_TOLERANCE * np.abs(best_R))[:, None])

    # A class none of whose voters has a confidence is the least sure of those that tie.
    known_RN = voter_RN & np.isfinite(confidence_RN)
    confidence_RC = class_sums(class_RN, confidence_RN / max(n_rollouts, 1), known_RN)
    known_RC = class_sums(class_RN, np.ones_like(weight_RN), known_RN) > 0
    confidence_RC = np.where(tied_RC & known_RC, confidence_RC, -np.inf)
    surest_R = confidence_RC.max(axis=1)
    slack_R = TIE_TOLERANCE * np.abs(np.where(np.isfinite(surest_R), surest_R, 0.0))
    tied_twice_RC = tied_RC & (confidence_RC >= (surest_R - slack_R)[:, None])
    first_RC = _first_position(class_RN, voter_RN, n_classes)
    first_RC = np.where(tied_twice_RC, first_RC, n_rollouts)
    any_R = present_RC.any(axis=1)
    winner_R = np.where(any_R, first_RC.argmin(axis=1), -1).astype(np.int32)
    return Tally(winner_R, tied_RC.sum(axis=1) > 1, _margin(score_RC, winner_R))


def summarize(class_RN: IntArray, confidence_RN: FloatArray, result: Tally) -> Vote:
    """Complete a :class:`Tally` with the counts over all N rollouts that every strategy reports."""
    n_rollouts = class_RN.shape[1]
    valid_RN = class_RN >= 0
    ones_RN = np.ones(class_RN.shape)
    majority = tally(class_RN, ones_RN, confidence_RN, valid_RN).winner_R
    n_votes_R = ((class_RN == result.winner_R[:, None]) & valid_RN).sum(axis=1).astype(np.int32)
    n_majority_R = ((class_RN == majority[:, None]) & valid_RN).sum(axis=1)
    share = 1.0 / max(n_rollouts, 1)
    return Vote(
        winner_R=result.winner_R,
        tie_R=result.tie_R,
        n_votes_R=n_votes_R,
        n_valid_R=valid_RN.sum(axis=1).astype(np.int32),
        majority_R=majority,
        majority_ratio_R=n_majority_R * share,
        label_ratio_R=n_votes_R * share,
        margin_R=result.margin_R,
    )


def _first_position(class_RN: IntArray, voter_RN: BoolArray, n_classes: int) -> NDArray[np.int64]:
    n_elections, n_rollouts = class_RN.shape
    first_RC = np.full((n_elections, n_classes), n_rollouts, dtype=np.int64)
    row, position = np.nonzero(voter_RN)
    np.minimum.at(first_RC, (row, class_RN[row, position]), position)
    return first_RC


def _margin(score_RC: FloatArray, winner_R: IntArray) -> FloatArray:
    cast_RC = np.where(np.isfinite(score_RC), score_RC, 0.0)
    total_R = cast_RC.sum(axis=1)
    rows = np.arange(len(winner_R))
    lead_R = cast_RC[rows, np.maximum(winner_R, 0)]
    rest_RC = cast_RC.copy()
    rest_RC[rows, np.maximum(winner_R, 0)] = 0.0
    margin_R = (lead_R - rest_RC.max(axis=1)) / np.where(total_R > 0, total_R, 1.0)
    return np.where((winner_R >= 0) & (total_R > 0), np.clip(margin_R, 0.0, 1.0), 0.0)
