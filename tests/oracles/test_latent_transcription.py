"""The latent-answer model against its definition, question by question and class by class.

Votes are rising factorials by ``math.lgamma``; class means are Gaussian vectors with dense covariances, whose
flat level is integrated out by looking at contrasts alone. Nothing here is shared with the fast code but the
priors and the variance within classes, which is a pooled one.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from dttrl.method.ballots import FloatArray
from dttrl.method.class_entries import ClassEntries
from dttrl.method.latent import (
    _CONFIDENCE_PRIOR,
    _NONE_PRIOR,
    _VOTES_PRIOR,
    WITNESSES,
    Latent,
    Sums,
    _prior_odds,
    fit_latent,
    posterior,
    summed,
)
from dttrl.method.mean_likelihood import ClassMeans, MeanLikelihood
from dttrl.method.vote_likelihood import VoteLikelihood
from tests.latent_draws import draw

FITS = [
    Latent(2.0, 0.7, 1.5, 0.1, 1.3, 0.4, 1.1, 0.8, -0.3, 0.0, 9.0),
    Latent(0.5, 3.0, 1.0, 0.4, 0.2, 1e-3, 2.0, 1.7, 0.9, 0.0, 9.0),
    Latent(9.0, 0.2, 6.0, 0.01, 4.0, 3.0, 0.2, 0.5, 0.0, 0.0, 9.0, power=2.0),
]


@pytest.fixture(scope="module")
def sums() -> Sums:
    drawn = draw(1, 60, 20)
    rng = np.random.default_rng(2)
    classes = np.where(rng.random(drawn.class_RN.shape) < 0.1, -1, drawn.class_RN)
    confidence = np.where(rng.random(classes.shape) < 0.15, np.nan, drawn.confidence_RN)
    confidence[3] = np.nan
    classes[4] = -1
    classes[5] = 0
    return summed(classes, confidence)


def rising(x: float, n: float) -> float:
    return math.lgamma(x + n) - math.lgamma(x)


def log_wrong(total: float, a: float, b: float, none: float) -> float:
    """Return the log-probability that none of the answers is right, whatever these are."""
    return math.log(none + (1 - none) * math.exp(rising(b, total) - rising(a + b, total)))


def vote_odds(votes: list[float], k: int, a: float, b: float, theta: float, none: float) -> float:
    """Return log P(n, z = k) / P(n, z = 0)."""
    n, total = votes[k], sum(votes)
    return (
        math.log(1 - none) - log_wrong(total, a, b, none)
        + rising(a, n) + rising(b, total - n) - rising(a + b, total)
        + rising(theta, total) - math.log(theta) - rising(theta, total - n) - math.lgamma(n)
    )  # fmt: skip


def votes_log_likelihood(sums: Sums, a: float, b: float, theta: float, none: float) -> float:
    whole = 0.0
    for row in sums.votes.tolist():
        votes = [n for n in row if n > 0]
        if votes:
            without = (
                log_wrong(sum(votes), a, b, none) + len(votes) * math.log(theta) - rising(theta, sum(votes))
            )
            each = [vote_odds(votes, k, a, b, theta, none) for k in range(len(votes))]
            whole += without + float(logsumexp([0.0, *each]))
    return whole


def means_log_density(
    count: list[float], mean: list[float], right: int | None, delta: float, variance: float, noise: float
) -> float:
    """Return the log-density of the contrasts of the class means, whatever the level of the question."""
    has = [k for k, n in enumerate(count) if n > 0]
    if len(has) < 2:
        return 0.0
    contrast = null_space(np.ones((1, len(has)))).T
    covariance = np.diag([variance + noise / count[k] for k in has])
    expected = np.array([delta if k == right else 0.0 for k in has])
    # From one of them, which is a contrast too: scipy inverts better what is not far from 0.
    value = np.array([mean[k] - mean[has[0]] for k in has])
    density = multivariate_normal(contrast @ expected, contrast @ covariance @ contrast.T)
    return float(density.logpdf(contrast @ value))


def votes_given(votes: list[float], latent: Latent) -> list[float]:
    """Return the log-odds of the posterior: of the votes as at most six witnesses, or of a given power."""
    if not votes:
        return []
    if latent.power is not None:
        shares = [n**latent.power for n in votes]
        right = math.log((1 - latent.none) / latent.none)
        return [right + math.log(share / sum(shares)) for share in shares]
    heard = [n * min(1.0, WITNESSES / sum(votes)) for n in votes]
    b = min(latent.b, latent.theta)
    return [vote_odds(heard, k, latent.a, b, latent.theta, latent.none) for k in range(len(heard))]


def question(sums: Sums, r: int) -> tuple[list[float], list[float], list[float]]:
    here = sums.votes[r] > 0
    return sums.votes[r, here].tolist(), sums.known[r, here].tolist(), sums.mean[r, here].tolist()


def literal_posterior(sums: Sums, latent: Latent) -> FloatArray:
    right = np.zeros(sums.votes.shape)
    for r in range(len(right)):
        votes, count, mean = question(sums, r)
        at = latent.delta, latent.class_variance, latent.noise
        none = means_log_density(count, mean, None, *at)
        odds = [
            latent.kappa * given + latent.odds + means_log_density(count, mean, k, *at) - none
            for k, given in enumerate(votes_given(votes, latent))
        ]
        right[r, sums.votes[r] > 0] = np.exp(np.array(odds) - logsumexp([0.0, *odds]))
    return right


def means_log_likelihood(sums: Sums, votes: Latent, at: FloatArray, noise: float) -> float:
    """Return log P(m | n) at log(delta / sqrt S), log(T / S), log kappa and c."""
    delta, variance = math.exp(at[0]) * math.sqrt(noise), math.exp(at[1]) * noise
    whole = 0.0
    for r in range(len(sums.votes)):
        row, count, mean = question(sums, r)
        prior = [0.0, *(math.exp(at[2]) * given + at[3] for given in votes_given(row, votes))]
        each = [
            means_log_density(count, mean, None if k == 0 else k - 1, delta, variance, noise)
            for k in range(len(prior))
        ]
        whole += float(logsumexp(np.array(prior) + each) - logsumexp(prior))
    return whole


@pytest.mark.parametrize("latent", FITS)
def test_the_posterior_is_the_definition(sums: Sums, latent: Latent) -> None:
    np.testing.assert_allclose(posterior(sums, latent), literal_posterior(sums, latent), rtol=0, atol=1e-9)


def test_likelihoods_of_votes_differ_as_by_the_definition(sums: Sums) -> None:
    points = [(2.0, 1.0, 3.0, 0.1), (0.3, 4.0, 0.8, 0.6), (8.0, 0.2, 9.0, 0.01)]
    at = np.array([[*np.log(p[:3]), math.log(p[3] / (1 - p[3]))] for p in points])
    model = VoteLikelihood(np.repeat(sums.votes[None], 3, axis=0))
    fast, _ = model.evaluate(at, np.arange(3))
    literal = [votes_log_likelihood(sums, *point) for point in points]
    np.testing.assert_allclose(np.diff(fast), [y - x for x, y in pairwise(literal)], rtol=0, atol=1e-8)


def mean_model(sums: Sums, votes: Latent, noise: float, copies: int) -> MeanLikelihood:
    several = Sums(*(np.repeat(part[None], copies, axis=0) for part in sums))
    entries = ClassEntries.of(several.votes)
    means = ClassMeans.of(entries, entries.flat(several.known), entries.flat(several.mean))
    return MeanLikelihood(means, _prior_odds(entries, several.votes, votes), np.full(copies, noise))


AT = np.array([[0.0, -1.0, 0.0, 0.0], [1.2, 0.4, -0.4, 1.0], [-3.0, -2.0, 0.6, -1.5]])


def test_likelihoods_of_means_differ_as_by_the_definition(sums: Sums) -> None:
    fast, _ = mean_model(sums, FITS[0], 1.7, 3).evaluate(AT, np.arange(3))
    literal = [means_log_likelihood(sums, FITS[0], at, 1.7) for at in AT]
    np.testing.assert_allclose(np.diff(fast), np.diff(literal), rtol=0, atol=1e-8)


@pytest.mark.parametrize("which", ["votes", "means"])
def test_slopes_are_those_of_the_values(sums: Sums, which: str) -> None:
    model: VoteLikelihood | MeanLikelihood
    if which == "votes":
        model = VoteLikelihood(np.repeat(sums.votes[None], 3, axis=0))
    else:
        model = mean_model(sums, FITS[1], 0.8, 3)
    _, slope = model.evaluate(AT, np.arange(3))
    for p in range(4):
        step = np.zeros(4)
        step[p] = 1e-5
        up, down = (model.evaluate(AT + sign * step, np.arange(3))[0] for sign in (1, -1))
        np.testing.assert_allclose(slope[:, p], (up - down) / 2e-5, rtol=1e-5, atol=1e-5)
    some, some_slope = model.evaluate(AT[[2]], np.array([2]))
    assert some[0] == pytest.approx(model.evaluate(AT, np.arange(3))[0][2], abs=1e-10)
    np.testing.assert_allclose(some_slope[0], slope[2], rtol=1e-12)


def test_the_fit_is_where_scipy_finds_the_most_probable_parameters(sums: Sums) -> None:
    few = Sums(*(part[:30] for part in sums))
    fitted = fit_latent(few)
    mean = np.append(_VOTES_PRIOR[0], _NONE_PRIOR[0])
    deviation = np.append(_VOTES_PRIOR[1], _NONE_PRIOR[1])

    def lack_of_votes(at: FloatArray) -> float:
        none = 1 / (1 + math.exp(-at[3]))
        away = (at - mean) / deviation
        return 0.5 * float(away @ away) - votes_log_likelihood(few, *np.exp(at[:3]).tolist(), none)

    here = np.array([*np.log([fitted.a, fitted.b, fitted.theta]), math.log(fitted.none / (1 - fitted.none))])
    assert lack_of_votes(here) <= minimize(lack_of_votes, mean, method="BFGS").fun + 0.02

    def lack_of_means(at: FloatArray) -> float:
        away = (at - _CONFIDENCE_PRIOR[0]) / _CONFIDENCE_PRIOR[1]
        return 0.5 * float(away @ away) - means_log_likelihood(few, fitted, at, fitted.noise)

    assert fitted.gain > 2
    scale = math.sqrt(fitted.noise)
    here = np.array(
        [
            math.log(fitted.delta / scale),
            math.log(fitted.class_variance / fitted.noise),
            math.log(fitted.kappa),
            fitted.odds,
        ]
    )
    options = {"gtol": 0.01}
    best = min(
        minimize(lack_of_means, start, method="BFGS", options=options).fun
        for start in (here, _CONFIDENCE_PRIOR[0])
    )
    assert lack_of_means(here) <= best + 0.02
    # The gain is over the most probable parameters without a difference, where votes are not corrected.
    blind = np.array([-np.inf, math.log(fitted.blind_variance / fitted.noise), 0.0, 0.0])
    without = 0.5 * float((blind[1] / 2.0) ** 2) - means_log_likelihood(few, fitted, blind, fitted.noise)
    assert fitted.gain == pytest.approx(without - lack_of_means(here), abs=0.02)


def test_the_noise_is_the_variance_within_classes(sums: Sums) -> None:
    within, free = 0.0, 0.0
    for r in range(len(sums.votes)):
        within += float(sums.square[r].sum())
        free += sum(n - 1 for n in sums.known[r].tolist() if n > 0)
    assert fit_latent(sums).noise == pytest.approx(within / free, rel=1e-12)
