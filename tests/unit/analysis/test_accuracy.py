from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.analysis.accuracy import (
    QuestionScore,
    avg_at_n,
    clustered_bootstrap,
    evaluation_scores,
    known_mean,
    pass_at_k,
    powers_of_four,
    summarize,
    wilson_interval,
)
from dttrl.data.schemas import EVALUATIONS
from dttrl.errors import InputError


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_rollout(n: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k([correct], [n], k)[0] == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_many_rollouts_stays_finite_and_needs_k_rollouts() -> None:
    assert pass_at_k([1, 0, 3], [256, 256, 8], 64) == pytest.approx([0.25, 0.0, math.nan], nan_ok=True)
    with pytest.raises(InputError, match="k of at least 1"):
        pass_at_k([1], [2], 0)


def test_average_is_over_questions_not_over_rollouts() -> None:
    assert avg_at_n([1, 0], [1, 9]) == 0.5
    assert math.isnan(avg_at_n([], []))


@pytest.mark.parametrize("counts", [([3], [2]), ([-1], [2]), ([0], [0]), ([1, 1], [2])])
def test_impossible_counts_are_refused(counts: tuple[list[int], list[int]]) -> None:
    with pytest.raises(InputError, match="counts"):
        avg_at_n(*counts)


def test_majority_accuracy_leaves_out_questions_without_a_verdict() -> None:
    assert known_mean([True, None, False, True]) == pytest.approx(2 / 3)
    assert math.isnan(known_mean([None]))


def test_wilson_interval_against_the_published_formula_and_at_the_ends() -> None:
    # Newcombe 1998, table I: 81 of 263 and 15 of 148, method 3 (score without continuity correction).
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20)[1] == 1.0
    assert all(math.isnan(end) for end in wilson_interval(0, 0))
    with pytest.raises(InputError, match="successes"):
        wilson_interval(3, 2)


def test_bootstrap_has_the_width_of_the_normal_approximation() -> None:
    values = np.repeat([0.0, 1.0], 200)
    clusters = [str(i) for i in range(400)]
    estimate = clustered_bootstrap(values, clusters, rng=np.random.default_rng(1), repeats=4000)
    half = 1.96 * 0.5 / math.sqrt(400)
    assert estimate.value == 0.5
    assert estimate.high - 0.5 == pytest.approx(half, rel=0.1)
    assert 0.5 - estimate.low == pytest.approx(half, rel=0.1)


def test_bootstrap_draws_the_rows_of_a_question_together() -> None:
    values = np.repeat([0.0, 1.0], 8)
    together = [str(i // 4) for i in range(16)]
    apart = [str(i) for i in range(16)]
    wide, narrow = (
        clustered_bootstrap(values, clusters, rng=np.random.default_rng(0)) for clusters in (together, apart)
    )
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_bootstrap_follows_its_generator_and_leaves_out_nan() -> None:
    first, second = (
        clustered_bootstrap([1.0, 0.0, math.nan], ["a", "b", "c"], rng=np.random.default_rng(3))
        for _ in range(2)
    )
    assert first == second
    assert first.value == 0.5
    empty = clustered_bootstrap([math.nan], ["a"], rng=np.random.default_rng(3))
    assert math.isnan(empty.value)


def test_summary_of_two_questions_by_hand() -> None:
    scores = [QuestionScore("a", 4, 4, True, 1.0), QuestionScore("b", 4, 1, False, 0.5)]
    result = summarize(scores, rng=np.random.default_rng(0))
    assert (result.questions, result.n_label) == (2, "4")
    assert result.average.value == 0.625
    assert result.majority.value == 0.5
    assert result.majority_ratio == 0.75
    assert {k: estimate.value for k, estimate in result.pass_at.items()} == {1: 0.625, 4: 1.0}
    with pytest.raises(InputError, match="no question has a gold answer"):
        summarize([], rng=np.random.default_rng(0))


def test_n_label_names_the_range_and_ks_are_powers_of_four() -> None:
    scores = [QuestionScore("a", 4, 4), QuestionScore("b", 8, 1)]
    assert summarize(scores, rng=np.random.default_rng(0), ks=[2]).n_label == "4-8"
    assert powers_of_four(15) == [1, 4]


def test_evaluation_rows_are_grouped_and_those_without_gold_left_out() -> None:
    row = {
        "step": 0, "split": "train", "query_id": "q", "source": None, "n": 2, "n_correct": 1,
        "maj_correct": True, "majority_ratio": 0.5, "answer": "1", "gold": "1",
    }  # fmt: skip
    rows = [row | {"step": 4}, row, row | {"query_id": "r", "gold": None, "maj_correct": None}]
    groups = evaluation_scores(pa.Table.from_pylist(rows, schema=EVALUATIONS.fields))
    assert {split: list(by_step) for split, by_step in groups.items()} == {"train": [0, 4]}
    assert groups["train"][0] == [QuestionScore("q", 2, 1, True, 0.5, gold="1")]
