r"""The latent-answer model: one answer of a question is right, and rollouts that give it are right together.

A question has votes :math:`n_k` in K answer classes, N in all, and the mean :math:`m_k` of the confidences of
each class. The class z is right, or none is (z = 0).

*Votes.* The right answer draws a share :math:`p \sim \mathrm{Beta}(a, b)` of the votes; the others fall
into classes by a Dirichlet process of concentration :math:`\theta`; with probability :math:`\pi` no answer is
right. With the rising factorial :math:`x^{(n)} = x (x + 1) \dots (x + n - 1)`,

.. math:: \frac{P(n, z = k)}{P(n, z = 0)} =
          \frac{1 - \pi}{\pi} \frac{a^{(n_k)} b^{(N - n_k)}}{(a + b)^{(N)}}
          \frac{\theta^{(N)}}{\theta\,\theta^{(N - n_k)} (n_k - 1)!}.

The four parameters maximise the likelihood of the votes. Rollouts of one model repeat its mistakes, so in the
posterior the N votes of a question count as at most :data:`WITNESSES`, in the same proportions.

*Confidence.* A rollout of class k has :math:`b + u_k + \delta [k = z] + \epsilon`: the question's own level
b, flat, what its class has in common :math:`u_k \sim N(0, T)`, and :math:`\epsilon \sim N(0, S)`. With
:math:`w_k = 1 / (T + S / n_k)`, :math:`A = \sum w_k`, :math:`\bar m = \sum w_k m_k / A`,

.. math:: \log \frac{P(m \mid z = k)}{P(m \mid z = 0)}
          = \delta w_k (m_k - \bar m) - \tfrac 1 2 \delta^2 w_k (1 - w_k / A).

S is the variance within classes. :math:`\delta`, T and a correction of the votes' log-odds
(:math:`\kappa \log\mathrm{odds} + c`) maximise the likelihood of the class means given the votes. Only
contrasts within a question enter: its difficulty drops out, and so does the drift of confidence over steps.
Where :math:`\delta` gains less than :data:`LEAST_GAIN` it is 0, and the vote is the plain one.

Axis letters: F independent fits, R questions, C classes (padded), N rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ascent import FIXED, Prior, climb
from dttrl.method.ballots import FloatArray, IntArray, class_sums
from dttrl.method.mean_likelihood import ClassMeans, MeanLikelihood, evidence
from dttrl.method.vote_likelihood import VoteLikelihood, none_and

WITNESSES = 6.0
"""Votes of one model on one question are worth this many independent ones, however many there are."""
LEAST_GAIN = 2.0
"""Nats by which confidence must raise the log-likelihood before it has a say."""
_HALF = 0.5
_LEAST_NOISE = 1e-6
_TINY = 1e-300
_VOTES_PRIOR = (np.log([2.0, 1.0, 3.0]), np.array([0.7, 0.7, 1.0]))
"""Means and deviations of log a, log b and log theta, before any votes are seen."""
_NONE_PRIOR = (float(np.log(0.1 / 0.9)), 1.0)
"""The same of the log-odds of pi."""
_CONFIDENCE_PRIOR = (np.array([np.log(0.5), 0.0, 0.0, 0.0]), np.array([2.0, 2.0, 0.5, 1.0]))
"""The same of log(delta / sqrt S), log(T / S), log kappa and c."""
_STARTS = (-1.5, 1.0)
"""Where log(delta / sqrt S) starts to climb."""
_NO_DELTA = -9.0


class Sums(NamedTuple):
    """All that the model needs to know of R questions; arrays (..., R, C), 0 past a question's classes."""

    votes: FloatArray
    """Rollouts of each class."""
    known: FloatArray
    """Those of them that have a confidence."""
    mean: FloatArray
    """Mean of their confidences."""
    square: FloatArray
    """Sum of the squared deviations from it."""

    @staticmethod
    def joined(parts: Sequence[Sums]) -> Sums:
        """Return the questions of several, one after the other, no wider than the most classes of one."""
        width = max(int((part.votes > 0).sum(axis=-1).max(initial=1)) for part in parts)

        def fitted(array: FloatArray) -> FloatArray:
            missing = max(width - array.shape[-1], 0)
            return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])[..., :width]

        return Sums(
            *(np.concatenate([fitted(a) for a in same], axis=-2) for same in zip(*parts, strict=True))
        )


def summed(class_RN: IntArray, confidence_RN: FloatArray) -> Sums:
    """Return the sums of R questions with N rollouts each; class -1: no answer, not finite: no confidence."""
    answered_RN = class_RN >= 0
    known_RN = answered_RN & np.isfinite(confidence_RN)
    votes_RC = class_sums(class_RN, np.ones(class_RN.shape), answered_RN)
    if not votes_RC.shape[1]:
        votes_RC = np.zeros((len(class_RN), 1))
    width = votes_RC.shape[1]

    def per_class(value_RN: FloatArray) -> FloatArray:
        found_RC = class_sums(class_RN, value_RN, known_RN)
        return np.pad(found_RC, ((0, 0), (0, width - found_RC.shape[1])))

    count_RC = per_class(np.ones(class_RN.shape))
    mean_RC = per_class(confidence_RN) / np.maximum(count_RC, 1.0)
    centred_RN = confidence_RN - np.take_along_axis(mean_RC, np.maximum(class_RN, 0), axis=1)
    square_RC = per_class(np.where(known_RN, centred_RN, 0.0) ** 2)
    return Sums(votes_RC, count_RC, mean_RC, square_RC)


