"""Accuracy of rollouts and runs: avg@n, maj@n and pass@k, with intervals over questions.

``avg@n`` is the mean share of right rollouts (the paper's "average of 16", TTRL's mean@16), ``maj@n`` the
share of questions whose majority vote is right, ``pass@k`` the unbiased probability that one of k rollouts is
right (arXiv 2107.03374). Intervals are percentile bootstraps that resample whole questions, because the
rollouts of a question are not independent; the generator is an argument. Axis letters: B questions, C
clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dttrl.errors import InputError
from dttrl.rng import derive
from dttrl.scoring.summary import MethodSummary

_CHUNK = 2**22  # resampled weights held at once


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; NaN where it cannot be computed."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        """Return how it is shown: ``0.500 (0.250-0.750)``, or without an interval where there is none."""
        interval = "" if math.isnan(self.low) else f" ({self.low:.3f}-{self.high:.3f})"
        return "-" if math.isnan(self.value) else f"{self.value:.3f}{interval}"

    @staticmethod
    def of_draws(value: float, draws: NDArray[np.float64]) -> Estimate:
        """Return a number with the 95 % percentile interval of its draws; NaN draws are left out."""
        low, high = np.nanquantile(draws, [0.025, 0.975])
        return Estimate(float(value), float(low), float(high))


UNKNOWN = Estimate(math.nan)


@dataclass(frozen=True, slots=True)
class QuestionScore:
    """How one question went: n rollouts, those that are right, and whether their majority vote is right.

    ``maj_correct`` and ``majority_ratio`` (eq:majority_ratio) are None and NaN where no vote is known.
    """

    query_id: str
    n: int
    n_correct: int
    maj_correct: bool | None = None
    majority_ratio: float = math.nan
    gold: str | None = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy over a set of questions; ``n_low`` and ``n_high`` are the fewest and most rollouts of one."""

    questions: int
    n_low: int
    n_high: int
    average: Estimate
    majority: Estimate
    majority_ratio: float
    pass_at: dict[int, Estimate] = field(default_factory=dict)

    @property
    def n_label(self) -> str:
        """The n of avg@n and maj@n."""
        return n_label(self.n_low, self.n_high)


def n_label(low: int, high: int) -> str:
    """The n of avg@n as it is shown: "16", or "8-16" where questions differ."""
    return str(low) if low == high else f"{low}-{high}"


def avg_at_n(n_correct_B: ArrayLike, n_B: ArrayLike) -> float:
    """Mean over questions of the share of right rollouts; NaN without questions.

    >>> avg_at_n([2, 4], [4, 4])
    0.75
    """
    correct_B, total_B = _counts(n_correct_B, n_B)
    return float(np.mean(correct_B / total_B)) if total_B.size else math.nan


def known_mean(values: Iterable[object]) -> float:
    """Mean of the finite numbers among ``values``; NaN where there is none.

    >>> known_mean([1, None, math.nan, 2.0])
    1.5
    """
    known = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def pass_at_k(n_correct_B: ArrayLike, n_B: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased pass@k of each question, 1 - C(n-c, k)/C(n, k) (arXiv 2107.03374); NaN where n < k.

    >>> pass_at_k([1, 0, 2], [2, 2, 2], 1).tolist()
    [0.5, 0.0, 1.0]
    """
    if k < 1:
        raise InputError(f"pass@k needs k of at least 1, got {k}")
    correct_B, total_B = _counts(n_correct_B, n_B)
    result_B = np.full(total_B.shape, np.nan)
    for index, (c, n) in enumerate(zip(correct_B.tolist(), total_B.tolist(), strict=True)):
        if n < k:
            continue
        # A product of ratios: binomials of 256 rollouts would leave the range of a double.
        miss = 0.0 if n - c < k else float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1, dtype=np.float64)))
        result_B[index] = 1.0 - miss
    return result_B


def wilson_interval(successes: int, total: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share; (NaN, NaN) when ``total`` is 0.

    >>> tuple(round(end, 3) for end in wilson_interval(8, 10))
    (0.49, 0.943)
    """
    if not 0 <= successes <= total:
        raise InputError(f"an interval needs 0 <= successes <= total, got {successes} of {total}")
    if total == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2.0)
    share = successes / total
    scale = 1.0 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1.0 - share) / total + z * z / (4 * total * total))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == total else centre + half)


def vote_interval(votes: MethodSummary, *, seed: int) -> tuple[float, float]:
    """Wilson's interval of right votes; where steps repeat questions, a bootstrap that draws whole ones."""
    if not any(count > 1 for _, count in votes.by_question.values()):
        return wilson_interval(votes.correct, votes.with_gold)
    values, clusters = [], []
    for query_id, (right, count) in votes.by_question.items():
        values += [1.0] * right + [0.0] * (count - right)
        clusters += [query_id] * count
    estimate = clustered_bootstrap(values, clusters, rng=derive(seed, query=votes.method, purpose="vote"))
    return estimate.low, estimate.high


