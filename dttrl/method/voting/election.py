"""The count that every voting strategy ends in: weights are summed by answer class and the largest sum wins.

Votes are filed by :mod:`dttrl.method.ballots`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import ABSENT, Ballots, BoolArray, FloatArray, IntArray, filed

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
    """Share of the most frequent class among all rollouts drawn (eq:majority_ratio)."""
    label_ratio_R: FloatArray
    """Share of the elected class among all rollouts drawn."""
    margin_R: FloatArray
    """Lead of the winner over the runner-up as a share of all weight cast, in [0, 1]."""


class Tally(NamedTuple):
    """Winner, tie and margin of R elections, each (R,); the part of a :class:`Vote` that weights decide."""

    winner_R: IntArray
    tie_R: BoolArray
    margin_R: FloatArray


def tally(
    class_RN: IntArray, weight_RN: FloatArray | None, confidence_RN: FloatArray, voter_RN: BoolArray
) -> Tally:
    """Elect the class of the largest summed weight (None: every voter weighs 1).

    Ties go to the larger summed confidence of the tied class's voters, then to the class whose first voter
    has the lowest position (sample id). Rollouts without an answer and without a finite weight never vote.
    """
    return tally_within(class_RN, weight_RN, confidence_RN, voter_RN, None, len(class_RN))


def tally_within(
    class_RN: IntArray,
    weight_RN: FloatArray | None,
    confidence_RN: FloatArray,
    voter_RN: BoolArray,
    election_RN: NDArray[np.int64] | None,
    n_elections: int,
) -> Tally:
    """:func:`tally` of ``n_elections`` elections; ``election_RN`` says in which one a rollout votes."""
    voter_RN = voter_RN & (class_RN >= 0)
    if weight_RN is not None:
        voter_RN &= np.isfinite(weight_RN)
    ballots = filed(class_RN, voter_RN, election_RN, n_elections)
    if ballots.n_classes == 0:
        none = np.full(n_elections, -1, dtype=np.int32)
        return Tally(none, np.zeros(n_elections, dtype=bool), np.zeros(n_elections))
    score_RC = ballots.sums(None)
    present_RC = score_RC > 0
    if weight_RN is not None:
        # Shares of 1/N keep sums of the largest floats finite; ratios and order are unchanged.
        score_RC = ballots.sums(np.where(voter_RN, weight_RN, 0.0) / max(class_RN.shape[1], 1))
    score_RC = np.where(present_RC, score_RC, -np.inf)
    winner_R = score_RC.argmax(axis=1)
    best_R = score_RC[np.arange(n_elections), winner_R]
    any_R = best_R > -np.inf
    with np.errstate(invalid="ignore"):
        tied_RC = present_RC & (score_RC >= (best_R - TIE_TOLERANCE * np.abs(best_R))[:, None])
    tie_R = tied_RC.sum(axis=1) > 1
    tied = np.flatnonzero(tie_R)
    if tied.size:
        winner_R[tied] = _break_ties(ballots, confidence_RN, tied_RC[tied], tied)
    winner_R = np.where(any_R, winner_R, -1).astype(np.int32)
    return Tally(winner_R, tie_R, _margin(score_RC, winner_R))


def sighted(class_RN: IntArray, confidence_RN: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Return the confidences, and which rollouts vote with them: those with an answer and a finite one.

    Where a row has none of these, its confidences become 1 throughout and all its answers vote.
    """
    answered_RN = class_RN >= 0
    voter_RN = answered_RN & np.isfinite(confidence_RN)
    blind_R = ~voter_RN.any(axis=1, keepdims=True)
    if blind_R.any():
        confidence_RN, voter_RN = np.where(blind_R, 1.0, confidence_RN), voter_RN | (blind_R & answered_RN)
    return confidence_RN, voter_RN