@dataclass(frozen=True, slots=True)
class Latent:
    """A fitted model: of one pool floats, of F pools arrays (F,)."""

    a: Any
    b: Any
    theta: Any
    none: Any
    """pi, the prior probability that no answer is right."""
    delta: Any
    """By how much the right class is surer, in units of the confidence."""
    class_variance: Any
    """T, of what a class has in common."""
    noise: Any
    """S, within classes."""
    kappa: Any
    odds: Any
    """c, what confidence adds to the votes' log-odds that a class is right."""
    gain: Any
    """Nats by which delta raises the log-likelihood of the class means; comparable between measures."""
    power: float | None = None
    """A prior proportional to votes^power in the place of the estimated one (None)."""

    @property
    def separation(self) -> Any:
        """Delta in standard deviations of a single rollout, sqrt(T + S)."""
        return self.delta / np.sqrt(np.maximum(self.class_variance + self.noise, _TINY))

    def one(self, index: int) -> Latent:
        """Return the fit of one of F pools."""
        values = {name: getattr(self, name) for name in _FITTED}
        return replace(self, **{name: float(value[index]) for name, value in values.items()})

    def to_array(self) -> FloatArray:
        """Return the parameters of a single fit as float64."""
        power = np.nan if self.power is None else self.power
        return np.array([*(getattr(self, name) for name in _FITTED), power], dtype=np.float64)

    @staticmethod
    def from_array(array: FloatArray) -> Latent:
        """Return the fit that :meth:`to_array` wrote."""
        fitted = dict(zip(_FITTED, array.tolist(), strict=False))
        return Latent(**fitted, power=None if np.isnan(array[-1]) else float(array[-1]))


_FITTED = tuple(each.name for each in fields(Latent) if each.name != "power")


def fit_latent(
    sums: Sums, *, power: float | None = None, none: float | None = None, start: Latent | None = None
) -> Latent:
    """Fit the model to one pool of questions; see :func:`fit_latents`."""
    stacked = Sums(*(part[None] for part in sums))
    return fit_latents(stacked, power=power, none=none, start=start).one(0)


def fit_latents(
    sums: Sums, *, power: float | None = None, none: float | None = None, start: Latent | None = None
) -> Latent:
    """Fit the model to F pools of R questions, arrays (F, R, C).

    ``power`` puts a prior proportional to votes^power in the place of the estimated one, ``none`` fixes pi
    (0 < none < 1; with ``power`` it is 0.1 unless given). ``start`` is a fit to begin from, such as that of
    the step before.
    """
    used = Sums(*(part.astype(np.float64, copy=False) for part in sums))
    a, b, theta, pi = _fit_votes(used.votes, none if power is None else none or 0.1, start)
    flat = np.zeros(len(a))
    fitted = Latent(a, b, theta, pi, flat, flat, flat, flat + 1.0, flat, flat, power)
    return _fit_confidence(used, fitted, start)


def posterior(sums: Sums, latent: Latent) -> FloatArray:
    """Return the probability (..., R, C) that each class is right; what is left to 1: that none is."""
    odds, likelihood = _prior_odds(sums.votes, latent), np.zeros(sums.votes.shape)
    kappa, c = _wide(latent.kappa), _wide(latent.odds)
    if np.any(np.asarray(latent.delta) > 0):
        weights = ClassMeans(sums.known, sums.mean).weights(_wide(latent.class_variance), _wide(latent.noise))
        likelihood = evidence(_wide(latent.delta), weights)
    return none_and(np.where(sums.votes > 0, kappa * odds + c + likelihood, -np.inf))[0]


def _wide(value: Any) -> FloatArray:
    return np.asarray(value, dtype=np.float64)[..., None, None]


def _prior_odds(votes: FloatArray, latent: Latent) -> FloatArray:
    """Return log P(z = k) - log P(z = 0) given the votes alone; 0 where a class has none."""
    from scipy.special import gammaln

    none = _wide(latent.none)
    right = np.log1p(-none) - np.log(none)
    here = votes > 0
    if latent.power is not None:
        share = np.where(here, latent.power * np.log(np.maximum(votes, 1.0)), -np.inf)
        most = np.maximum(share.max(axis=-1, keepdims=True), 0.0)
        total = most + np.log(np.maximum(np.exp(share - most).sum(axis=-1, keepdims=True), _TINY))
        return np.where(here, right + share - total, 0.0)
    all_votes = votes.sum(axis=-1, keepdims=True)
    n = votes * np.minimum(1.0, WITNESSES / np.maximum(all_votes, 1.0))
    total = np.minimum(all_votes, WITNESSES)
    a, theta = _wide(latent.a), _wide(latent.theta)
    # With b above theta a class of more votes could be the less likely one.
    b = np.minimum(_wide(latent.b), theta)
    some = np.where(here, n, 1.0)
    odds = (
        gammaln(a + n) + gammaln(b + total - n) - gammaln(theta + total - n) - gammaln(some)
        + gammaln(a + b) - gammaln(a) - gammaln(b) - gammaln(a + b + total)
        + gammaln(theta + total) - np.log(theta)
    )  # fmt: skip
    return np.where(here, right + odds, 0.0)


