r"""Two Gaussians over confidences: the positive component has the higher mean (eq:gmm, eq:gmm_split).

.. math:: p(x) = \pi_{neg} N(x | \mu_{neg}, \sigma_{neg}^2) + \pi_{pos} N(x | \mu_{pos}, \sigma_{pos}^2)

One mixture (a training step, a pool of steps) is fitted with pomegranate from the best of a few fixed
starts. Many small mixtures (one a question, one a repeat of a budget) are fitted at once by the same
algorithm over a leading axis, :func:`fit_mixtures`, which also ranks the starts of the single fit.

Data are standardised and float64; starts are quantiles, never random, so that equal data give equal fits.
EM on two Gaussians can collapse onto a few equal values, where the likelihood is unbounded: a solution with
a component of vanishing weight or spread is never taken. When no start leads elsewhere, or the data have
fewer than four distinct values, the mixture is *degenerate* and voting falls back to the plain vote.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dttrl.method.em import TOLERANCE, in_order, is_healthy, maximise_likelihood

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from pomegranate.gmm import GeneralMixtureModel

FloatArray = NDArray[np.float64]

MIN_DISTINCT = 4
"""Fewer distinct values than this cannot say where two Gaussians are (each needs a mean and a spread)."""
ROUNDING = 1e-6
"""Data whose deviation is below this share of their size are equal up to rounding."""
START_QUANTILES = ((0.25, 0.75), (0.1, 0.9), (0.05, 0.5), (0.5, 0.95), (0.4, 0.6))
"""Quantiles at which the two means start; both spreads start at the data's, both weights at one half."""
MAX_POLISH = 100
"""Iterations of pomegranate from a converged start; one or two are the rule."""
MAX_SEARCH_POINTS = 2048
"""Starts are followed on at most this many groups of neighbours; the fit itself sees all the data."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A fitted two-Gaussian mixture; units are those of the data, ``std_*`` are standard deviations."""

    mean_neg: float
    std_neg: float
    weight_neg: float
    mean_pos: float
    std_pos: float
    weight_pos: float
    n: int
    """Finite values that were fitted."""
    log_likelihood: float = float("nan")
    """Mean log-likelihood of the data, in nats a value."""
    degenerate: str | None = None
    """Why there is no usable mixture, or None."""

    @property
    def is_degenerate(self) -> bool:
        """Whether voting must do without this mixture."""
        return self.degenerate is not None

    @property
    def midpoint(self) -> float:
        """Mean of the two component means, the anchor of eq:shift_correction."""
        return self.mean_neg / 2 + self.mean_pos / 2

    def shifted(self, offset: float) -> Mixture:
        """Return the mixture of the same data moved by ``offset``."""
        return replace(self, mean_neg=self.mean_neg + offset, mean_pos=self.mean_pos + offset)


@dataclass(frozen=True, slots=True)
class Mixtures:
    """R mixtures fitted at once; the fields of :class:`Mixture` as arrays (R,)."""

    mean_neg: FloatArray
    std_neg: FloatArray
    weight_neg: FloatArray
    mean_pos: FloatArray
    std_pos: FloatArray
    weight_pos: FloatArray
    n: NDArray[np.int64]
    log_likelihood: FloatArray
    is_degenerate: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.n)

    def __getitem__(self, row: int) -> Mixture:
        """Return one of the mixtures."""
        values = {field.name: getattr(self, field.name)[row].item() for field in fields(self)}
        degenerate = values.pop("is_degenerate")
        return Mixture(**values, degenerate="no two separate components" if degenerate else None)

    def __iter__(self) -> Iterator[Mixture]:
        return (self[row] for row in range(len(self)))


def fit_mixture(values: ArrayLike, *, start: Mixture | None = None) -> Mixture:
    """Fit one mixture to all finite values of an array of any shape (eq:gmm), with pomegranate.

    ``start``, for example the mixture of the previous step, joins the fixed starts; of the solutions the
    one of the highest likelihood is returned. Never raises for odd data: see ``Mixture.degenerate``.
    """
    data_N = np.asarray(values, dtype=np.float64).ravel()
    data_N = np.sort(data_N[np.isfinite(data_N)])
    centres, scales, usable = _standardise_rows(data_N[None, :], np.array([data_N.size]))
    if not usable[0]:
        few = f"fewer than {MIN_DISTINCT} distinct values"
        return _degenerate(data_N, few if data_N.size else "no finite value")
    centre, scale = float(centres[0]), float(scales[0])
    standard_N = (data_N - centre) / scale
    search_N, count_N = _groups(standard_N, MAX_SEARCH_POINTS)
    starts = _quantile_starts(standard_N[None, :])[0]
    if start is not None and not start.is_degenerate:
        starts = np.concatenate([_parameters(start, centre, scale)[None, :], starts])
    found, likelihood, healthy = maximise_likelihood(
        np.broadcast_to(search_N, (len(starts), len(search_N))),
        np.broadcast_to(count_N, (len(starts), len(search_N))),
        starts,
    )
    order = np.argsort(-np.where(healthy, likelihood, -np.inf), kind="stable")
    for row in order[: int(healthy.sum())]:
        parameters = found[row]
        if len(search_N) < len(standard_N):
            ones = np.ones((1, len(standard_N)))
            parameters = maximise_likelihood(standard_N[None, :], ones, parameters[None, :])[0][0]
        parameters, mean_likelihood = _fit_pomegranate(standard_N, parameters)
        if is_healthy(parameters[None, :], np.array([float(len(data_N))]))[0]:
            return _mixture(parameters, mean_likelihood, centre, scale, len(data_N))
    return _degenerate(data_N, "a component collapsed")