def summarize(
    class_RN: IntArray, confidence_RN: FloatArray, result: Tally, *, is_majority: bool = False
) -> Vote:
    """Complete a :class:`Tally` with the counts over all rollouts drawn that every strategy reports.

    ``is_majority`` says that the tally is the count of heads over all rollouts, which is not made again.
    """
    n_drawn_R = (class_RN > ABSENT).sum(axis=1)
    valid_RN = class_RN >= 0
    heads = result if is_majority else tally(class_RN, None, confidence_RN, valid_RN)
    majority = heads.winner_R
    n_votes_R = ((class_RN == result.winner_R[:, None]) & valid_RN).sum(axis=1).astype(np.int32)
    n_majority_R = ((class_RN == majority[:, None]) & valid_RN).sum(axis=1)
    share_R = 1.0 / np.maximum(n_drawn_R, 1)
    return Vote(
        winner_R=result.winner_R,
        tie_R=result.tie_R,
        n_votes_R=n_votes_R,
        n_valid_R=valid_RN.sum(axis=1).astype(np.int32),
        majority_R=majority,
        majority_ratio_R=n_majority_R * share_R,
        label_ratio_R=n_votes_R * share_R,
        margin_R=result.margin_R,
    )


def _break_ties(
    ballots: Ballots, confidence_RN: FloatArray, tied_TC: BoolArray, elections_T: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Winners of the elections ``elections_T``: largest summed confidence, then lowest first position."""
    width = ballots.n_classes + 1
    if ballots.by_row:
        class_TN = ballots.cell_RN[elections_T] - elections_T[:, None] * width
        place_V, position = np.nonzero(class_TN < ballots.n_classes)
        cell_V = place_V * width + class_TN[place_V, position]
        row = elections_T[place_V]
    else:
        place = np.full(ballots.n_elections, -1)
        place[elections_T] = np.arange(len(elections_T))
        election_RN, class_RN = np.divmod(ballots.cell_RN, width)
        row, position = np.nonzero((place[election_RN] >= 0) & (class_RN < ballots.n_classes))
        cell_V = place[election_RN[row, position]] * width + class_RN[row, position]
    confidence_V = confidence_RN[row, position] / max(confidence_RN.shape[1], 1)
    known_V = np.isfinite(confidence_V)
    size = len(elections_T) * width

    def by_class(values: FloatArray | None) -> NDArray[Any]:
        sums = np.bincount(cell_V[known_V], weights=values, minlength=size)
        return sums.reshape(-1, width)[:, :-1]

    # A class none of whose voters has a confidence is the least sure of those that tie.
    known_TC = by_class(None) > 0
    confidence_TC = np.where(tied_TC & known_TC, by_class(confidence_V[known_V]), -np.inf)
    surest_T = confidence_TC.max(axis=1)
    slack_T = TIE_TOLERANCE * np.abs(np.where(np.isfinite(surest_T), surest_T, 0.0))
    equal_TC = tied_TC & (confidence_TC >= (surest_T - slack_T)[:, None])
    first = np.full(size, confidence_RN.shape[1])
    np.minimum.at(first, cell_V, position)
    first_TC = np.where(equal_TC, first.reshape(-1, width)[:, :-1], confidence_RN.shape[1])
    winner_T: NDArray[np.intp] = first_TC.argmin(axis=1)
    return winner_T


def _margin(score_RC: FloatArray, winner_R: IntArray) -> FloatArray:
    cast_RC = np.where(np.isfinite(score_RC), score_RC, 0.0)
    total_R = cast_RC.cumsum(axis=1)[:, -1]  # in order: how many classes others have must not round it
    rows = np.arange(len(winner_R))
    lead_R = cast_RC[rows, np.maximum(winner_R, 0)]
    rest_RC = cast_RC.copy()
    rest_RC[rows, np.maximum(winner_R, 0)] = 0.0
    margin_R = (lead_R - rest_RC.max(axis=1)) / np.where(total_R > 0, total_R, 1.0)
    return np.where((winner_R >= 0) & (total_R > 0), np.clip(margin_R, 0.0, 1.0), 0.0)
