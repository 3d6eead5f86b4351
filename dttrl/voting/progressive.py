"""The training-time estimate on saved rollouts: one mixture for all questions of a step (alg:pseudo_label).

Unlike the offline ``distrivoting``, whose mixture is a question's own, this votes under the mixture of a
pool: the aggregate of the step and its shift-corrected past (:mod:`dttrl.history`), or, for rollouts that no
training made, the confidences of all questions at once.
"""

from __future__ import annotations

import numpy as np

from dttrl.mixture import Mixture, Mixtures, fit_mixture
from dttrl.voting.distrivoting import DistriVote, Reject, VoteFunction, distrivoting
from dttrl.voting.election import FloatArray, IntArray


def progressive(
    class_RN: IntArray,
    confidence_RN: FloatArray,
    pool: Mixture | Mixtures | None = None,
    *,
    f_vote: VoteFunction = "majority",
    reject: Reject = "guarded",
    monotone: bool = False,
    min_positives: int = 1,
) -> tuple[DistriVote, Mixture | Mixtures]:
    """Vote under the mixture of the pool (default: of all given confidences); returns it with the vote."""
    if pool is None:
        pool = fit_mixture(confidence_RN[np.isfinite(confidence_RN)])
    vote = distrivoting(
        class_RN,
        confidence_RN,
        pool,
        f_vote=f_vote,
        reject=reject,
        monotone=monotone,
        min_positives=min_positives,
    )
    return vote, pool
