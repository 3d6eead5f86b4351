"""Maximum a posteriori of a few parameters, many independent fits at once: BFGS along a leading axis.

Each model brings its log-likelihood and its slope; the prior is Gaussian. Axis letters: F fits, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
Evaluate = Callable[[FloatArray, IndexArray], tuple[FloatArray, FloatArray]]
"""From parameters (f, P) and the indices (f,) of these fits to log-likelihoods (f,) and slopes (f, P)."""

FIXED = 1e12
"""Precision of a parameter that stays where its prior has it."""
_LONGEST = 1.5
"""No parameter moves further than this in a step."""
_FURTHEST = 9.0
"""No parameter leaves its prior mean by more than this."""
_NEAR = 1e-2
"""A fit ends when a Newton step would gain less than half of this, in nats."""
_MOST_STEPS = 100
_SHORTEST = 1e-6


class Prior(NamedTuple):
    """Independent Gaussians: means and precisions, (F, P) or what broadcasts to it."""

    mean: FloatArray
    precision: FloatArray


def climb(
    evaluate: Evaluate, start_FP: FloatArray, prior: Prior, *, bend: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return the parameters (F, P) at a maximum near each start, and the log-posteriors there (F,).

    ``bend`` is a guess of the negative curvature of the log-likelihood: (F, P), or one for all.
    """
    mean_FP, precision_FP = (np.broadcast_to(part, start_FP.shape) for part in prior)
    at_FP = np.where(precision_FP >= FIXED, mean_FP, start_FP)
    moving = np.arange(len(at_FP))
    inverse_FPP = (1.0 / (precision_FP + bend))[:, :, None] * np.eye(at_FP.shape[1])
    stride_F = np.ones(len(at_FP))

    def posterior(at: FloatArray, fits: IndexArray) -> tuple[FloatArray, FloatArray]:
        value, slope = evaluate(at, fits)
        away = at - mean_FP[fits]
        pull = precision_FP[fits] * away
        return value - 0.5 * (pull * away).sum(axis=1), slope - pull

    value_F, slope_FP = posterior(at_FP, moving)
    for _ in range(_MOST_STEPS):
        step = np.einsum("fpq,fq->fp", inverse_FPP[moving], slope_FP[moving])
        rise = (step * slope_FP[moving]).sum(axis=1)
        still = (rise > _NEAR) & (stride_F[moving] > _SHORTEST)
        moving, step, rise = moving[still], step[still], rise[still]
        if not moving.size:
            break
        shorter = np.minimum(1.0, _LONGEST / np.maximum(np.abs(step).max(axis=1), _SHORTEST))
        length = stride_F[moving] * shorter
        low, high = mean_FP[moving] - _FURTHEST, mean_FP[moving] + _FURTHEST
        tried = np.clip(at_FP[moving] + length[:, None] * step, low, high)
        value, slope = posterior(tried, moving)
        up = value >= value_F[moving] + 1e-4 * length * rise
        stride_F[moving] = np.where(up, 1.0, stride_F[moving] * 0.3)
        there = moving[up]
        moved, bent = tried[up] - at_FP[there], slope_FP[there] - slope[up]
        inverse_FPP[there] = _updated(inverse_FPP[there], moved, bent)
        at_FP[there], value_F[there], slope_FP[there] = tried[up], value[up], slope[up]
    return at_FP, value_F


def _updated(inverse: FloatArray, moved: FloatArray, bent: FloatArray) -> FloatArray:
    """Return the inverse curvature that explains the last step too (the BFGS formula)."""
    along = (moved * bent).sum(axis=1)
    curved = along > 1e-10
    scale = np.where(curved, 1.0 / np.where(curved, along, 1.0), 0.0)[:, None, None]
    left = np.eye(moved.shape[1]) - scale * moved[:, :, None] * bent[:, None, :]
    return left @ inverse @ left.transpose(0, 2, 1) + scale * moved[:, :, None] * moved[:, None, :]
