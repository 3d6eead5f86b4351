"""Voting, diversity and advantages against plain Python with dicts, on thousands of small random elections.

Weights are multiples of 1/8, so that sums are exact and ties are real ties.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from dttrl.method.advantages import group_advantages, weighted_advantages
from dttrl.method.diversity import diversity, diversity_weights
from dttrl.method.labels import rewards
from dttrl.method.mixture import Mixture
from dttrl.method.voting import hierarchical as hierarchical_module
from dttrl.method.voting.distrivoting import FALLBACKS, Reject, VoteFunction, distrivoting
from dttrl.method.voting.majority import majority
from dttrl.method.voting.weighted import weighted

R = 3000
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Election = tuple[list[int], list[float]]


def elections(n: int, seed: int) -> tuple[Ints, Floats]:
    """R elections of n rollouts with few classes, no-answers, missing confidences and repeated values."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(-1, rng.integers(1, 5, size=(R, 1)), size=(R, n)).astype(np.int32)
    confidence = rng.integers(0, rng.choice([3, 12, 64], size=(R, 1)) + 1, size=(R, n)) / 8.0
    confidence[rng.random((R, n)) < 0.05] = np.nan
    confidence[rng.random((R, n)) < 0.01] = np.inf
    confidence[rng.random(R) < 0.02] = np.nan
    classes[rng.random(R) < 0.02] = -1
    return classes, confidence


def rows(classes: Ints, confidence: Floats) -> list[Election]:
    return list(zip(classes.tolist(), confidence.tolist(), strict=True))


def elect(classes: list[int], weight: dict[int, float], confidence: list[float]) -> tuple[int, bool]:
    """Winner and tie among the voters ``weight``: largest sum, then summed confidence, then position."""
    sums: dict[int, float] = {}
    sure: dict[int, float] = {}
    first: dict[int, int] = {}
    for j, w in weight.items():
        sums[classes[j]] = sums.get(classes[j], 0.0) + w
        if math.isfinite(confidence[j]):
            sure[classes[j]] = sure.get(classes[j], 0.0) + confidence[j]
        first.setdefault(classes[j], j)
    if not sums:
        return -1, False
    best = max(sums.values())
    tied = [a for a in sums if sums[a] == best]
    return min(tied, key=lambda a: (-sure.get(a, -math.inf), first[a])), len(tied) > 1


def finite(values: list[float], voters: list[int]) -> list[int]:
    return [j for j in voters if math.isfinite(values[j])]


def majority_vote(classes: list[int], confidence: list[float], voters: list[int]) -> tuple[int, bool]:
    return elect(classes, dict.fromkeys(voters, 1.0), confidence)


def weighted_vote(classes: list[int], weight: list[float], voters: list[int]) -> tuple[int, bool]:
    return elect(classes, {j: weight[j] for j in finite(weight, voters)}, weight)


def hierarchical_vote(classes: list[int], weight: list[float], voters: list[int]) -> tuple[int, bool]:
    """DistriVoting's eq. 20-22: ten intervals, a weighted vote in each, a vote of the winners."""
    voters = finite(weight, voters)
    if not voters:
        return -1, False
    low, high = min(weight[j] for j in voters), max(weight[j] for j in voters)
    winners: list[tuple[int, float]] = []
    for i in range(10, 0, -1):  # the surest interval first, which the tie rule prefers
        inside = []
        for j in voters:
            # (low + (i - 1) h, low + i h] with h = (high - low) / 10, multiplied out to stay exact
            position = 10 * (weight[j] - low)
            above = position > (i - 1) * (high - low) or (i == 1 and weight[j] == low)
            if above and position <= i * (high - low):
                inside.append(j)
        if inside:
            winner, _ = weighted_vote(classes, weight, inside)
            votes = [weight[j] for j in inside if classes[j] == winner]
            winners.append((winner, sum(votes) / len(votes)))
    sums: dict[int, float] = {}
    for winner, mean in winners:
        sums[winner] = sums.get(winner, 0.0) + mean
    best = max(sums.values())
    tied = [a for a in sums if sums[a] >= best * (1 - 1e-12)]  # means are not exact: the tolerance of dttrl
    return next(winner for winner, _ in winners if winner in tied), len(tied) > 1


