r"""Group-normalised advantages, weighted by diversity (eq:weighted-advantage).

.. math:: \hat A_{i,j} = \frac{R_{i,j} - \bar R_i}{\sqrt{\frac 1 G \sum_k (R_{i,k} - \bar R_i)^2}},
          \qquad \hat A'_{i,j} = \hat A_{i,j} \, \mathcal D(q_i)

The deviation is the population one (1/G), and an advantage is zero where it is zero. (The paper's mean sums
``R_{i,j}`` over k: a slip for ``R_{i,k}``.) G are the rollouts that are trained.
"""

from __future__ import annotations

import numpy as np

from dttrl.method.ballots import FloatArray


def group_advantages(reward_BM: FloatArray) -> FloatArray:
    """Return advantages (B, M): zero mean and unit population deviation in each row, or all zero."""
    mean_B = reward_BM.mean(axis=1, keepdims=True)
    deviation_BM = reward_BM - mean_B
    std_B = np.sqrt((deviation_BM**2).mean(axis=1, keepdims=True))
    # Equal rewards such as 0.1 leave a deviation of rounding size, which must not become advantages.
    varies_B = np.ptp(reward_BM, axis=1, keepdims=True) > 0
    return np.where(varies_B, deviation_BM / np.where(varies_B, std_B, 1.0), 0.0)


def weighted_advantages(advantage_BM: FloatArray, weight_B: FloatArray) -> FloatArray:
    """Multiply the advantages of a question by its diversity weight (eq:weighted-advantage)."""
    return advantage_BM * weight_B[:, None]
