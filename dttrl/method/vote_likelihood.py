"""Log-likelihood of the votes under the latent-answer model (:mod:`dttrl.method.latent`), with its scores.

Axis letters: F independent fits, R questions, C classes, D distinct numbers of votes of a question's classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray

CountArray = NDArray[np.int64]


def none_and(score: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return exp(score) / (1 + its sum over the last axis), and the logarithm of that denominator.

    The 1 stands for "none is right", to which the scores are log-odds.
    """
    top = np.maximum(score.max(axis=-1, keepdims=True), 0.0)
    part = np.exp(score - top)
    total = part.sum(axis=-1, keepdims=True) + np.exp(-top)
    return part / total, (np.log(total) + top)[..., 0]


class VoteLikelihood:
    """Log-likelihood of the votes, up to what depends on no parameter, with its scores.

    Classes of a question with equally many votes are one entry that counts several times: most have a single
    vote. Rising factorials of whole numbers are looked up in cumulated sums.
    """

    def __init__(self, votes: FloatArray) -> None:
        whole = votes.astype(np.int64)
        self.total = whole.sum(axis=-1)
        self.size = int(self.total.max(initial=0))
        self.classes = (whole > 0).sum(axis=-1).astype(np.float64)
        self.n, times = _by_count(whole)
        with np.errstate(divide="ignore"):
            log_times = np.log(times)
        logs = np.concatenate([[0.0, 0.0], np.cumsum(np.log(np.arange(1, self.size + 1)))])
        self.fixed = log_times - logs[self.n]  # minus log (n - 1)!
        self.rest = self.total[..., None] - self.n
        self.asked = self.total > 0

    def evaluate(self, at: FloatArray, fits: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return log-likelihoods (f,) and slopes (f, 4) in log a, log b, log theta, logit pi."""
        n, rest, total, classes = self.n[fits], self.rest[fits], self.total[fits], self.classes[fits]
        a, b, theta = np.exp(at[:, :3]).T
        pi = 1 / (1 + np.exp(-at[:, 3]))
        (log_a, sum_a), (log_b, sum_b) = self._rising(a), self._rising(b)
        (log_t, sum_t), (log_ab, sum_ab) = self._rising(theta), self._rising(a + b)

        def of(table: FloatArray, index: CountArray) -> FloatArray:
            rows = np.arange(len(table)).reshape(-1, *[1] * (index.ndim - 1))
            return table[rows, index]

        log_pi, log_right = np.log(pi)[:, None], np.log1p(-pi)[:, None]
        # None of the answers is right where none can be, or where nobody gave the right one.
        log_absent = log_right + of(log_b, total) - of(log_ab, total)
        log_wrong = np.logaddexp(log_pi, log_absent)
        log_none = log_wrong + classes * np.log(theta)[:, None] - of(log_t, total)
        base = log_right + (classes - 1) * np.log(theta)[:, None] - of(log_ab, total)
        score = base[..., None] + of(log_a, n) + of(log_b - log_t, rest) + self.fixed[fits]
        share, likelihood = none_and(score - log_none[..., None])
        likelihood = np.where(self.asked[fits], likelihood + log_none, 0.0)
        some = share.sum(axis=-1)
        none = 1.0 - some
        absent = none * np.exp(log_absent - log_wrong)
        slope = np.stack(
            [
                a[:, None] * ((share * of(sum_a, n)).sum(axis=-1) - (some + absent) * of(sum_ab, total)),
                b[:, None]
                * (
                    (share * of(sum_b, rest)).sum(axis=-1)
                    + absent * of(sum_b, total) - (some + absent) * of(sum_ab, total)
                ),
                classes - some
                - theta[:, None] * ((share * of(sum_t, rest)).sum(axis=-1) + none * of(sum_t, total)),
                none - absent - pi[:, None],
            ],
            axis=-1,
        )  # fmt: skip
        return likelihood.sum(axis=1), np.where(self.asked[fits][..., None], slope, 0.0).sum(axis=1)

    def _rising(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log x^(n) and its derivative in x for n from 0 to the most votes, each (F, n)."""
        terms = x[:, None] + np.arange(self.size)
        zero = np.zeros((len(x), 1))
        return (
            np.concatenate([zero, np.cumsum(np.log(terms), axis=1)], axis=1),
            np.concatenate([zero, np.cumsum(1 / terms, axis=1)], axis=1),
        )


def _by_count(votes: CountArray) -> tuple[CountArray, FloatArray]:
    """Return the distinct votes of a question's classes and how many classes have them, both (F, R, D)."""
    ordered = -np.sort(-votes, axis=-1)
    new = np.diff(ordered, axis=-1, prepend=-1) != 0
    place = np.cumsum(new, axis=-1) - 1
    here = ordered > 0
    width = int((new & here).sum(axis=-1).max(initial=1)) or 1
    n = np.zeros((*votes.shape[:-1], width), dtype=np.int64)
    times = np.zeros(n.shape)
    f, r, c = np.nonzero(here)
    n[f, r, place[f, r, c]] = ordered[f, r, c]
    np.add.at(times, (f, r, place[f, r, c]), 1.0)
    return n, times