def fit_mixtures(values_RN: FloatArray) -> Mixtures:
    """Fit R mixtures at once, each to the finite values of its row; agrees with :func:`fit_mixture`."""
    values_RN = np.asarray(values_RN, dtype=np.float64)
    n_rows = values_RN.shape[0]
    # Sorted rows put the missing values last and give the quantiles and the distinct counts.
    sorted_RN = np.sort(np.where(np.isfinite(values_RN), values_RN, np.nan), axis=1)
    n_R = np.isfinite(sorted_RN).sum(axis=1)
    centre_R, scale_R, usable_R = _standardise_rows(sorted_RN, n_R)
    with np.errstate(over="ignore", invalid="ignore"):  # rows beyond float64's range are unusable anyway
        standard_RN = (sorted_RN - centre_R[:, None]) / scale_R[:, None]
    best = np.zeros((n_rows, 5))
    best[:, [2, 3]] = 1.0
    best[:, 4] = 0.5
    best_likelihood_R = np.full(n_rows, -np.inf)
    rows = np.flatnonzero(usable_R)
    starts = _quantile_starts(standard_RN[rows])
    present = np.isfinite(standard_RN[rows])
    data, count = np.where(present, standard_RN[rows], 0.0), present.astype(np.float64)
    n_starts = len(START_QUANTILES)
    found, likelihood, healthy = maximise_likelihood(
        data, count, starts.reshape(-1, 5), np.repeat(np.arange(rows.size), n_starts)
    )
    found = found.reshape(rows.size, n_starts, 5)
    likelihood = np.where(healthy, likelihood, -np.inf).reshape(rows.size, n_starts)
    for s in range(n_starts):
        better = likelihood[:, s] > best_likelihood_R[rows] + 1e-9
        best[rows[better]] = found[better, s]
        best_likelihood_R[rows[better]] = likelihood[better, s]
    degenerate_R = ~np.isfinite(best_likelihood_R)
    low, high, std_low, std_high, weight_low = best.T
    mean_R = np.where(n_R > 0, centre_R, np.nan)
    return Mixtures(
        mean_neg=np.where(degenerate_R, mean_R, low * scale_R + centre_R),
        std_neg=std_low * scale_R,
        weight_neg=weight_low,
        mean_pos=np.where(degenerate_R, mean_R, high * scale_R + centre_R),
        std_pos=std_high * scale_R,
        weight_pos=1 - weight_low,
        n=n_R.astype(np.int64),
        log_likelihood=best_likelihood_R - np.log(scale_R),
        is_degenerate=degenerate_R,
    )


# Parameters of a fit travel as (..., 5) arrays: mean_low, mean_high, std_low, std_high, weight_low.


