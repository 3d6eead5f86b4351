"""Best of N, MoB, DeepConf, Borda and the pooled vote against plain Python on thousands of small elections.

Confidences are multiples of 1/8 with many equals, missing ones and (where only the order counts) negative
ones. Second implementations loop over rollouts and use exact fractions where they can.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dttrl.method.mixture import fit_mixture
from dttrl.method.voting.borda import borda
from dttrl.method.voting.deepconf import deepconf, keep_top
from dttrl.method.voting.distrivoting import distrivoting
from dttrl.method.voting.mob import bootstrap_sizes, mob
from dttrl.method.voting.registry import METHODS, parse_method

R = 2000
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Number = float | Fraction


def elections(n: int, seed: int, *, negative: bool) -> tuple[Ints, Floats]:
    """R elections of n rollouts: no-answers, missing and infinite confidences, equals, whole rows of each."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(-1, rng.integers(1, 5, size=(R, 1)), size=(R, n)).astype(np.int32)
    confidence = rng.integers(0, rng.choice([2, 6, 64], size=(R, 1)) + 1, size=(R, n)) / 8.0
    if negative:
        confidence -= rng.choice([0.0, 1.0, 9.0], size=(R, 1))
    confidence[rng.random((R, n)) < 0.08] = np.nan
    confidence[rng.random((R, n)) < 0.01] = np.inf
    confidence[rng.random(R) < 0.02] = np.nan
    classes[rng.random(R) < 0.02] = -1
    return classes, confidence


def voters(classes: list[int], confidence: list[float]) -> tuple[list[int], list[float]]:
    """Positions that vote and everybody's confidence; all answers count 1 where none has a confidence."""
    answered = [j for j, a in enumerate(classes) if a >= 0]
    sighted = [j for j in answered if math.isfinite(confidence[j])]
    return (sighted, confidence) if sighted else (answered, [1.0] * len(classes))


def first_of(classes: list[int], inside: list[int]) -> Callable[[int], int]:
    return lambda a: min(j for j in inside if classes[j] == a)


def plain_bon(classes: list[int], confidence: list[float]) -> tuple[int, bool]:
    inside, values = voters(classes, confidence)
    if not inside:
        return -1, False
    top = [j for j in inside if values[j] == max(values[i] for i in inside)]
    given = [classes[j] for j in top]
    position = first_of(classes, top)
    return min(set(given), key=lambda a: (-given.count(a), position(a))), len(set(given)) > 1


def shares(inside: list[int], values: list[float], m: int) -> dict[int, Fraction]:
    """Probability that a rollout is the surest of m draws with replacement, equals drawn alike."""
    n = len(inside)
    result = {}
    for j in inside:
        below = sum(values[i] < values[j] for i in inside)
        equal = sum(values[i] == values[j] for i in inside)
        result[j] = (Fraction(below + equal, n) ** m - Fraction(below, n) ** m) / equal
    return result


def by_class(classes: list[int], share: dict[int, Fraction]) -> dict[int, Fraction]:
    sums: defaultdict[int, Fraction] = defaultdict(Fraction)
    for j, value in share.items():
        sums[classes[j]] += value
    return sums


def plain_mob(classes: list[int], confidence: list[float], m: int | str) -> tuple[int, bool]:
    inside, values = voters(classes, confidence)
    n = len(inside)
    if not n:
        return -1, False
    if m == "adaptive":
        sizes = list(dict.fromkeys(s for j in range(60) if (s := math.floor(0.75**j * n)) >= 1))
        chosen, nearest = sizes[0], math.inf
        for before, size in pairwise(sizes):
            one, two = (by_class(classes, shares(inside, values, s)) for s in (before, size))
            distance = float(sum(abs(one[a] - two[a]) for a in one))
            if distance < nearest - 1e-12:
                chosen, nearest = size, distance
        m = chosen
    elif m == "sqrt":
        m = math.isqrt(n)
    assert isinstance(m, int)
    weight: dict[int, Number] = dict(shares(inside, values, m))
    return tie_first(classes, weight, values)


def tie_first(classes: list[int], weight: dict[int, Number], values: list[float]) -> tuple[int, bool]:
    sums: defaultdict[int, Number] = defaultdict(Fraction)
    sure: defaultdict[int, float] = defaultdict(float)
    for j, w in weight.items():
        sums[classes[j]] += w
        sure[classes[j]] += values[j]
    if not sums:
        return -1, False
    best = float(max(sums.values()))
    tied = [a for a in sums if float(sums[a]) >= best - 1e-12 * abs(best)]
    position = first_of(classes, list(weight))
    return min(tied, key=lambda a: (-sure[a], position(a))), len(tied) > 1


def plain_borda(classes: list[int], confidence: list[float], p: float) -> tuple[int, bool]:
    inside, values = voters(classes, confidence)
    n = len(inside)
    weight: dict[int, Number] = {}
    for j in inside:
        surer = sum(values[i] > values[j] for i in inside)
        equal = sum(values[i] == values[j] for i in inside)
        ranks = range(surer + 1, surer + equal + 1)
        weight[j] = sum((n - r + 1) ** p for r in ranks) / equal
    return tie_first(classes, weight, values)


