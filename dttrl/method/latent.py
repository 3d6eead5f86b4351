r"""The latent-answer model: one answer of a question is right, and rollouts that give it are right together.

A question has votes :math:`n_k` in K answer classes, N in all, and the mean :math:`m_k` of the confidences of
each class. The class z is right, or none is (z = 0).

*Votes.* The right answer draws a share :math:`p \sim \mathrm{Beta}(a, b)` of the votes; the others fall
into classes by a Dirichlet process of concentration :math:`\theta`; with probability :math:`\pi` there is no
right answer to be drawn. With the rising factorial :math:`x^{(n)} = x (x + 1) \dots (x + n - 1)`,

.. math:: \frac{P(n, z = k)}{P(n, z = 0)} =
          \frac{(1 - \pi) a^{(n_k)} b^{(N - n_k)}}{\pi (a + b)^{(N)} + (1 - \pi) b^{(N)}} \,
          \frac{\theta^{(N)}}{\theta\,\theta^{(N - n_k)} (n_k - 1)!},

as none of the answers is right, too, where nobody gave the right one (:math:`b^{(N)}`). There b counts as at
most :math:`\theta`, so that more votes never make a class less probable.
The four parameters maximise the likelihood of the votes. Rollouts of one model repeat its mistakes, so in the
posterior the N votes of a question count as at most :data:`WITNESSES`, in the same proportions.

*Confidence.* A rollout of class k has :math:`b + u_k + \delta [k = z] + \epsilon`: the question's own level
b, flat, what its class has in common :math:`u_k \sim N(0, T)`, and :math:`\epsilon \sim N(0, S)`. With
:math:`w_k = 1 / (T + S / n_k)`, :math:`A = \sum w_k`, :math:`\bar m = \sum w_k m_k / A`,

.. math:: \log \frac{P(m \mid z = k)}{P(m \mid z = 0)}
          = \delta w_k (m_k - \bar m) - \tfrac 1 2 \delta^2 w_k (1 - w_k / A).

Confidences that are probabilities p enter as :math:`-\log(1 - p)`. S is the variance within classes.
:math:`\delta`, T and a correction of the votes' log-odds (:math:`\kappa \log\mathrm{odds} + c`) maximise the
likelihood of the class means given the votes. Only
contrasts within a question enter: its difficulty drops out, and so does the drift of confidence over steps.
Where :math:`\delta` gains less than :data:`LEAST_GAIN` it is 0, and the vote is the plain one.

Axis letters: F independent fits, R questions, C classes (padded), N rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ascent import FIXED, Prior, climb
from dttrl.method.ballots import FloatArray, IntArray, class_sums
from dttrl.method.class_entries import ClassEntries
from dttrl.method.mean_likelihood import ClassMeans, MeanLikelihood, evidence
from dttrl.method.vote_likelihood import VoteLikelihood

WITNESSES = 6.0
"""Votes of one model on one question are worth this many independent ones, however many there are."""
LEAST_GAIN = 2.0
"""Nats by which confidence must raise the log-likelihood before it has a say."""
MOST_SEPARATION = 5.0
"""Deviations between right and wrong beyond which a fit has taken an outlier for the right class."""
LEAST_DOUBT = 1e-6
"""The probability of an error that no confidence is below."""
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
        ends = np.cumsum([len(part.votes) for part in parts])
        joined = Sums(*(np.zeros((int(ends[-1]), width)) for _ in Sums._fields))
        for part, end in zip(parts, ends.tolist(), strict=True):
            for whole, piece in zip(joined, part, strict=True):
                some = piece[:, :width]
                whole[end - len(some) : end, : some.shape[1]] = some
        return joined


def surprise(confidence: FloatArray) -> FloatArray:
    """Return -log(1 - p) of confidences that all lie in [0, 1], and others as they are.

    Near certainty probabilities crowd together, and what separates right from wrong is how far they are from
    1. ``1 - p`` counts as at least :data:`LEAST_DOUBT`; not finite stays so.
    """
    finite = np.isfinite(confidence)
    if not finite.any() or (confidence[finite] < 0).any() or (confidence[finite] > 1).any():
        return confidence
    with np.errstate(invalid="ignore"):
        return np.where(finite, -np.log(np.maximum(1.0 - confidence, LEAST_DOUBT)), np.nan)


def summed(class_RN: IntArray, confidence_RN: FloatArray) -> Sums:
    """Return the sums of R questions with N rollouts each; class -1: no answer, not finite: no confidence.

    Confidences that are all probabilities enter as the nats to certainty, :func:`surprise`.
    """
    confidence_RN = surprise(confidence_RN)
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
    blind_variance: Any
    """T of the best fit without delta."""
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

    def repeated(self, times: int) -> Latent:
        """Return F fits as ``times`` as many, each several times in a row."""
        return Latent(**{name: np.repeat(getattr(self, name), times) for name in _FITTED}, power=self.power)

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
    fitted = Latent(a, b, theta, pi, flat, flat, flat, flat + 1.0, flat, flat, flat, power)
    return _fit_confidence(used, fitted, start)


def posterior(sums: Sums, latent: Latent) -> FloatArray:
    """Return the probability that each class is right, as the shape of ``sums`` has them.

    What is left to 1 is the probability that none is. ``latent`` is one fit for (R, C), or F for (F, R, C).
    """
    table = sums if sums.votes.ndim == 3 else Sums(*(part[None] for part in sums))
    entries = ClassEntries.of(table.votes)

    of_fit = partial(_of_fit, entries)
    odds = of_fit(latent.kappa) * _prior_odds(entries, table.votes, latent) + of_fit(latent.odds)
    if np.any(np.asarray(latent.delta) > 0):
        means = ClassMeans.of(entries, entries.flat(table.known), entries.flat(table.mean))
        weights = means.weights(of_fit(latent.class_variance), of_fit(latent.noise))
        odds = odds + evidence(of_fit(latent.delta), weights)
    right_FRC = np.zeros(table.votes.size)
    right_FRC[entries.cell_E] = entries.none_and(odds)[0]
    return right_FRC.reshape(sums.votes.shape)


def _of_fit(entries: ClassEntries, value: Any) -> FloatArray:
    """Return a parameter, (F,) or of a single fit, at the entries."""
    return entries.of_fit(np.broadcast_to(np.asarray(value, dtype=np.float64), (entries.n_fits,)))


def _prior_odds(entries: ClassEntries, votes_FRC: FloatArray, latent: Latent) -> FloatArray:
    """Return log P(z = k) - log P(z = 0) given the votes alone, (E,)."""
    from scipy.special import gammaln

    votes = entries.flat(votes_FRC)
    if latent.power is not None:
        none = _of_fit(entries, latent.none)
        share = latent.power * np.log(votes)
        top = entries.spread(np.maximum.reduceat(share, entries.first_Q)) if share.size else share
        total = top + np.log(entries.spread(entries.total(np.exp(share - top))))
        return np.asarray(np.log1p(-none) - np.log(none) + share - total)
    heard_Q = np.minimum(entries.total(votes), WITNESSES)
    n = votes * entries.spread(heard_Q / np.maximum(entries.total(votes), 1.0))

    def of_question(value: Any) -> FloatArray:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (entries.n_fits,))[entries.fit_Q]

    a_Q, theta_Q, none_Q = of_question(latent.a), of_question(latent.theta), of_question(latent.none)
    # With b above theta a class of more votes could be the less likely one.
    b_Q = np.minimum(of_question(latent.b), theta_Q)
    given_Q = np.log1p(-none_Q) + gammaln(a_Q + b_Q) - gammaln(b_Q) - gammaln(a_Q + b_Q + heard_Q)
    wrong_Q = np.logaddexp(np.log(none_Q), given_Q + gammaln(b_Q + heard_Q))
    shared_Q = given_Q - wrong_Q - gammaln(a_Q) + gammaln(theta_Q + heard_Q) - np.log(theta_Q)
    rest = entries.spread(heard_Q) - n
    return np.asarray(
        entries.spread(shared_Q) + gammaln(entries.spread(a_Q) + n) - gammaln(n)
        + gammaln(entries.spread(b_Q) + rest) - gammaln(entries.spread(theta_Q) + rest)
    )  # fmt: skip


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
    blind_start = 0.0
    if start is not None and start.delta > 0:
        at_once = [start.delta / np.sqrt(start.noise), start.class_variance / start.noise]
        begin = [np.array([*np.log(np.maximum(at_once, 1e-4)), np.log(start.kappa), start.odds])]
        blind_start = float(np.log(max(start.blind_variance / start.noise, 1e-4)))
    # The last climb of a pool is the one without delta, which no votes correct.
    blind = np.array([FIXED, free[1], FIXED, FIXED])
    rows = [*begin, np.array([_NO_DELTA, blind_start, 0.0, 0.0])]
    width = len(rows)
    means_at = np.tile(mean, (width, 1))
    means_at[-1, 0] = _NO_DELTA
    precision = np.stack([*[free] * len(begin), blind])
    tiled = Sums(*(np.repeat(part, width, axis=0) for part in sums))
    entries = ClassEntries.of(tiled.votes)
    odds = _prior_odds(entries, tiled.votes, votes.repeated(width))
    means = ClassMeans.of(entries, entries.flat(tiled.known), entries.flat(tiled.mean))
    model = MeanLikelihood(means, odds, np.repeat(noise_F, width))
    prior = Prior(np.tile(means_at, (n_fits, 1)), np.tile(precision, (n_fits, 1)))
    # The log-likelihood in log delta bends by twice its gain, and in log T by half a nat a contrast.
    contrasts = 0.5 * entries.by_fit(entries.total(np.ones(len(entries.cell_E))) - 1.0)
    size = 0.25 * sums.votes.shape[1]
    bend = np.full(prior.mean.shape, size)
    bend[:, 0] += 0.0 if start is None else 2.0 * max(start.gain, 0.0)
    bend[:, 1] = contrasts
    at, value = climb(model.evaluate, np.tile(np.stack(rows), (n_fits, 1)), prior, bend=bend)
    at, value = at.reshape(n_fits, width, 4), value.reshape(n_fits, width)
    # Two classes of heavy tails can pass for a right one that is sure beyond measure.
    separation = np.exp(at[:, :, 0]) / np.sqrt(1.0 + np.exp(at[:, :, 1]))
    judged = np.where(separation > MOST_SEPARATION, -np.inf, value)[:, :-1]
    best = judged.argmax(axis=1)
    reached_F = judged[np.arange(n_fits), best]
    gain_F = np.where(tells_F & np.isfinite(reached_F), reached_F - value[:, -1], 0.0)
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
        blind_variance=np.exp(at[:, -1, 1]) * noise_F,
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
    noise = np.where(free > 0, within / np.maximum(free, 1.0), 0.5 * overall)
    tells = (overall > 0) & (has.sum(axis=-1) > 1).any(axis=-1)
    return np.where(tells, np.maximum(noise, _LEAST_NOISE * overall), 1.0), tells
