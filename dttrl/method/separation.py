"""How well confidence separates right rollouts from wrong ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auroc(score_N: NDArray[np.float64], positive_N: NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores above a negative, ties counting one half.

    The area under the ROC curve by the rank-sum identity. Scores that are not finite are left out; NaN
    where either class is empty.

    >>> auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    finite_N = np.isfinite(score_N)
    score_N, positive_N = score_N[finite_N], positive_N[finite_N]
    n_positive = int(positive_N.sum())
    n_negative = positive_N.size - n_positive
    if not n_positive or not n_negative:
        return float("nan")
    _, inverse_N, count_U = np.unique(score_N, return_inverse=True, return_counts=True)
    last_rank_U = np.cumsum(count_U)
    rank_N = (last_rank_U - (count_U - 1) / 2)[inverse_N]
    rank_sum = float(rank_N[positive_N].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative)
