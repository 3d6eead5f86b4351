"""Log-likelihood of the class means of confidence under the latent-answer model (:mod:`dttrl.method.latent`).

Axis letters: F independent fits, R questions, C classes. Parameters of a fit are log(delta / sqrt S),
log(T / S), log kappa and c.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray
from dttrl.method.vote_likelihood import none_and

_TINY = 1e-300


class MeanWeights(NamedTuple):
    """What a class mean weighs, each (..., R, C)."""

    weight: FloatArray
    """w, its precision."""
    share: FloatArray
    """w / A."""
    off: FloatArray
    """The class mean less the weighted mean of the question."""


class ClassMeans:
    """The class means of questions, (..., R, C), from the question's own level.

    Large confidences lose no digits that way.
    """

    def __init__(self, count: FloatArray, mean: FloatArray) -> None:
        self.has = count > 0
        self.inverse = np.where(self.has, 1.0 / np.maximum(count, 1.0), 0.0)
        known = self.has.sum(axis=-1, keepdims=True)
        level = np.where(self.has, mean, 0.0).sum(axis=-1, keepdims=True) / np.maximum(known, 1)
        self.mean = np.where(self.has, mean - level, 0.0)
        self.several = known[..., 0] > 1

    def take(self, fits: NDArray[np.intp]) -> ClassMeans:
        """Return those of some of the fits."""
        some = object.__new__(ClassMeans)
        for name in ("has", "inverse", "mean", "several"):
            setattr(some, name, getattr(self, name)[fits])
        return some

    def weights(self, variance: FloatArray, noise: FloatArray) -> MeanWeights:
        """Return the weights of the means under T and S, which broadcast to (..., R, C)."""
        weight = np.where(self.has, 1.0 / np.maximum(variance + noise * self.inverse, _TINY), 0.0)
        share = weight / np.maximum(weight.sum(axis=-1, keepdims=True), _TINY)
        off = np.where(self.has, self.mean - (share * self.mean).sum(-1, keepdims=True), 0.0)
        return MeanWeights(weight, share, off)


def evidence(delta: FloatArray, weights: MeanWeights) -> FloatArray:
    """Return log P(m | z = k) - log P(m | z = 0) of each class."""
    return delta * weights.weight * (weights.off - 0.5 * delta * (1.0 - weights.share))


class MeanLikelihood:
    """Log-likelihood of the class means given the votes' log-odds, which kappa and c correct."""

    def __init__(self, means: ClassMeans, votes: FloatArray, odds: FloatArray, noise_F: FloatArray) -> None:
        self.means, self.odds, self.noise_F = means, odds, noise_F
        self.here = votes > 0

    def evaluate(self, at: FloatArray, fits: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return log-likelihoods (f,) and slopes (f, 4) of some fits."""
        noise = self.noise_F[fits][:, None, None]
        delta = np.exp(at[:, 0])[:, None, None] * np.sqrt(noise)
        variance = np.exp(at[:, 1])[:, None, None] * noise
        kappa, c = np.exp(at[:, 2])[:, None, None], at[:, 3][:, None, None]
        means, odds, here = self.means.take(fits), self.odds[fits], self.here[fits]
        known = weight, share, off = means.weights(variance, noise)
        ratio = evidence(delta, known)
        prior = np.where(here, kappa * odds + c, -np.inf)
        before, log_before = none_and(prior)
        after, log_after = none_and(prior + ratio)
        total = weight.sum(axis=-1)
        squares = weight**2 * off**2
        own = 0.5 * (
            np.log(np.where(means.has, weight, 1.0)).sum(axis=-1) - np.log(np.maximum(total, _TINY))
            - (weight * off**2).sum(axis=-1)
        )  # fmt: skip
        # Derivatives in T: of w it is -w^2, of the weighted mean -drift.
        drift = (weight * share * off).sum(axis=-1, keepdims=True)
        mass = (weight * share).sum(axis=-1, keepdims=True)
        by_delta = weight * (off - delta * (1.0 - share))
        turn = weight * (weight * (2.0 * share - 1.0) - share * mass)
        by_variance = delta * weight * (drift - weight * off) - 0.5 * delta**2 * turn
        own_by_variance = 0.5 * (mass[..., 0] - total + squares.sum(axis=-1))
        moved = after - before
        tells = means.several.astype(np.float64)
        score = tells[..., None] * np.stack(
            [
                (after * by_delta).sum(axis=-1) * delta[..., 0],
                ((after * by_variance).sum(axis=-1) + own_by_variance) * variance[..., 0],
                (moved * odds).sum(axis=-1) * kappa[..., 0],
                moved.sum(axis=-1),
            ],
            axis=-1,
        )
        return (tells * (log_after - log_before + own)).sum(axis=1), score.sum(axis=1)
