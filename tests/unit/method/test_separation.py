from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dttrl.method.separation import auroc

PAIRS = st.lists(st.tuples(st.integers(-5, 5).map(lambda i: i / 4), st.booleans()), min_size=2, max_size=60)


@given(PAIRS)
def test_agrees_with_sklearn(pairs: list[tuple[float, bool]]) -> None:
    score, positive = np.array([s for s, _ in pairs]), np.array([p for _, p in pairs])
    assume(positive.any() and not positive.all())
    assert auroc(score, positive) == pytest.approx(roc_auc_score(positive, score), abs=1e-12)


def test_large_random_data_agree_with_sklearn() -> None:
    rng = np.random.default_rng(0)
    positive = rng.random(5000) < 0.3
    score = rng.normal(positive * 0.7, 1.0)
    assert auroc(score, positive) == pytest.approx(roc_auc_score(positive, score), abs=1e-12)


def test_scores_that_are_not_finite_are_left_out() -> None:
    score = np.array([0.1, np.nan, 0.4, np.inf, 0.35, -np.inf, 0.8])
    positive = np.array([False, True, False, False, True, True, True])
    assert auroc(score, positive) == 0.75


@pytest.mark.parametrize("positive", [[True, True], [False, False]])
def test_one_class_has_no_area(positive: list[bool]) -> None:
    assert np.isnan(auroc(np.array([1.0, 2.0]), np.array(positive)))


def test_empty_and_reversed() -> None:
    assert np.isnan(auroc(np.array([]), np.array([], dtype=bool)))
    assert auroc(np.array([1.0, 2.0]), np.array([True, False])) == 0.0
    assert auroc(np.full(4, 0.5), np.array([True, False, True, False])) == 0.5
