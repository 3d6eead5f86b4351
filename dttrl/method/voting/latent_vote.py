"""The latent-answer vote: the class that is most probably right (:mod:`dttrl.method.latent`).

Where confidence says nothing it is the plain vote, ties included.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.latent import Latent, Sums, fit_latents, posterior, summed
from dttrl.method.voting.election import Vote, summarize, tally


def latent_vote(class_RN: IntArray, confidence_RN: FloatArray, latent: Latent) -> tuple[Vote, FloatArray]:
    """Vote on R questions of N rollouts; returns the vote and the probability (R,) that its winner is right.

    The probability is NaN where nobody has an answer. ``latent`` is fitted to a pool that these questions
    should be part of.
    """
    sums = summed(class_RN, confidence_RN)
    return _elected(class_RN, confidence_RN, sums.votes, posterior(sums, latent), plain=latent.delta == 0)


def latent_votes(
    class_FRN: IntArray, confidence_FRN: FloatArray, *, power: float | None, none: float | None
) -> tuple[Vote, FloatArray]:
    """Vote on F pools of R questions, each pool under a fit of its own; results are (F * R,)."""
    n_pools, n_questions, n_rollouts = class_FRN.shape
    class_RN = class_FRN.reshape(-1, n_rollouts)
    confidence_RN = confidence_FRN.reshape(-1, n_rollouts)
    flat = summed(class_RN, confidence_RN)
    sums = Sums(*(part.reshape(n_pools, n_questions, -1) for part in flat))
    latent = fit_latents(sums, power=power, none=none)
    right_RC = posterior(sums, latent).reshape(flat.votes.shape)
    return _elected(class_RN, confidence_RN, flat.votes, right_RC, plain=not latent.delta.any())


def _elected(
    class_RN: IntArray, confidence_RN: FloatArray, votes_RC: FloatArray, right_RC: FloatArray, *, plain: bool
) -> tuple[Vote, FloatArray]:
    weight_RN = None  # where confidence says nothing, classes are as probable as they have votes
    if not plain:
        each_RC = right_RC / np.maximum(votes_RC, 1.0)
        weight_RN = np.take_along_axis(each_RC, np.maximum(class_RN, 0), axis=1)
    vote = summarize(class_RN, confidence_RN, tally(class_RN, weight_RN, confidence_RN, class_RN >= 0))
    return vote, elected_probability(right_RC, vote.winner_R)


def elected_probability(right_RC: FloatArray, winner_R: IntArray) -> FloatArray:
    """Return the probability that each winner is right, NaN where there is none (class -1)."""
    elected_R1 = np.maximum(winner_R, 0)[:, None]
    probability_R = np.take_along_axis(right_RC, elected_R1, axis=1)[:, 0]
    return np.where(winner_R >= 0, probability_R, np.nan)
