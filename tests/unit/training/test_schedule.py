from __future__ import annotations

import math

import pytest

from dttrl.settings.sections import Schedule, Update
from dttrl.training.schedule import batch_indices, learning_rate, steps_per_epoch


@pytest.mark.parametrize(("n", "b", "expected"), [(30, 8, 3), (8, 8, 1), (5, 8, 1), (16, 8, 2), (1, 1, 1)])
def test_steps_per_epoch(n: int, b: int, expected: int) -> None:
    assert steps_per_epoch(n, b) == expected


@pytest.mark.parametrize(("n", "b"), [(30, 8), (16, 8), (5, 8), (7, 1)])
def test_no_question_twice_in_an_epoch(n: int, b: int) -> None:
    per_epoch = steps_per_epoch(n, b)
    for epoch in range(4):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        seen = [i for step in steps for i in batch_indices(step, n, b, seed=3)]
        assert len(seen) == len(set(seen)) == min(per_epoch * b, n)
        assert set(seen) <= set(range(n))
        assert all(len(batch_indices(step, n, b, seed=3)) == min(b, n) for step in steps)


def test_epochs_are_in_different_orders_and_leave_out_different_questions() -> None:
    epochs = [[batch_indices(3 * e + s, 30, 8, seed=0) for s in (1, 2, 3)] for e in range(20)]
    assert len({str(epoch) for epoch in epochs}) == 20
    left_out = [set(range(30)) - {i for batch in epoch for i in batch} for epoch in epochs]
    assert set().union(*left_out) == set(range(30))


def test_a_batch_depends_on_step_and_seed_alone() -> None:
    late_first = [batch_indices(step, 30, 8, seed=1) for step in (9, 2, 5)]
    assert late_first == [
        batch_indices(9, 30, 8, seed=1),
        batch_indices(2, 30, 8, seed=1),
        batch_indices(5, 30, 8, seed=1),
    ]
    assert batch_indices(1, 30, 8, seed=1) != batch_indices(1, 30, 8, seed=2)


def test_the_order_is_locked() -> None:
    """A resumed run of an older version must see these batches."""
    assert batch_indices(1, 10, 4, seed=0) == LOCKED[0]
    assert batch_indices(2, 10, 4, seed=0) == LOCKED[1]
    assert batch_indices(3, 10, 4, seed=0) == LOCKED[2]


LOCKED = ([7, 8, 1, 6], [9, 3, 2, 4], [7, 8, 4, 6])


def test_cosine_by_hand() -> None:
    rates = [
        learning_rate(step, 10, Update(learning_rate=2.0, warmup=0.2, schedule="cosine"))
        for step in range(1, 11)
    ]
    expected = [1.0, 2.0] + [1 + math.cos(math.pi * i / 8) for i in range(8)]
    assert rates == pytest.approx(expected)


def test_linear_by_hand() -> None:
    rates = [
        learning_rate(step, 6, Update(learning_rate=4.0, warmup=0.25, schedule="linear"))
        for step in range(1, 7)
    ]
    assert rates == pytest.approx([2.0, 4.0, 4.0, 3.0, 2.0, 1.0])


def test_constant_by_hand() -> None:
    rates = [
        learning_rate(step, 4, Update(learning_rate=3.0, warmup=0.5, schedule="constant"))
        for step in range(1, 5)
    ]
    assert rates == pytest.approx([1.5, 3.0, 3.0, 3.0])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_every_step_learns_and_none_above_the_peak(schedule: Schedule, warmup: float, total: int) -> None:
    rates = [
        learning_rate(s, total, Update(learning_rate=5e-7, warmup=warmup, schedule=schedule))
        for s in range(1, total + 1)
    ]
    assert all(0 < rate <= 5e-7 * (1 + 1e-12) for rate in rates)
    assert max(rates) == pytest.approx(5e-7)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