def _standardise_rows(
    sorted_RN: FloatArray, n_R: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    present_RN = np.isfinite(sorted_RN)
    count_R = np.maximum(n_R, 1)
    # Rows are centred on their first value before anything is summed: a constant row must come out exactly
    # constant, and confidences of 1e308 must not overflow a sum of squares.
    first_R = np.where(n_R > 0, sorted_RN[:, 0], 0.0) if sorted_RN.shape[1] else np.zeros(len(n_R))
    with np.errstate(over="ignore", invalid="ignore"):
        moved_RN = np.where(present_RN, sorted_RN - first_R[:, None], 0.0)
        offset_R = moved_RN.sum(axis=1) / count_R
        deviation_RN = np.where(present_RN, moved_RN - offset_R[:, None], 0.0)
        scale_R = np.sqrt((deviation_RN**2).sum(axis=1) / count_R)
        apart_RN = np.diff(moved_RN, axis=1) > 1e-9 * scale_R[:, None]
    distinct_R = 1 + (apart_RN & present_RN[:, 1:]).sum(axis=1)
    # Equal texts get confidences that differ by float32 rounding: that spread is no information.
    size_R = np.where(present_RN, np.abs(sorted_RN), 0.0).max(axis=1, initial=0.0)
    spread_R = np.isfinite(scale_R) & (scale_R > ROUNDING * size_R)
    usable_R = (n_R >= MIN_DISTINCT) & (distinct_R >= MIN_DISTINCT) & spread_R
    return (
        first_R + np.where(np.isfinite(offset_R), offset_R, 0.0),
        np.where(usable_R, scale_R, 1.0),
        usable_R,
    )


def _groups(sorted_N: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """Means and sizes of at most ``limit`` groups of neighbours: a fit to them is near the full fit."""
    if sorted_N.size <= limit:
        return sorted_N, np.ones(sorted_N.size)
    edges = np.arange(limit) * sorted_N.size // limit
    size_N = np.diff(edges, append=sorted_N.size).astype(np.float64)
    return np.add.reduceat(sorted_N, edges) / size_N, size_N


def _quantile_starts(sorted_RN: FloatArray) -> FloatArray:
    """Starting parameters, (R, starts, 5), for rows sorted with NaN last."""
    n_R = np.isfinite(sorted_RN).sum(axis=1)
    starts = np.empty((len(sorted_RN), len(START_QUANTILES), 5))
    starts[:, :, 2:4] = 1.0
    starts[:, :, 4] = 0.5
    rows = np.arange(len(sorted_RN))
    for s, pair in enumerate(START_QUANTILES):
        for column, quantile in enumerate(pair):
            position_R = np.clip((quantile * (n_R - 1)).round().astype(np.int64), 0, None)
            starts[:, s, column] = np.nan_to_num(sorted_RN[rows, position_R])
    return starts


def _parameters(mixture: Mixture, centre: float, scale: float) -> FloatArray:
    means = np.array([mixture.mean_neg, mixture.mean_pos]) - centre
    stds = [mixture.std_neg, mixture.std_pos]
    return np.append(np.append(means, stds) / scale, mixture.weight_neg)


def _fit_pomegranate(standard_N: FloatArray, start_5: FloatArray) -> tuple[FloatArray, float]:
    """EM by pomegranate on standardised data from a given start, to a tolerance on the parameters.

    Its own ``fit`` stops on the change of the total log-likelihood, which is flat long before the means have
    settled, and its ``Normal`` ignores ``min_cov``; so its E and M steps are called from here.
    """
    import torch

    # Importing pomegranate resets the OpenMP threads (through numba): with more threads than free cores
    # every later matrix product of the process is many times slower.
    threads = torch.get_num_threads()
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)

    def tensor(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    components = [
        Normal(tensor(start_5[i]), tensor(start_5[i + 2] ** 2), covariance_type="diag", check_data=False)
        for i in (0, 1)
    ]
    model = GeneralMixtureModel(components, priors=tensor(start_5[4], 1 - start_5[4]), check_data=False)
    data = torch.from_numpy(np.ascontiguousarray(standard_N))[:, None]
    ones = torch.ones_like(data)
    current = start_5
    total = -np.inf
    with torch.no_grad():
        for _ in range(MAX_POLISH):
            total = float(model.summarize(data, sample_weight=ones))
            try:
                model.from_summaries()
            except ValueError:  # a variance rounded below zero: this start collapsed
                return np.full(5, np.nan), -np.inf
            previous, current = current, _read_pomegranate(model)
            if not np.abs(current - previous).max() > TOLERANCE:
                break
    return in_order(current), total / len(standard_N)


def _read_pomegranate(model: GeneralMixtureModel) -> FloatArray:
    low, high = model.distributions
    stds = [float(one.covs[0]) ** 0.5 if one.covs[0] > 0 else np.nan for one in (low, high)]
    return np.array([float(low.means[0]), float(high.means[0]), *stds, float(model.priors[0])])


def _mixture(parameters_5: FloatArray, likelihood: float, centre: float, scale: float, n: int) -> Mixture:
    low, high, std_low, std_high, weight_low = (float(value) for value in parameters_5)
    return Mixture(
        mean_neg=low * scale + centre,
        std_neg=std_low * scale,
        weight_neg=weight_low,
        mean_pos=high * scale + centre,
        std_pos=std_high * scale,
        weight_pos=1 - weight_low,
        n=n,
        log_likelihood=likelihood - float(np.log(scale)),
    )


def _degenerate(data_N: FloatArray, reason: str) -> Mixture:
    """Without two components the mean of the data stands for both means, and so for the midpoint."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(data_N.mean()) if data_N.size else float("nan")
        spread = float(data_N.std()) if data_N.size else float("nan")
    return Mixture(mean, spread, 0.5, mean, spread, 0.5, len(data_N), float("nan"), reason)
