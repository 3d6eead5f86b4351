"""Maximum likelihood of many two-Gaussian mixtures at once: EM, sped up by Newton steps.

Parameters travel as ``(F, 5)`` float64 arrays, F independent fits: mean_low, mean_high, std_low, std_high,
weight_low. Data are standardised by the caller: tolerances and floors are in units of their deviation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MIN_SPREAD = 1e-3
"""A component narrower than this share of the data's standard deviation has collapsed onto equal values."""
MIN_WEIGHT = 1e-3
"""A component lighter than this (or than about two points) describes outliers, not a class of rollouts."""
TOLERANCE = 1e-7
"""Fits stop when an EM step moves no parameter of the standardised data by more than this."""
MAX_ITERATIONS = 200
STEP_SHARES = (1.0, 0.5, 0.25, 0.1, 0.03)
"""Shares of a Newton step that are tried until one is likelier than the EM step."""
MIN_GAP = 1e-4
"""Means nearer than this many standard deviations of the data are one component."""


def maximise_likelihood(
    data_FN: FloatArray, count_FN: FloatArray, start_F5: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Climb from ``start_F5``; returns parameters (F, 5), mean log-likelihood (F,) and health (F,).

    ``count_FN`` says how many values an entry stands for (0: missing). Overlapping components make plain EM
    crawl for thousands of iterations, so each EM step competes with a Newton step and the likelier of the two
    is taken; neither can lower the likelihood. Rows leave as they converge or collapse.
    """
    n_F = count_FN.sum(axis=1)
    result = start_F5.copy()
    likelihood_F = np.full(len(data_FN), -np.inf)
    active = np.arange(len(data_FN))
    x_FN, weight_FN = data_FN, count_FN
    for _ in range(MAX_ITERATIONS):
        current = result[active]
        log_total, resp_low = _responsibilities(x_FN, current)
        likelihood_F[active] = _mean(weight_FN, log_total)
        after = _em_step(x_FN, weight_FN, resp_low)
        moving = (np.abs(after - current).max(axis=1) > TOLERANCE) & is_healthy(after, n_F[active])
        step = _newton_direction(x_FN, weight_FN, resp_low, current)
        result[active] = _likelier(x_FN, weight_FN, after, current, step)
        if not moving.all():
            active = active[moving]
            if not active.size:
                break
            x_FN, weight_FN = data_FN[active], count_FN[active]
    swap = result[:, 0] > result[:, 1]
    result[swap] = result[swap][:, [1, 0, 3, 2, 4]]
    result[swap, 4] = 1 - result[swap, 4]
    return result, likelihood_F, is_healthy(result, n_F)


def is_healthy(parameters_F5: FloatArray, n_F: FloatArray) -> NDArray[np.bool_]:
    """Return which fits have two separate components of real weight and spread, bool (F,)."""
    lightest_F = np.minimum(parameters_F5[:, 4], 1 - parameters_F5[:, 4])
    spread_F = parameters_F5[:, 2:4].min(axis=1)
    apart_F = np.abs(parameters_F5[:, 0] - parameters_F5[:, 1]) >= MIN_GAP
    # Two points, less what rounding and the tail of the other component take from them.
    enough_F = lightest_F >= np.maximum(MIN_WEIGHT, 1.5 / np.maximum(n_F, 1))
    healthy: NDArray[np.bool_] = (
        np.isfinite(parameters_F5).all(axis=1) & (spread_F >= MIN_SPREAD) & enough_F & apart_F
    )
    return healthy


def _mean(weight_FN: FloatArray, value_FN: FloatArray) -> FloatArray:
    mean_F: FloatArray = (weight_FN * value_FN).sum(axis=1) / weight_FN.sum(axis=1)
    return mean_F


def _likelihood(x_FN: FloatArray, weight_FN: FloatArray, parameters_F5: FloatArray) -> FloatArray:
    return _mean(weight_FN, np.logaddexp(*_weighted_log_densities(x_FN, parameters_F5)))


def _responsibilities(x_FN: FloatArray, parameters_F5: FloatArray) -> tuple[FloatArray, FloatArray]:
    """E step: log-density of the mixture and probability of the low component, both (F, N)."""
    log_low, log_high = _weighted_log_densities(x_FN, parameters_F5)
    log_total = np.logaddexp(log_low, log_high)
    return log_total, np.exp(log_low - log_total)


def _em_step(x_FN: FloatArray, weight_FN: FloatArray, resp_low_FN: FloatArray) -> FloatArray:
    """M step; spreads are held above zero so that a collapsing row stays finite until it is dropped."""
    low_FN = weight_FN * resp_low_FN
    columns = []
    for mass_FN in (low_FN, weight_FN - low_FN):
        mass = np.maximum(mass_FN.sum(axis=1), 1e-300)
        mean = (mass_FN * x_FN).sum(axis=1) / mass
        variance = (mass_FN * (x_FN - mean[:, None]) ** 2).sum(axis=1) / mass
        columns.append((mean, np.maximum(np.sqrt(variance), MIN_SPREAD / 10), mass))
    (mean_low, std_low, mass_low), (mean_high, std_high, mass_high) = columns
    weight_low = mass_low / (mass_low + mass_high)
    return np.stack([mean_low, mean_high, std_low, std_high, weight_low], axis=1)


def _likelier(
    x_FN: FloatArray, weight_FN: FloatArray, after_F5: FloatArray, current_F5: FloatArray, step_F5: FloatArray
) -> FloatArray:
    """The EM step, or the longest part of the Newton step that is likelier than it."""
    result = after_F5.copy()
    to_beat = _likelihood(x_FN, weight_FN, after_F5)
    rows = np.arange(len(after_F5))
    for share in STEP_SHARES:
        far = _moved(current_F5[rows], share * step_F5[rows])
        better = _likelihood(x_FN[rows], weight_FN[rows], far) > to_beat[rows]
        result[rows[better]] = far[better]
        rows = rows[~better]
        if not rows.size:
            break
    return result


def _newton_direction(
    x_FN: FloatArray, weight_FN: FloatArray, resp_low_FN: FloatArray, parameters_F5: FloatArray
) -> FloatArray:
    """Newton direction of the log-likelihood in the coordinates (means, log deviations, logit weight).

    With a and b the gradients of the two weighted log-densities and r the responsibility, a point adds
    ``r a + (1 - r) b`` to the gradient and ``r A + (1 - r) B + r (1 - r) (a - b)(a - b)'`` to the Hessian.
    Directions of positive curvature are flipped, so that the step always climbs.
    """
    low, high, std_low, std_high, weight = (parameters_F5[:, i] for i in range(5))
    z_low = (x_FN - low[:, None]) / std_low[:, None]
    z_high = (x_FN - high[:, None]) / std_high[:, None]
    r_low, r_high = weight_FN * resp_low_FN, weight_FN * (1 - resp_low_FN)
    mass_low, mass_high = r_low.sum(axis=1), r_high.sum(axis=1)
    total = mass_low + mass_high
    first_low, first_high = (r_low * z_low).sum(axis=1), (r_high * z_high).sum(axis=1)
    second_low, second_high = (r_low * z_low**2).sum(axis=1), (r_high * z_high**2).sum(axis=1)
    gradient_F5 = np.stack(
        [
            first_low / std_low,
            first_high / std_high,
            second_low - mass_low,
            second_high - mass_high,
            mass_low - weight * total,
        ],
        axis=1,
    )
    difference_F5N = np.stack(
        [
            z_low / std_low[:, None],
            -z_high / std_high[:, None],
            z_low**2 - 1,
            1 - z_high**2,
            np.ones_like(x_FN),
        ],
        axis=1,
    )
    shared_FN = r_low * (1 - resp_low_FN)
    hessian_F55 = (difference_F5N * shared_FN[:, None, :]) @ difference_F5N.transpose(0, 2, 1)
    hessian_F55[:, 0, 0] -= mass_low / std_low**2
    hessian_F55[:, 1, 1] -= mass_high / std_high**2
    hessian_F55[:, 2, 2] -= 2 * second_low
    hessian_F55[:, 3, 3] -= 2 * second_high
    hessian_F55[:, 4, 4] -= weight * (1 - weight) * total
    for mean, spread, cross in ((0, 2, first_low / std_low), (1, 3, first_high / std_high)):
        hessian_F55[:, mean, spread] -= 2 * cross
        hessian_F55[:, spread, mean] -= 2 * cross
    return _ascent(gradient_F5 / total[:, None], hessian_F55 / total[:, None, None])


def _moved(parameters_F5: FloatArray, step_F5: FloatArray) -> FloatArray:
    """Parameters after a step in the free coordinates, kept within what a mixture can be."""
    weight = parameters_F5[:, 4]
    logit = np.log(weight) - np.log1p(-weight)
    std = np.exp(np.clip(np.log(parameters_F5[:, 2:4]) + step_F5[:, 2:4], np.log(MIN_SPREAD / 10), 10.0))
    new_weight = 1 / (1 + np.exp(-np.clip(logit + step_F5[:, 4], -30.0, 30.0)))
    return np.concatenate([parameters_F5[:, :2] + step_F5[:, :2], std, new_weight[:, None]], axis=1)


def _ascent(gradient_F5: FloatArray, hessian_F55: FloatArray) -> FloatArray:
    """Newton direction with all curvatures made negative, no coordinate longer than one."""
    finite_F = np.isfinite(hessian_F55.sum(axis=(1, 2)) + gradient_F5.sum(axis=1))
    value_F5, vector_F55 = np.linalg.eigh(np.where(finite_F[:, None, None], hessian_F55, np.eye(5)))
    along_F5 = np.einsum("fij,fi->fj", vector_F55, np.where(finite_F[:, None], gradient_F5, 0.0))
    step_F5 = np.einsum("fij,fj->fi", vector_F55, along_F5 / np.maximum(np.abs(value_F5), 1e-9))
    longest_F = np.abs(step_F5).max(axis=1, keepdims=True)
    bounded_F5: FloatArray = step_F5 / np.maximum(longest_F, 1.0)
    return bounded_F5


def _weighted_log_densities(x_FN: FloatArray, parameters_F5: FloatArray) -> tuple[FloatArray, FloatArray]:
    low, high, std_low, std_high, weight = (parameters_F5[:, i : i + 1] for i in range(5))
    weight = np.clip(weight, 1e-300, 1 - 1e-16)
    log_low = np.log(weight) - np.log(std_low) - 0.5 * ((x_FN - low) / std_low) ** 2
    log_high = np.log1p(-weight) - np.log(std_high) - 0.5 * ((x_FN - high) / std_high) ** 2
    constant = 0.5 * np.log(2 * np.pi)
    return log_low - constant, log_high - constant
