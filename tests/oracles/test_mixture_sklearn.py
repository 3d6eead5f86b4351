"""The mixture against scikit-learn's GaussianMixture on twenty data sets; the batch against single fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture

from dttrl.method.mixture import START_QUANTILES, Mixture, fit_mixture, fit_mixtures

PARAMETERS = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos")


class Case(NamedTuple):
    n: int
    separation: float
    """Between the two means, in deviations of the lower component."""
    ratio: float
    """Deviation of the upper component over that of the lower."""
    weight: float
    """Of the lower component."""
    scale: float = 1.0
    offset: float = 0.0


CASES = [
    Case(64, 6.0, 1.0, 0.5),
    Case(64, 6.0, 0.5, 0.3),
    Case(64, 5.0, 2.0, 0.7),
    Case(128, 4.0, 1.0, 0.5),
    Case(128, 8.0, 3.0, 0.2),
    Case(256, 4.0, 0.5, 0.8),
    Case(512, 3.0, 1.0, 0.5),
    Case(512, 3.0, 0.5, 0.6),
    Case(512, 4.0, 1.5, 0.15),
    Case(512, 6.0, 1.0, 0.9),
    Case(1024, 2.5, 1.0, 0.5),
    Case(1024, 3.0, 2.0, 0.4),
    Case(2048, 2.5, 0.7, 0.5),
    Case(4096, 3.0, 1.0, 0.7),
    Case(5000, 2.5, 1.0, 0.4),
    Case(256, 5.0, 1.0, 0.5, scale=1e-6),
    Case(256, 5.0, 1.0, 0.5, scale=1e6),
    Case(256, 5.0, 1.0, 0.5, scale=1.0, offset=1e5),
    Case(256, 5.0, 1.0, 0.5, scale=0.01, offset=-40.0),
    Case(256, 5.0, 1.0, 0.5, scale=1e-3, offset=17.0),
]
SEPARATED = 3.0


def draw(case: Case, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    low = rng.random(case.n) < case.weight
    values = np.where(
        low, rng.standard_normal(case.n), case.separation + case.ratio * rng.standard_normal(case.n)
    )
    return np.asarray(case.offset + case.scale * values)


def reference(values: NDArray[np.float64]) -> tuple[list[float], float]:
    """Parameters in the order of PARAMETERS and the mean log-likelihood; fitted on standardised values."""
    centre, scale = values.mean(), values.std()
    model = GaussianMixture(2, tol=1e-11, max_iter=5000, n_init=5, reg_covar=1e-12, random_state=0)
    standard = ((values - centre) / scale)[:, None]
    model.fit(standard)
    low, high = np.argsort(model.means_[:, 0])
    numbers = []
    for i in (low, high):
        mean, std = float(model.means_[i, 0]), float(model.covariances_[i, 0, 0]) ** 0.5
        numbers += [mean * scale + centre, std * scale, float(model.weights_[i])]
    return numbers, float(model.score(standard)) - float(np.log(scale))


def parameters(mixture: Mixture) -> list[float]:
    return [getattr(mixture, name) for name in PARAMETERS]


def log_likelihood(values: NDArray[np.float64], mixture: Mixture) -> float:
    """Mean log-likelihood recomputed from the returned parameters."""
    density = np.zeros_like(values)
    for mean, std, weight in (
        (mixture.mean_neg, mixture.std_neg, mixture.weight_neg),
        (mixture.mean_pos, mixture.std_pos, mixture.weight_pos),
    ):
        density += weight * np.exp(-0.5 * ((values - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    return float(np.log(density).mean())


@pytest.mark.parametrize("number", range(len(CASES)))
def test_at_least_as_likely_as_sklearn_and_the_same_where_separated(number: int) -> None:
    case = CASES[number]
    values = draw(case, seed=100 + number)
    expected, best = reference(values)
    mixture = fit_mixture(values)
    assert mixture.degenerate is None
    assert mixture.mean_neg <= mixture.mean_pos
    assert mixture.weight_neg + mixture.weight_pos == pytest.approx(1.0, abs=1e-12)
    assert mixture.log_likelihood == pytest.approx(log_likelihood(values, mixture), abs=1e-6)
    assert mixture.log_likelihood >= best - 1e-6
    if case.separation >= SEPARATED:
        unit = values.std()
        tolerance = np.array([unit, unit, 1.0, unit, unit, 1.0]) * 1e-3
        assert (np.abs(np.array(parameters(mixture)) - expected) < tolerance).all()


def test_known_parameters_are_found() -> None:
    values = draw(Case(20000, 4.0, 0.5, 0.3, scale=2.0, offset=5.0), seed=9)
    found = parameters(fit_mixture(values))
    np.testing.assert_allclose(found, [5.0, 2.0, 0.3, 13.0, 1.0, 0.7], rtol=0.03)


def test_batch_agrees_with_the_single_fit() -> None:
    """Rows of unequal length (NaN where missing), separated and not, in one batch."""
    rows = [draw(case, seed=500 + i)[:256] for i, case in enumerate(CASES)]
    batch = np.full((len(rows), 256), np.nan)
    for i, row in enumerate(rows):
        batch[i, : len(row)] = row
    mixtures = fit_mixtures(batch)
    assert len(mixtures) == len(rows)
    for i, (case, row) in enumerate(zip(CASES, rows, strict=True)):
        single, of_batch = fit_mixture(row), mixtures[i]
        assert single.is_degenerate == of_batch.is_degenerate
        assert single.n == of_batch.n == len(row)
        if case.separation >= SEPARATED:
            unit = row.std()
            tolerance = np.array([unit, unit, 1.0, unit, unit, 1.0]) * 1e-4
            assert (np.abs(np.array(parameters(single)) - parameters(of_batch)) < tolerance).all()
        assert of_batch.log_likelihood == pytest.approx(single.log_likelihood, abs=1e-5)


@pytest.mark.parametrize("n", [6, 8, 12, 16, 32])
def test_batch_agrees_with_the_single_fit_on_small_groups(n: int) -> None:
    """Two tight groups of n / 2; the budget grids fit as few values as these."""
    rng = np.random.default_rng(n)
    values = np.concatenate([rng.normal(0, 0.3, (20, n // 2)), rng.normal(5, 0.3, (20, n - n // 2))], axis=1)
    mixtures = fit_mixtures(values)
    for i, row in enumerate(values):
        single = fit_mixture(row)
        assert not single.is_degenerate
        np.testing.assert_allclose(parameters(mixtures[i]), parameters(single), rtol=1e-4, atol=1e-5)
        assert (row[: n // 2] < single.midpoint).all()
        assert (row[n // 2 :] > single.midpoint).all()


def test_a_collapsed_component_is_never_taken() -> None:
    """Equal values make the likelihood unbounded; scikit-learn then returns a spike, we do not."""
    rng = np.random.default_rng(3)
    values = np.concatenate([np.full(20, 2.0), rng.normal(0, 1, 44)])
    for mixture in (fit_mixture(values), fit_mixtures(values[None, :])[0]):
        assert mixture.is_degenerate or min(mixture.std_neg, mixture.std_pos) >= 1e-3 * values.std()


def em_step(values: NDArray[np.float64], mixture: Mixture) -> float:
    """Largest move of a mean, in deviations of the data, that one more textbook EM iteration makes."""
    density = [
        weight * np.exp(-0.5 * ((values - mean) / std) ** 2) / std
        for mean, std, weight in (
            (mixture.mean_neg, mixture.std_neg, mixture.weight_neg),
            (mixture.mean_pos, mixture.std_pos, mixture.weight_pos),
        )
    ]
    share = density[0] / (density[0] + density[1])
    low, high = np.average(values, weights=share), np.average(values, weights=1 - share)
    return float(max(abs(low - mixture.mean_neg), abs(high - mixture.mean_pos)) / values.std())


@pytest.mark.parametrize("separation", [1.0, 2.0, 3.0, 5.0])
def test_a_fit_is_a_stationary_point(separation: float) -> None:
    """Components that overlap make EM crawl; what is returned must have arrived all the same."""
    rng = np.random.default_rng(5)
    upper = rng.random((40, 512)) < 0.5
    values = rng.normal(size=(40, 512)) + separation * upper
    for i, mixture in enumerate(fit_mixtures(values)):
        assert mixture.is_degenerate or em_step(values[i], mixture) < 1e-5
    for row in values[:5]:
        mixture = fit_mixture(row)
        assert mixture.is_degenerate or em_step(row, mixture) < 1e-5


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize("separation", [2.0, 3.0, 5.0])
def test_the_means_of_batch_and_single_fits_are_the_same_to_a_millionth(n: int, separation: float) -> None:
    """In deviations of the data, where the batch finds two components: both climb from the same starts."""
    rng = np.random.default_rng(n)
    upper = rng.random((30, n)) < 0.5
    values = rng.normal(size=(30, n)) * np.where(upper, 0.7, 1.0) + separation * upper
    mixtures = fit_mixtures(values)
    assert (~mixtures.is_degenerate).sum() > 15
    for row, of_batch in zip(values, mixtures, strict=True):
        single = fit_mixture(row)
        assert single.is_degenerate == of_batch.is_degenerate
        if not single.is_degenerate:
            assert abs(single.mean_neg - of_batch.mean_neg) < 1e-6 * row.std()
            assert abs(single.mean_pos - of_batch.mean_pos) < 1e-6 * row.std()


def test_a_fit_does_not_depend_on_the_others_of_its_batch() -> None:
    rng = np.random.default_rng(1)
    values = rng.gamma(2.0, size=(300, 24))
    values[rng.random(values.shape) < 0.1] = np.nan
    together = fit_mixtures(values)
    for i in range(0, 300, 23):
        alone = fit_mixtures(values[i : i + 1])[0]
        assert alone.is_degenerate == together[i].is_degenerate
        np.testing.assert_allclose(parameters(together[i]), parameters(alone), rtol=1e-6, atol=1e-9)


def plain_em(row: NDArray[np.float64], low: float, high: float) -> float:
    """Mean log-likelihood after thousands of textbook iterations; -inf where a component collapsed."""
    mean, var, weight = np.quantile(row, [low, high]), np.full(2, row.var()), np.full(2, 0.5)
    total = np.zeros_like(row)
    for _ in range(6_000):
        density = weight / np.sqrt(2 * np.pi * var) * np.exp(-0.5 * (row[:, None] - mean) ** 2 / var)
        total = density.sum(axis=1)
        share = density / total[:, None]
        mass = share.sum(axis=0)
        mean = (share * row[:, None]).sum(axis=0) / mass
        var = (share * (row[:, None] - mean) ** 2).sum(axis=0) / mass
        weight = mass / row.size
        if mass.min() < 1.5 or var.min() ** 0.5 < 1e-3 * row.std():
            return -np.inf
    return float(np.log(total).mean())


def test_unimodal_rows_reach_what_plain_em_reaches() -> None:
    """One Gaussian has no two components to find, and EM crawls."""
    rng = np.random.default_rng(8)
    values = rng.normal(size=(4, 40))
    for row, mixture in zip(values, fit_mixtures(values), strict=True):
        best = max(plain_em(row, *pair) for pair in START_QUANTILES)
        assert mixture.is_degenerate or mixture.log_likelihood > best - 1e-6
        assert not mixture.is_degenerate or best == -np.inf
