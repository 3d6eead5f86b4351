"""From a vote to rewards: trajectories that give the elected answer are positive (after eq:final_vote).

A rollout is rewarded 1 when its answer is in the class of its question's label and 0 otherwise. A rollout
without an answer is never rewarded, and a question without a label rewards nobody.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray, IntArray


def rewards(class_BG: IntArray, label_B: IntArray) -> FloatArray:
    """Return rewards (B, G) in {0, 1}: whether the answer class is the label's (-1: no answer, no label)."""
    matches_BG: NDArray[np.bool_] = (class_BG == label_B[:, None]) & (class_BG >= 0)
    return matches_BG.astype(np.float64)


def label_weights(probability_B: FloatArray) -> FloatArray:
    """Return what labels weigh that are right with these probabilities, NaN for no label; (B,) in [0, 1].

    A label that is more probably wrong than right weighs nothing.
    """
    return np.where(probability_B >= 0.5, probability_B, 0.0)
