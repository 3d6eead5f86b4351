r"""Diversity-targeted penalty: questions whose rollouts agree too much learn less (eq:uncertainty-weight).

.. math:: \tilde D(q_i) = \frac{\exp D(q_i)}{\sum_k \exp D(q_k)}, \qquad
          \mathcal D(q_i) = \tilde D(q_i) \text{ if } D(q_i) \le \tau G \text{, else } 1

D counts answer *classes*, as the paper's introduction says ("the number of predicted answer classes"), not
spellings; having no answer is not a class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray, IntArray


def diversity(class_BG: IntArray) -> IntArray:
    """Return D(q), the number of distinct answer classes among a question's rollouts, int32 (B,)."""
    ordered_BG = np.sort(class_BG, axis=1)
    new_BG = np.diff(ordered_BG, axis=1, prepend=-1) > 0
    distinct_B: IntArray = (new_BG & (ordered_BG >= 0)).sum(axis=1).astype(np.int32)
    return distinct_B


def diversity_weights(diversity_B: IntArray, n_rollouts: int | IntArray, *, tau: float = 0.1) -> FloatArray:
    """Return the weight of each question of a batch, float64 (B,), in (0, 1].

    The softmax runs over the whole batch, penalised or not, as the equation says: one very diverse question
    makes the weight of a uniform one vanish, in effect a mask. ``n_rollouts`` is the G of the threshold: the
    rollouts that D was counted on, of each question where they differ. It is computed from differences to the
    largest D, so nothing overflows.
    """
    if not 0 < tau < 1:
        raise InputError(f"the diversity threshold tau must lie between 0 and 1, got {tau}")
    counts_B = np.asarray(diversity_B, dtype=np.float64)
    if not counts_B.size:
        return np.empty(0)
    exponentials_B = np.exp(counts_B - counts_B.max())
    # Two questions more than 745 classes apart would underflow to a weight of exactly zero.
    softmax_B = np.maximum(exponentials_B / exponentials_B.sum(), np.finfo(np.float64).tiny)
    # 0.29 * 100 is 28.999999999999996: the product must not decide for the rounding.
    penalised_B: NDArray[np.bool_] = counts_B <= tau * n_rollouts * (1 + 1e-12)
    return np.where(penalised_B, softmax_B, 1.0)
