"""Rollouts drawn from the latent-answer model, for tests of its vote."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dttrl.method.ballots import FloatArray, IntArray


class Draws(NamedTuple):
    """Questions whose right answer is known."""

    class_RN: IntArray
    confidence_RN: FloatArray
    right_R: IntArray
    """Class of the right answer, -1 where no rollout gives it."""


def draw(
    seed: int,
    questions: int,
    rollouts: int,
    *,
    a: float = 2.0,
    b: float = 1.0,
    theta: float = 2.0,
    none: float = 0.1,
    delta: float = 2.0,
    variance: float = 0.2,
    noise: float = 1.0,
) -> Draws:
    """Draw votes and confidences as :mod:`dttrl.method.latent` has them; levels are far apart."""
    rng = np.random.default_rng(seed)
    class_RN = np.empty((questions, rollouts), dtype=np.int32)
    confidence_RN = np.empty(class_RN.shape)
    right_R = np.full(questions, -1, dtype=np.int32)
    for r in range(questions):
        right_N = np.zeros(rollouts, dtype=bool)
        if rng.random() >= none:
            right_N = rng.random(rollouts) < rng.beta(a, b)
        wrong: list[int] = []
        drawn = []
        for right in right_N.tolist():
            if right:
                drawn.append(0)
                continue
            new = rng.random() < theta / (theta + len(wrong))
            wrong.append(max(wrong, default=0) + 1 if new else wrong[rng.integers(len(wrong))])
            drawn.append(wrong[-1])
        _, first, inverse = np.unique(drawn, return_index=True, return_inverse=True)
        class_RN[r] = first.argsort().argsort()[inverse]
        common = rng.normal(0.0, np.sqrt(variance), first.size)
        if right_N.any():
            right_R[r] = class_RN[r, right_N.argmax()]
            common[right_R[r]] += delta
        level = rng.normal(10.0, 5.0)
        confidence_RN[r] = level + common[class_RN[r]] + rng.normal(0.0, np.sqrt(noise), rollouts)
    return Draws(class_RN, confidence_RN, right_R)