def _fit_votes(
    votes: FloatArray, none: float | None, start: Latent | None
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return a, b, theta and pi (F,) of the largest posterior given the votes (F, R, C)."""
    model = VoteLikelihood(votes)
    mean, deviation = _VOTES_PRIOR
    odds = _NONE_PRIOR[0] if none is None else float(np.log(none / (1 - none)))
    precision = np.append(deviation**-2, _NONE_PRIOR[1] ** -2 if none is None else FIXED)
    mean = np.append(mean, odds)
    begin = mean
    if start is not None:
        begin = np.array([*np.log([start.a, start.b, start.theta]), np.log(start.none / (1 - start.none))])
    at, _ = climb(
        model.evaluate, np.tile(begin, (len(votes), 1)), Prior(mean, precision), bend=0.25 * votes.shape[1]
    )
    a, b, theta = np.exp(at[:, :3]).T
    return a, b, theta, 1 / (1 + np.exp(-at[:, 3]))


def _fit_confidence(sums: Sums, votes: Latent, start: Latent | None) -> Latent:
    """Return the fit of the votes with delta, T, S, kappa and c of F pools."""
    noise_F, tells_F = _noise(sums)
    n_fits = len(noise_F)
    mean, deviation = _CONFIDENCE_PRIOR
    free = deviation**-2
    if votes.power is not None:  # what was given is not corrected
        free = np.array([*free[:2], FIXED, FIXED])
    begin = [np.array([delta, 0.0, 0.0, 0.0]) for delta in _STARTS]
    if start is not None and start.delta > 0:
        scale = max(start.noise, _TINY)
        relative = np.maximum([start.delta / np.sqrt(scale), start.class_variance / scale], 1e-4)
        begin[-1] = np.array([*np.log(relative), np.log(start.kappa), start.odds])
    # The last climb of a pool is the one without delta, which no votes correct.
    blind = np.array([FIXED, free[1], FIXED, FIXED])
    rows = [*begin, np.array([_NO_DELTA, 0.0, 0.0, 0.0])]
    width = len(rows)
    means_at = np.tile(mean, (width, 1))
    means_at[-1, 0] = _NO_DELTA
    precision = np.stack([*[free] * len(begin), blind])
    tiled = Sums(*(np.repeat(part, width, axis=0) for part in sums))
    odds = np.repeat(_prior_odds(sums.votes, votes), width, axis=0)
    model = MeanLikelihood(ClassMeans(tiled.known, tiled.mean), tiled.votes, odds, np.repeat(noise_F, width))
    prior = Prior(np.tile(means_at, (n_fits, 1)), np.tile(precision, (n_fits, 1)))
    at, value = climb(
        model.evaluate, np.tile(np.stack(rows), (n_fits, 1)), prior, bend=0.25 * sums.votes.shape[1]
    )
    at, value = at.reshape(n_fits, width, 4), value.reshape(n_fits, width)
    best = value[:, :-1].argmax(axis=1)
    gain_F = np.where(tells_F, value[np.arange(n_fits), best] - value[:, -1], 0.0)
    speaks_F = gain_F >= LEAST_GAIN
    chosen = np.where(speaks_F[:, None], at[np.arange(n_fits), best], at[:, -1])
    delta, variance = np.exp(chosen[:, :2]).T * np.stack([np.sqrt(noise_F), noise_F])
    return replace(
        votes,
        delta=np.where(speaks_F, delta, 0.0),
        class_variance=variance,
        noise=noise_F,
        kappa=np.exp(chosen[:, 2]),
        odds=chosen[:, 3],
        gain=gain_F,
    )


def _noise(sums: Sums) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return S (F,), and whether the confidences of a pool differ within any question of two classes."""
    count, has = sums.known, sums.known > 0
    in_question = count.sum(axis=-1)
    level = (count * sums.mean).sum(axis=-1) / np.maximum(in_question, 1.0)
    between = (count * np.where(has, sums.mean - level[..., None], 0.0) ** 2).sum(axis=(1, 2))
    within = sums.square.sum(axis=(1, 2))
    overall = (between + within) / np.maximum((in_question - 1.0).clip(0.0).sum(axis=-1), 1.0)
    free = (count - has).sum(axis=(1, 2))
    # Where every class has one rollout the two variances cannot be told apart: half of it is noise.
    noise = np.where(free > 0, within / np.maximum(free, 1.0), _HALF * overall)
    tells = (overall > 0) & (has.sum(axis=-1) > 1).any(axis=-1)
    return np.where(tells, np.maximum(noise, _LEAST_NOISE * overall), 1.0), tells