def clustered_bootstrap(
    value_B: ArrayLike,
    cluster_B: Sequence[str],
    *,
    rng: np.random.Generator,
    repeats: int = 2000,
    level: float = 0.95,
) -> Estimate:
    """Mean of ``value_B`` with a percentile interval that resamples clusters (questions) with replacement.

    Values that are NaN are left out. Rows of one cluster are drawn together. One cluster gives an interval of
    zero width, which says nothing; the caller sees it by the number of questions.
    """
    values_B = np.asarray(value_B, dtype=np.float64)
    kept_B = np.isfinite(values_B)
    if not kept_B.any():
        return UNKNOWN
    names = [name for name, keep in zip(cluster_B, kept_B.tolist(), strict=True) if keep]
    _, index_B = np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)
    sum_C = np.bincount(index_B, weights=values_B[kept_B])
    count_C = np.bincount(index_B).astype(np.float64)
    clusters = sum_C.size
    means = np.empty(repeats)
    step = max(1, _CHUNK // clusters)
    for start in range(0, repeats, step):
        size = min(step, repeats - start)
        weight_RC = rng.multinomial(clusters, np.full(clusters, 1.0 / clusters), size=size)
        means[start : start + size] = (weight_RC @ sum_C) / (weight_RC @ count_C)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Estimate(float(values_B[kept_B].mean()), float(low), float(high))


def summarize(
    scores: Sequence[QuestionScore],
    *,
    rng: np.random.Generator,
    ks: Sequence[int] | None = None,
    repeats: int = 2000,
) -> Accuracy:
    """Return the accuracy over ``scores``; ``ks`` defaults to 1, 4, 16, ... as far as every question reaches.

    Questions are clusters: the same ``query_id`` in several rows (seeds, steps) is drawn together.
    """
    if not scores:
        raise InputError("no question has a gold answer, so there is no accuracy to compute")
    n_B = [score.n for score in scores]
    correct_B = [score.n_correct for score in scores]
    cluster_B = [score.query_id for score in scores]
    chosen = powers_of_four(min(n_B)) if ks is None else list(ks)

    def interval(value_B: ArrayLike) -> Estimate:
        return clustered_bootstrap(value_B, cluster_B, rng=rng, repeats=repeats)

    ratios = [score.majority_ratio for score in scores if not math.isnan(score.majority_ratio)]
    verdict_B = [math.nan if score.maj_correct is None else float(score.maj_correct) for score in scores]
    return Accuracy(
        questions=len(set(cluster_B)),
        n_low=min(n_B),
        n_high=max(n_B),
        average=interval(np.asarray(correct_B, dtype=np.float64) / np.asarray(n_B, dtype=np.float64)),
        majority=interval(verdict_B),
        majority_ratio=float(np.mean(ratios)) if ratios else math.nan,
        pass_at={k: interval(pass_at_k(correct_B, n_B, k)) for k in chosen},
    )


def summarize_split(
    scores: Sequence[QuestionScore],
    *,
    seed: int,
    step: int | None,
    split: str,
    ks: Sequence[int] | None = None,
    repeats: int = 2000,
) -> Accuracy:
    """Return :func:`summarize` with the bootstrap that belongs to (seed, step, split).

    Whoever shows the accuracy of a split after a step calls this, so that all show the same intervals.
    """
    rng = derive(seed, step=step or 0, purpose=f"accuracy:{split}")
    return summarize(scores, rng=rng, ks=ks, repeats=repeats)


def powers_of_four(n: int) -> list[int]:
    """1, 4, 16, ... up to n.

    >>> powers_of_four(64)
    [1, 4, 16, 64]
    """
    result, k = [], 1
    while k <= n:
        result.append(k)
        k *= 4
    return result


def evaluation_scores(table: pa.Table) -> dict[str, dict[int, list[QuestionScore]]]:
    """Group the rows of an EVALUATIONS table by split and ascending step; those without gold are left out."""
    found: dict[tuple[int, str], list[QuestionScore]] = {}
    for row in table.to_pylist():
        if row["gold"] is None or row["n"] < 1:
            continue
        ratio = math.nan if row["majority_ratio"] is None else row["majority_ratio"]
        score = QuestionScore(
            row["query_id"], row["n"], row["n_correct"], row["maj_correct"], ratio, row["gold"]
        )
        found.setdefault((row["step"], row["split"]), []).append(score)
    result: dict[str, dict[int, list[QuestionScore]]] = {}
    for step, split in sorted(found):
        result.setdefault(split, {})[step] = found[step, split]
    return result


def _counts(n_correct_B: ArrayLike, n_B: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    correct_B = np.asarray(n_correct_B, dtype=np.int64)
    total_B = np.asarray(n_B, dtype=np.int64)
    if correct_B.shape != total_B.shape:
        raise InputError(f"counts disagree in shape: {correct_B.shape} right, {total_B.shape} in all")
    if np.any(correct_B < 0) or np.any(correct_B > total_B) or np.any(total_B < 1):
        raise InputError("counts must satisfy 0 <= right <= n and n >= 1")
    return correct_B, total_B
