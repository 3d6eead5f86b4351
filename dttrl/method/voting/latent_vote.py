"""The latent-answer vote: the class that is most probably right (:mod:`dttrl.method.latent`).

Where confidence says nothing it is the plain vote, ties included.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.latent import Latent, posterior, summed
from dttrl.method.voting.election import Vote, summarize, tally


def latent_vote(class_RN: IntArray, confidence_RN: FloatArray, latent: Latent) -> tuple[Vote, FloatArray]:
    """Vote on R questions of N rollouts; returns the vote and the probability (R,) that its winner is right.

    The probability is NaN where nobody has an answer. ``latent`` is fitted to a pool that these questions
    should be part of.
    """
    answered_RN = class_RN >= 0
    sums = summed(class_RN, confidence_RN)
    right_RC = posterior(sums, latent)
    index_RN = np.maximum(class_RN, 0)
    if np.all(np.asarray(latent.delta) == 0):
        weight_RN = None  # the posterior orders classes as their votes do
    else:
        each_RC = right_RC / np.maximum(sums.votes, 1.0)
        weight_RN = np.take_along_axis(each_RC, index_RN, axis=1)
    vote = summarize(class_RN, confidence_RN, tally(class_RN, weight_RN, confidence_RN, answered_RN))
    return vote, elected_probability(right_RC, vote.winner_R)


def elected_probability(right_RC: FloatArray, winner_R: IntArray) -> FloatArray:
    """Return the probability that each winner is right, NaN where there is none (class -1)."""
    elected_R1 = np.maximum(winner_R, 0)[:, None]
    probability_R = np.take_along_axis(right_RC, elected_R1, axis=1)[:, 0]
    return np.where(winner_R >= 0, probability_R, np.nan)
