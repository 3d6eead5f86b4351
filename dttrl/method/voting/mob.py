r"""Majority of the bests (MoB, arXiv:2511.18630): the mode of best-of-m over bootstrap sets.

Draw m rollouts with replacement, take the answer of the surest, repeat, and elect the most frequent of these
answers. The share of each rollout has a closed form: at place i of N in ascending order of confidence it is
the surest of m draws with probability

.. math:: w_i = \left(\frac{i + 1}{N}\right)^m - \left(\frac{i}{N}\right)^m

Equals share the probability of their block evenly, so that the result does not depend on the order of the
input. N counts the rollouts with an answer and a finite confidence; confidences may be negative, as only
their order counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray, IntArray, class_sums
from dttrl.method.voting.election import Vote, sighted, summarize, tally
from dttrl.method.voting.ranks import Ranks, by_sample, rank, share_by_table

RATIO = 0.75
"""q of the paper: bootstrap sizes are tried at ``floor(q^j N)``."""


def mob(
    class_RN: IntArray, confidence_RN: FloatArray, *, m: int | str = "adaptive", ratio: float = RATIO
) -> Vote:
    """Vote by the mode of best-of-m; questions none of whose rollouts has a confidence count heads.

    ``m`` is the bootstrap size, ``sqrt`` for ``floor(sqrt(N))``, or ``adaptive``: of the sizes
    ``m_j = floor(ratio^j N)`` the one whose distribution over answers differs least (in L1) from that of
    ``m_(j-1)``, the largest such size where several do equally.
    """
    confidence_RN, voter_RN = sighted(class_RN, confidence_RN)
    ranks = rank(confidence_RN, voter_RN)
    if m == "adaptive":
        weight_RN = _adaptive(class_RN, ranks, ratio)
    else:
        size_R = np.floor(np.sqrt(ranks.count_R)) if m == "sqrt" else np.full(len(class_RN), float(m))
        weight_RN = _weights(ranks, size_R)
    result = tally(class_RN, by_sample(ranks, weight_RN), confidence_RN, voter_RN)
    return summarize(class_RN, confidence_RN, result)


def bootstrap_sizes(n: int, ratio: float = RATIO) -> list[int]:
    """Return the distinct sizes floor(ratio^j n) that the adaptive choice looks at, from n down to 1.

    >>> bootstrap_sizes(8)
    [8, 6, 4, 3, 2, 1]
    """
    sizes: list[int] = []
    j = 0
    while (size := int(n * ratio**j)) >= 1:
        if not sizes or size < sizes[-1]:
            sizes.append(size)
        j += 1
    return sizes


def _weights(ranks: Ranks, size_R: NDArray[np.float64]) -> FloatArray:
    """Share of each place in best-of-m, (R, N); rows of equal N and m share a table."""
    n_places = ranks.order_RN.shape[1]
    pairs, row_R = np.unique(np.stack([ranks.count_R, size_R]), axis=1, return_inverse=True)
    level = np.arange(n_places + 1) / np.maximum(pairs[0], 1)[:, None]
    power = np.repeat(pairs[1], n_places + 1).reshape(level.shape)  # numpy rounds otherwise if broadcast
    table = np.minimum(level, 1.0) ** power
    return share_by_table(ranks, table[row_R.ravel()])


def _adaptive(class_RN: IntArray, ranks: Ranks, ratio: float) -> FloatArray:
    sorted_class_RN = np.take_along_axis(class_RN, ranks.order_RN, axis=1)
    voter_RN = np.arange(class_RN.shape[1]) < ranks.count_R[:, None]
    counts, row_R = np.unique(ranks.count_R, return_inverse=True)
    ladder = [bootstrap_sizes(int(n), ratio) or [1] for n in counts]
    depth = max((len(sizes) for sizes in ladder), default=0)
    steps_LU = np.array(
        [[sizes[min(j, len(sizes) - 1)] for sizes in ladder] for j in range(depth)], dtype=float
    )
    best_RN, nearest_R, before_RC = None, np.full(len(class_RN), np.inf), None
    for j in range(depth):
        weight_RN = _weights(ranks, steps_LU[j][row_R])
        share_RC = class_sums(sorted_class_RN, weight_RN, voter_RN)
        if before_RC is None or best_RN is None:
            best_RN = weight_RN
        else:
            # A ladder that has ended repeats its last size, which is no candidate.
            new_R = np.array([j < len(sizes) for sizes in ladder])[row_R]
            distance_R = np.where(new_R, np.abs(share_RC - before_RC).sum(axis=1), np.inf)
            closer_R = distance_R < nearest_R - 1e-12
            nearest_R = np.where(closer_R, distance_R, nearest_R)
            best_RN = np.where(closer_R[:, None], weight_RN, best_RN)
        before_RC = share_RC
    return np.zeros(class_RN.shape) if best_RN is None else best_RN
