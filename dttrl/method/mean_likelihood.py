"""Log-likelihood of the class means of confidence under the latent-answer model (:mod:`dttrl.method.latent`).

Axis letters: F pools, E entries (classes), Q questions. Parameters of a pool are log(delta / sqrt S),
log(T / S), log kappa and c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray
from dttrl.method.class_entries import ClassEntries

_TINY = 1e-300


class MeanWeights(NamedTuple):
    """What class means weigh, each (E,)."""

    weight: FloatArray
    """w, the precision; 0 where a class has no confidence."""
    share: FloatArray
    """w / A."""
    off: FloatArray
    """The class mean less the weighted mean of the question."""


@dataclass(frozen=True, slots=True)
class ClassMeans:
    """Class means of confidence, (E,), from each question's own level, and what they rest on."""

    entries: ClassEntries
    inverse: FloatArray
    """1 / number of confidences, NaN where there are none."""
    mean: FloatArray

    @staticmethod
    def of(entries: ClassEntries, known: FloatArray, mean: FloatArray) -> ClassMeans:
        """Return them from the numbers of confidences and their means, (E,)."""
        has = known > 0
        # From the question's own level, so that large confidences lose no digits.
        level = entries.total(np.where(has, mean, 0.0)) / np.maximum(entries.total(has.astype(np.float64)), 1)
        inverse = np.where(has, 1.0 / np.maximum(known, 1.0), np.nan)
        return ClassMeans(entries, inverse, np.where(has, mean - entries.spread(level), 0.0))

    def weights(self, variance: FloatArray, noise: FloatArray) -> MeanWeights:
        """Return the weights of the means under T and S, (E,) each."""
        entries = self.entries
        spread = np.maximum(variance + noise * self.inverse, _TINY)
        weight = np.where(np.isnan(spread), 0.0, 1.0 / spread)
        share = weight / entries.spread(np.maximum(entries.total(weight), _TINY))
        off = np.where(weight > 0, self.mean - entries.spread(entries.total(share * self.mean)), 0.0)
        return MeanWeights(weight, share, off)

    def some(self, keep_Q: NDArray[np.bool_]) -> tuple[ClassMeans, NDArray[np.bool_]]:
        """Return those of some questions, and which of these entries they are."""
        entries, keep_E = self.entries.some(keep_Q)
        return ClassMeans(entries, self.inverse[keep_E], self.mean[keep_E]), keep_E


def evidence(delta: FloatArray, weights: MeanWeights) -> FloatArray:
    """Return log P(m | z = k) - log P(m | z = 0) of each class, (E,)."""
    return delta * weights.weight * (weights.off - 0.5 * delta * (1.0 - weights.share))


class MeanLikelihood:
    """Log-likelihood of the class means given the votes' log-odds, which kappa and c correct."""

    def __init__(self, means: ClassMeans, odds_E: FloatArray, noise_F: FloatArray) -> None:
        several = means.entries.total(np.isfinite(means.inverse).astype(np.float64)) > 1
        self._means, kept_E = means.some(several)
        self._odds_E, self._noise_F = odds_E[kept_E], noise_F
        self._chosen: tuple[bytes, ClassMeans, FloatArray] = (b"", self._means, self._odds_E)

    def evaluate(self, at: FloatArray, fits: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return log-likelihoods (f,) and slopes (f, 4) of some of the pools."""
        means, odds = self._of(fits)
        entries = means.entries
        noise_f = self._noise_F[fits]
        delta_f, variance_f = np.exp(at[:, 0]) * np.sqrt(noise_f), np.exp(at[:, 1]) * noise_f
        kappa_f = np.exp(at[:, 2])
        delta, variance = entries.of_fit(delta_f), entries.of_fit(variance_f)
        known = weight, share, off = means.weights(variance, entries.of_fit(noise_f))
        prior = entries.of_fit(kappa_f) * odds + entries.of_fit(at[:, 3])
        before, log_before = entries.none_and(prior)
        after, log_after = entries.none_and(prior + evidence(delta, known))
        total, heavy = entries.total(weight), weight * share
        mass, drift = entries.total(heavy), entries.total(heavy * off)
        own = 0.5 * (
            entries.total(np.log(np.where(weight > 0, weight, 1.0))) - np.log(np.maximum(total, _TINY))
            - entries.total(weight * off**2)
        )  # fmt: skip
        # Derivatives in T: of w it is -w^2, of the weighted mean -drift.
        by_delta = weight * (off - delta * (1.0 - share))
        turn = weight * (weight * (2.0 * share - 1.0) - share * entries.spread(mass))
        by_variance = delta * weight * (entries.spread(drift) - weight * off) - 0.5 * delta**2 * turn
        own_by_variance = 0.5 * (mass - total + entries.total((weight * off) ** 2))
        moved = after - before
        slope = np.stack(
            [
                entries.by_fit(entries.total(after * by_delta)) * delta_f,
                entries.by_fit(entries.total(after * by_variance) + own_by_variance) * variance_f,
                entries.by_fit(entries.total(moved * odds)) * kappa_f,
                entries.by_fit(entries.total(moved)),
            ],
            axis=-1,
        )
        return entries.by_fit(log_after - log_before + own), slope

    def _of(self, fits: NDArray[np.intp]) -> tuple[ClassMeans, FloatArray]:
        """Return the means and log-odds of some of the pools, renumbered; the last ones are kept."""
        key = fits.tobytes()
        if self._chosen[0] != key:
            place_F = np.full(len(self._noise_F), -1)
            place_F[fits] = np.arange(len(fits))
            means, keep_E = self._means.some(place_F[self._means.entries.fit_Q] >= 0)
            entries = replace(means.entries, fit_Q=place_F[means.entries.fit_Q], n_fits=len(fits))
            self._chosen = (key, replace(means, entries=entries), self._odds_E[keep_E])
        return self._chosen[1:]
