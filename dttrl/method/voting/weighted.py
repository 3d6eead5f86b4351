"""Weighted self-consistency (WSC): every rollout votes with its confidence (arXiv:2206.02336)."""

from __future__ import annotations

import numpy as np

from dttrl.errors import InputError
from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.voting.election import Tally, Vote, sighted, summarize, tally


def elect(class_RN: IntArray, weight_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    """Sum the weights of ``voter_RN`` by class; rollouts with a NaN weight do not vote.

    Raises :class:`InputError` for a negative weight: argmax of a sum of negatives is the rarest answer.
    """
    check(weight_RN, voter_RN)
    return tally(class_RN, weight_RN, weight_RN, voter_RN)


def check(weight_RN: FloatArray, voter_RN: BoolArray) -> None:
    """Raise :class:`InputError` where a voter has a negative weight."""
    lowest = np.min(weight_RN, where=voter_RN & np.isfinite(weight_RN), initial=0.0)
    if lowest < 0:
        raise InputError(
            f"a weighted vote needs weights of at least 0, got {lowest:.4g}: "
            "score with measure topk or perplexity, or turn log-probabilities into probabilities first"
        )


def reversed_weights(confidence_RN: FloatArray, voter_RN: BoolArray) -> FloatArray:
    """Return positive weights that fall as confidence rises, for the vote on the negative subset.

    eq:neg_vote writes ``-X_neg``; summed, such weights elect the rarest answer. Reflecting the confidences
    within their own range (``max + min - c``) keeps the order that the equation means and stays positive.
    """
    usable_RN = voter_RN & np.isfinite(confidence_RN)
    high_R = np.max(confidence_RN, axis=1, where=usable_RN, initial=-np.inf, keepdims=True)
    low_R = np.min(confidence_RN, axis=1, where=usable_RN, initial=np.inf, keepdims=True)
    some_R = np.isfinite(high_R)
    total_R = np.where(some_R, np.where(some_R, high_R, 0.0) + np.where(some_R, low_R, 0.0), np.nan)
    return total_R - confidence_RN


def weighted(class_RN: IntArray, weight_RN: FloatArray) -> Vote:
    """Vote by summed confidence; questions none of whose rollouts has a confidence get the plain majority."""
    weight_RN, voter_RN = sighted(class_RN, weight_RN)
    return summarize(class_RN, weight_RN, elect(class_RN, weight_RN, voter_RN))