VOTES = {"majority": majority_vote, "weighted": weighted_vote, "hierarchical": hierarchical_vote}


def check_counts(
    classes: list[int], winner: int, n_votes: int, n_valid: int, ratios: tuple[float, float]
) -> None:
    counts = Counter(a for a in classes if a >= 0)
    assert n_valid == sum(counts.values())
    assert n_votes == (counts[winner] if winner >= 0 else 0)
    most = max(counts.values(), default=0)
    assert ratios == pytest.approx((most / len(classes), n_votes / len(classes)))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_majority(n: int) -> None:
    classes, confidence = elections(n, seed=n)
    vote = majority(classes, confidence)
    for r, (row, values) in enumerate(rows(classes, confidence)):
        expected = majority_vote(row, values, [j for j in range(n) if row[j] >= 0])
        assert (vote.winner_R[r], vote.tie_R[r]) == expected, (row, values)
        assert vote.majority_R[r] == expected[0]
        check_counts(
            row,
            expected[0],
            int(vote.n_votes_R[r]),
            int(vote.n_valid_R[r]),
            (vote.majority_ratio_R[r], vote.label_ratio_R[r]),
        )


def test_a_missing_confidence_does_not_win_a_tie_of_negative_ones() -> None:
    vote = majority(np.array([[0, 1]], np.int32), np.array([[-1.0, np.nan]]))
    assert vote.tie_R.tolist() == [True]
    assert vote.winner_R.tolist() == [0]


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_weighted(n: int) -> None:
    classes, confidence = elections(n, seed=20 + n)
    vote = weighted(classes, confidence)
    for r, (row, values) in enumerate(rows(classes, confidence)):
        valid = [j for j in range(n) if row[j] >= 0]
        blind = not finite(values, valid)
        expected = weighted_vote(row, [1.0] * n if blind else values, valid)
        assert (vote.winner_R[r], vote.tie_R[r]) == expected, (row, values)
        check_counts(
            row,
            expected[0],
            int(vote.n_votes_R[r]),
            int(vote.n_valid_R[r]),
            (vote.majority_ratio_R[r], vote.label_ratio_R[r]),
        )


@pytest.mark.parametrize("n", [1, 2, 6, 16])
def test_hierarchical(n: int) -> None:
    classes, confidence = elections(n, seed=40 + n)
    tally = hierarchical_module.elect(classes, confidence, classes >= 0)
    for r, (row, values) in enumerate(rows(classes, confidence)):
        expected = hierarchical_vote(row, values, [j for j in range(n) if row[j] >= 0])
        assert (tally.winner_R[r], tally.tie_R[r]) == expected, (row, values)


def plain_distrivoting(
    row: list[int], values: list[float], mixture: Mixture, f_vote: VoteFunction, reject: Reject, least: int
) -> tuple[int, int, str, int, int]:
    """Winner, rejected class, fallback, positives and negatives of one question."""
    elect_with = VOTES[f_vote]
    valid = [j for j in range(len(row)) if row[j] >= 0]
    plain, _ = majority_vote(row, values, valid)
    if plain < 0:
        return -1, -1, "", 0, 0

    def density(x: float, mean: float, std: float) -> float:
        return -math.log(std) - (x - mean) ** 2 / (2 * std**2)

    known = finite(values, valid)
    positive = [
        j
        for j in known
        if not mixture.is_degenerate
        and density(values[j], mixture.mean_pos, mixture.std_pos)
        > density(values[j], mixture.mean_neg, mixture.std_neg)
    ]
    negative = [j for j in known if j not in positive]
    counts = len(positive), len(negative)
    if mixture.is_degenerate:
        return plain, -1, "degenerate", *counts
    first, _ = elect_with(row, values, positive)
    if first < 0:
        return plain, -1, "no-positives", *counts
    if len(positive) < least:
        return plain, -1, "few-positives", *counts
    low_high = [values[j] for j in negative]
    reflected = [
        values[j] if f_vote == "majority" or j not in negative else max(low_high) + min(low_high) - values[j]
        for j in range(len(row))
    ]
    wrong, _ = elect_with(row, reflected, negative)
    if wrong < 0 or reject == "off" or (reject == "guarded" and wrong == first):
        return first, -1, "", *counts
    kept = [j for j in positive if row[j] != wrong]
    if not kept:
        return first, -1, "all-rejected", *counts
    winner, _ = elect_with(row, values, kept)
    return winner, wrong if len(kept) < len(positive) else -1, "", *counts


