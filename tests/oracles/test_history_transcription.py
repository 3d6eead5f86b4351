"""The progressive distribution against alg:construct_distribution and alg:pseudo_label as they are printed.

Here every past step is fitted again at every step, raw confidences are shifted, and the union is fitted from
scratch; nothing is stored but the raw confidences. ``History`` does one fit of each step and translates.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from dttrl.method.history import History
from dttrl.method.methods import Signal
from dttrl.method.mixture import Mixture, fit_mixture
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal

N_STEPS, B, G = 8, 5, 16
PARAMETERS = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos")

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def construct_aggregated_distribution(confidence: list[Floats], k: int, window: int | None) -> Floats:
    """alg:construct_distribution, line by line (steps from 0)."""
    fit_k = fit_mixture(confidence[k])
    aggregate = [confidence[k].ravel()]
    for s in range(0 if window is None else max(0, k - window), k):
        fit_s = fit_mixture(confidence[s])
        shift = (fit_k.mean_pos + fit_k.mean_neg) / 2 - (fit_s.mean_pos + fit_s.mean_neg) / 2
        aggregate.append(confidence[s].ravel() + shift)
    return np.concatenate(aggregate)


def normal(x: float, mean: float, std: float) -> float:
    return math.exp(-((x - mean) ** 2) / (2 * std**2)) / math.sqrt(2 * math.pi * std**2)


def vote(classes: list[int], confidences: list[float], voters: list[int]) -> int:
    counts = Counter(classes[j] for j in voters)
    sums = {a: sum(confidences[j] for j in voters if classes[j] == a) for a in counts}
    return max(counts, key=lambda a: (counts[a], sums[a])) if counts else -1


def estimate_pseudo_label(classes: list[int], confidences: list[float], mixture: Mixture) -> int:
    """alg:pseudo_label, guarded (the reject only where the two votes differ), with the plain fall-back."""
    positive, negative = [], []
    for j in range(len(classes)):
        if classes[j] < 0 or math.isnan(confidences[j]):
            continue
        likely = normal(confidences[j], mixture.mean_pos, mixture.std_pos)
        if likely > normal(confidences[j], mixture.mean_neg, mixture.std_neg):
            positive.append(j)
        else:
            negative.append(j)
    if not positive:
        answered = [j for j in range(len(classes)) if classes[j] >= 0]
        known = [0.0 if math.isnan(c) else c for c in confidences]
        return vote(classes, known, answered)
    wrong = vote(classes, confidences, negative)
    first = vote(classes, confidences, positive)
    if wrong != first:
        positive = [j for j in positive if classes[j] != wrong]
    return vote(classes, confidences, positive)


def drifting_run(seed: int) -> list[tuple[Ints, Floats]]:
    """Classes and confidences of a run whose confidences drift by more than their gap, up and down."""
    rng = np.random.default_rng(seed)
    level, run = 3.0, []
    for _ in range(N_STEPS):
        level += rng.normal(0.8, 1.5)
        right = rng.random((B, G)) < rng.uniform(0.3, 0.7)
        spread = rng.uniform(0.2, 0.45, size=2)
        confidence = level + spread[0] * rng.standard_normal((B, G))
        confidence[right] += 1.5 + (spread[1] - spread[0]) * rng.standard_normal(right.sum())
        classes = np.where(right & (rng.random((B, G)) < 0.8), 0, rng.integers(-1, 4, (B, G)))
        confidence[rng.random((B, G)) < 0.02] = np.nan
        run.append((classes.astype(np.int32), confidence))
    return run


@pytest.mark.parametrize(("seed", "window"), [(0, None), (1, None), (2, None), (3, None), (4, 0), (5, 3)])
def test_same_mixtures_and_labels_as_the_printed_algorithms(seed: int, window: int | None) -> None:
    run = drifting_run(seed)
    history = History(window=window)
    settings = Signal(method="distri-gmm", train_samples=G // 2)
    for k, (classes, confidence) in enumerate(run):
        signal, history = training_signal(Scored(classes, confidence, k + 1), history, settings)
        aggregate = construct_aggregated_distribution([c for _, c in run], k, window)
        expected = fit_mixture(aggregate)
        assert signal.progressive is not None
        mixture = signal.progressive.mixture
        assert expected.degenerate is None
        assert mixture.degenerate is None
        for name in PARAMETERS:
            assert getattr(mixture, name) == pytest.approx(getattr(expected, name), rel=1e-4), (k, name)
        assert signal.progressive.pool_size == np.isfinite(aggregate).sum() == mixture.n
        labels = [
            estimate_pseudo_label(row.tolist(), values.tolist(), expected)
            for row, values in zip(classes, confidence, strict=True)
        ]
        assert signal.label_B.tolist() == labels


def test_the_shift_is_what_makes_past_steps_usable() -> None:
    """Without eq:shift_correction the same data would be split elsewhere: the comparison above can fail."""
    run = drifting_run(0)
    progressive, history = History().advance(0, run[0][1])
    for k, (_, confidence) in enumerate(run[1:], start=1):
        progressive, history = history.advance(k, confidence)
    raw = fit_mixture(np.concatenate([confidence.ravel() for _, confidence in run]))
    assert abs(raw.midpoint - progressive.mixture.midpoint) > 1.0


def test_without_shift_correction_past_steps_are_pooled_as_they_are() -> None:
    run = drifting_run(0)
    history = History(shift_correction=False)
    for k, (_, confidence) in enumerate(run):
        progressive, history = history.advance(k, confidence)
        kept = History(shift_correction=False).restored(history.to_arrays())
        assert np.array_equal(kept.pool, history.pool)
        history = kept
        expected = fit_mixture(np.concatenate([c.ravel() for _, c in run[: k + 1]]))
        for name in PARAMETERS:
            assert getattr(progressive.mixture, name) == pytest.approx(getattr(expected, name), rel=1e-4), k


@pytest.mark.parametrize("odd", ["constant", "missing"])
def test_a_step_that_cannot_be_fitted_does_not_disturb_the_others(odd: str) -> None:
    """A constant step joins at its mean (it has no two means); a step without confidences does not join."""
    run = [confidence for _, confidence in drifting_run(3)][:5]
    run[2] = np.full((B, G), 4.0 if odd == "constant" else np.nan)
    history = History()
    for k, confidence in enumerate(run):
        progressive, history = history.advance(k, confidence)
        if k == 2:
            continue
        midpoints = [fit_mixture(c).midpoint for c in run]
        used = [s for s in range(k + 1) if s != 2 or odd == "constant"]
        expected = fit_mixture(np.concatenate([run[s].ravel() + midpoints[k] - midpoints[s] for s in used]))
        for name in PARAMETERS:
            assert getattr(progressive.mixture, name) == pytest.approx(getattr(expected, name), rel=1e-4), k