def plain_deepconf(classes: list[int], confidence: list[float], top: float, heads: bool) -> tuple[int, bool]:
    inside, values = voters(classes, confidence)
    if not inside:
        return -1, False
    bar = float(np.percentile([values[j] for j in inside], (1 - top) * 100))
    kept = [j for j in inside if values[j] >= bar]
    return tie_first(classes, {j: 1 if heads else values[j] for j in kept}, values)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("bon", plain_bon),
        ("mob", lambda c, v: plain_mob(c, v, "adaptive")),
        ("mob:m=sqrt", lambda c, v: plain_mob(c, v, "sqrt")),
        ("mob:m=4", lambda c, v: plain_mob(c, v, 4)),
        ("borda", lambda c, v: plain_borda(c, v, 0.5)),
        ("borda:p=0", lambda c, v: plain_borda(c, v, 0.0)),
        ("borda:p=2", lambda c, v: plain_borda(c, v, 2.0)),
        ("deepconf", lambda c, v: plain_deepconf(c, v, 0.1, False)),
        ("deepconf:top=0.5", lambda c, v: plain_deepconf(c, v, 0.5, False)),
        ("deepconf:top=0.3,f=majority", lambda c, v: plain_deepconf(c, v, 0.3, True)),
    ],
)
def test_strategies(name: str, plain: Callable[[list[int], list[float]], tuple[int, bool]], n: int) -> None:
    method = parse_method(name)
    classes, confidence = elections(n, seed=n, negative=method.info.any_sign)
    vote = method.vote(classes, confidence).vote
    ties = 0
    for r, (row, values) in enumerate(zip(classes.tolist(), confidence.tolist(), strict=True)):
        expected = plain(row, values)
        assert (int(vote.winner_R[r]), bool(vote.tie_R[r])) == expected, (row, values)
        ties += expected[1]
    assert n == 1 or ties > 0


def test_the_pooled_vote_is_distrivoting_under_the_mixture_of_all() -> None:
    classes, confidence = elections(6, seed=60, negative=False)
    found = METHODS["progressive"].build({"f": "majority", "reject": "always", "monotone": "no", "min": 2})
    outcome = found(classes, confidence)
    pool = fit_mixture(confidence[np.isfinite(confidence)])
    direct = distrivoting(classes, confidence, pool, reject="always", min_positives=2)
    for one, other in zip(outcome.vote, direct.vote, strict=True):
        np.testing.assert_array_equal(one, other)
    assert outcome.mixtures == pool


@pytest.mark.parametrize("m", [1, 3, 16])
def test_the_closed_form_of_mob_is_what_simulation_gives(m: int) -> None:
    """Bootstrap sets of m, best of each (a random one of equals), shares of the winners."""
    rng = np.random.default_rng(m)
    n, draws = 12, 200_000
    confidence = rng.integers(0, 6, n) / 2.0
    picked = rng.integers(0, n, (draws, m))
    noise = rng.random((draws, m)) * 1e-6
    best = picked[np.arange(draws), (confidence[picked] + noise).argmax(axis=1)]
    simulated = np.bincount(best, minlength=n) / draws
    exact = shares(list(range(n)), confidence.tolist(), m)
    np.testing.assert_allclose(simulated, [float(exact[j]) for j in range(n)], atol=4 / math.sqrt(draws))
    # ... and the module gives these shares: two classes of one half decide by them.
    for split in range(1, n):
        classes = (np.arange(n) >= split).astype(np.int32)[None, :]
        lead = float(sum(exact[j] for j in range(split))) - 0.5
        vote = mob(classes, confidence[None, :], m=m)
        assert vote.margin_R[0] == pytest.approx(2 * abs(lead), abs=1e-9)
        assert abs(lead) < 1e-9 or vote.winner_R[0] == int(lead < 0)


def test_mob_does_not_see_the_order_of_equals() -> None:
    """Two equal rollouts, m = 2: by position one would have 1/4 and the other 3/4."""
    for classes in ([0, 1], [1, 0]):
        vote = mob(np.array([classes], np.int32), np.array([[1.0, 1.0]]), m=2)
        assert vote.tie_R.tolist() == [True]
        assert vote.margin_R.tolist() == [0.0]


def test_bootstrap_sizes() -> None:
    assert bootstrap_sizes(64) == [64, 48, 36, 27, 20, 15, 11, 8, 6, 4, 3, 2, 1]
    assert bootstrap_sizes(1) == [1]
    assert bootstrap_sizes(0) == []


@pytest.mark.parametrize(("n", "kept"), [(1, 1), (9, 1), (16, 2), (64, 7)])
def test_deepconf_keeps_what_its_release_keeps(n: int, kept: int) -> None:
    """The top tenth by interpolated percentile: 1 of up to 9, 2 of 16, 7 of 64; equals all stay."""
    values = np.linspace(1.0, 2.0, n)[None, :]
    assert keep_top(values, np.ones((1, n), dtype=bool), 0.1).sum() == kept
    assert keep_top(np.ones((1, n)), np.ones((1, n), dtype=bool), 0.1).all()
    assert deepconf(np.arange(n, dtype=np.int32)[None, :], values).winner_R.tolist() == [n - 1]


def test_borda_by_hand() -> None:
    """Ranks 1 2 3 4 of four; the surest gives sqrt(4), the next two together sqrt(3) + sqrt(2) > 2."""
    classes = np.array([[0, 1, 1, 2]], np.int32)
    confidence = np.array([[9.0, 8.0, 7.0, 1.0]])
    assert borda(classes, confidence).winner_R.tolist() == [1]
    assert borda(classes, confidence, p=100).winner_R.tolist() == [0]