MIXTURES = {
    "equal": Mixture(1.0, 0.5, 0.5, 3.0, 0.5, 0.5, 100),
    "wide positive": Mixture(1.0, 0.25, 0.5, 2.0, 2.0, 0.5, 100),
    "degenerate": Mixture(2.0, 1.0, 0.5, 2.0, 1.0, 0.5, 100, degenerate="constant"),
}


@pytest.mark.parametrize("reject", ["guarded", "always", "off"])
@pytest.mark.parametrize("f_vote", ["majority", "weighted", "hierarchical"])
@pytest.mark.parametrize("least", [1, 3])
def test_distrivoting(f_vote: VoteFunction, reject: Reject, least: int) -> None:
    classes, confidence = elections(7, seed=70)
    seen: Counter[str] = Counter()
    for name, mixture in MIXTURES.items():
        part = slice(0, 200) if name == "degenerate" else slice(None)
        result = distrivoting(
            classes[part], confidence[part], mixture, f_vote=f_vote, reject=reject, min_positives=least
        )
        for r, (row, values) in enumerate(rows(classes[part], confidence[part])):
            found = (
                int(result.vote.winner_R[r]),
                int(result.rejected_R[r]),
                FALLBACKS[result.fallback_R[r]],
                int(result.n_pos_R[r]),
                int(result.n_neg_R[r]),
            )
            expected = plain_distrivoting(row, values, mixture, f_vote, reject, least)
            assert found == expected, (name, row, values)
            seen[expected[2]] += 1
            seen["rejected"] += expected[1] >= 0
    assert seen["degenerate"] > 0
    assert seen["no-positives"] > 0
    assert (seen["few-positives"] > 0) == (least > 1)
    assert (seen["all-rejected"] > 0) == (reject == "always")
    assert (seen["rejected"] > 0) == (reject != "off")


def test_a_guarded_reject_cannot_change_a_majority_label() -> None:
    """It removes a class that did not win, so with f_vote = majority it is ``off``; ``always`` is not."""
    classes, confidence = elections(7, seed=71)
    labels = {
        reject: distrivoting(classes, confidence, MIXTURES["equal"], reject=reject).vote.winner_R
        for reject in ("guarded", "always", "off")
    }
    np.testing.assert_array_equal(labels["guarded"], labels["off"])
    assert (labels["always"] != labels["off"]).any()


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_diversity_weights_and_rewards(tau: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        b, g = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        classes = rng.integers(-1, rng.integers(1, g + 1, size=(b, 1)), size=(b, g)).astype(np.int32)
        counts = [len({a for a in row if a >= 0}) for row in classes.tolist()]
        found = diversity(classes)
        assert found.tolist() == counts
        total = sum(math.exp(d) for d in counts)
        expected = [math.exp(d) / total if d <= tau * g else 1.0 for d in counts]
        np.testing.assert_allclose(diversity_weights(found, g, tau=tau), expected, rtol=1e-12)
        labels = rng.integers(-1, 3, size=b).astype(np.int32)
        paid = [
            [float(a == label and a >= 0) for a in row] for row, label in zip(classes, labels, strict=True)
        ]
        assert rewards(classes, labels).tolist() == paid


def test_advantages() -> None:
    rng = np.random.default_rng(6)
    for _ in range(300):
        b, m = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        reward = rng.choice([0.0, 0.1, 0.5, 1.0], size=(b, m), p=[0.5, 0.1, 0.1, 0.3])
        weight = rng.random(b)
        expected = []
        for row in reward.tolist():
            mean = math.fsum(row) / m
            std = math.sqrt(math.fsum((r - mean) ** 2 for r in row) / m)
            expected.append([(r - mean) / std if len(set(row)) > 1 else 0.0 for r in row])
        found = group_advantages(reward)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(weighted_advantages(found, weight), found * weight[:, None])
