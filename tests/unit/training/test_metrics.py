"""The metrics of a step, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dttrl.errors import InputError
from dttrl.method.methods import Signal
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal
from dttrl.training.metrics import step_metrics
from tests.scored_arrays import NO_GOLD, with_gold

CLASSES = np.array([[0, 0, 1, -1], [0, 1, 1, 1]], dtype=np.int32)
CONFIDENCES = np.array([[4.0, 3.0, 5.0, 1.0], [6.0, 2.0, 2.5, 1.5]])


def batch(gold: list[int] | None) -> Scored:
    scored = Scored(CLASSES, CONFIDENCES, 1)
    return scored if gold is None else with_gold(scored, gold)


def test_votes_against_gold() -> None:
    # Labels are 0 and 1; gold is 0 and 0: the second label is wrong.
    scored = batch([0, 0])
    signal, _ = training_signal(scored, None, Signal(method="ttrl", train_samples=2))
    metrics = step_metrics(scored, signal)
    assert metrics["majority_ratio"] == pytest.approx((2 / 4 + 3 / 4) / 2)
    assert metrics["label_accuracy"] == 0.5
    assert metrics["majority_voting_reward"] == pytest.approx(5 / 8)
    assert metrics["ground_truth_ratio"] == pytest.approx(3 / 8)
    # Rewards 1100 0111 against truths 1100 1000: four of eight agree.
    assert metrics["reward_accuracy"] == pytest.approx(4 / 8)
    assert metrics["pass@4"] == 1.0
    # Trained are the first two: rewards 11 01, truths 11 10.
    assert metrics["post_reward_accuracy"] == pytest.approx(2 / 4)
    assert metrics["post_ground_truth_ratio"] == pytest.approx(3 / 4)
    assert metrics["post_pass@2"] == 1.0
    assert metrics["no_answer_rate"] == pytest.approx(1 / 8)
    assert metrics["diversity"] == 2.0
    # Right ones 4, 3, 6 against 5, 1, 2, 2.5, 1.5: 13 of 15 pairs.
    assert metrics["auroc"] == pytest.approx(13 / 15)
    # Within: 2 of 4 pairs in the first question, 3 of 3 in the second.
    assert metrics["auroc_within"] == pytest.approx((2 / 4 + 1) / 2)


def test_without_gold_nothing_is_said_about_truth() -> None:
    signal, _ = training_signal(batch(None), None, Signal(method="ttrl", train_samples=2))
    metrics = step_metrics(batch(None), signal)
    assert "label_accuracy" not in metrics
    assert "auroc" not in metrics


def test_gold_that_no_rollout_gave_is_wrong_everywhere() -> None:
    scored = batch([-1, -1])
    signal, _ = training_signal(scored, None, Signal(method="ttrl", train_samples=2))
    metrics = step_metrics(scored, signal)
    assert metrics["label_accuracy"] == metrics["ground_truth_ratio"] == metrics["pass@4"] == 0.0
    assert math.isnan(float(metrics["auroc"] or 0.0))


def test_mixture_metrics_belong_to_the_filter() -> None:
    signal, _ = training_signal(batch([0, 0]), None, Signal(method="distri-gmm", train_samples=2))
    metrics = step_metrics(batch([0, 0]), signal)
    assert metrics["pool_size"] == 8.0
    assert float(metrics["mixture_mean_pos"] or 0) >= float(metrics["mixture_mean_neg"] or 0)
    assert metrics["mixture_degenerate"] is None


def test_questions_without_gold_are_left_out() -> None:
    whole, part = batch([0, 0]), batch([0, NO_GOLD])
    first, _ = training_signal(whole, None, Signal(method="ttrl", train_samples=2))
    second, _ = training_signal(part, None, Signal(method="ttrl", train_samples=2))
    metrics = step_metrics(part, second)
    assert metrics["label_accuracy"] == 1.0
    assert metrics["ground_truth_ratio"] == pytest.approx(2 / 4)
    assert metrics["majority_ratio"] == step_metrics(whole, first)["majority_ratio"]


def test_the_gold_answer_is_no_wrong_label() -> None:
    scored = batch([-1, 0])
    signal, _ = training_signal(scored, None, Signal(method="ttrl-gt", train_samples=2))
    metrics = step_metrics(scored, signal)
    assert metrics["label_accuracy"] == 1.0
    assert metrics["no_label"] == 0.5


def test_ground_truth_cannot_label_without_gold() -> None:
    with pytest.raises(InputError, match="some questions have none"):
        training_signal(batch([0, NO_GOLD]), None, Signal(method="ttrl-gt", train_samples=2))
