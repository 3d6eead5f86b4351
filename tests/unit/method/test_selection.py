from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.method.selection import Select, select

REWARDS = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 16)), elements=st.sampled_from([0.0, 1.0])
)


def test_first_is_sample_order_whatever_the_rewards() -> None:
    assert select(np.array([[1.0, 0, 0, 1], [0, 0, 0, 0]]), 2).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("reward", "m", "expected"),
    [
        ([0, 0, 0, 1, 1, 1], 4, [0, 1, 3, 4]),
        ([1, 1, 1, 0, 1, 1], 4, [0, 1, 2, 3]),  # one unrewarded only: three rewarded fill up
        ([0, 0, 0, 0, 0, 1], 4, [0, 1, 2, 5]),
        ([1, 1, 1, 1, 1, 1], 4, [0, 1, 2, 3]),
        ([0, 0, 0, 0, 0, 0], 4, [0, 1, 2, 3]),
        ([1, 1, 0, 0], 3, [0, 2, 3]),  # odd: the half is rounded down for the rewarded
        ([1, 0], 1, [1]),
    ],
)
def test_balanced_by_hand(reward: list[float], m: int, expected: list[int]) -> None:
    assert select(np.array([reward], dtype=np.float64), m, how="balanced").tolist() == [expected]


@given(REWARDS, st.integers(1, 16), st.sampled_from(get_args(Select)))
def test_positions_are_valid_and_as_balanced_as_can_be(reward: NDArray[np.float64], m: int, how: str) -> None:
    m = min(m, reward.shape[1])
    chosen = select(reward, m, how=how)  # type: ignore[arg-type]
    assert chosen.shape == (len(reward), m)
    for row, positions in zip(reward, chosen, strict=True):
        assert positions.tolist() == sorted(set(positions.tolist()))
        assert 0 <= positions.min() <= positions.max() < reward.shape[1]
        if how == "balanced":
            rewarded, total = int(row[positions].sum()), int(row.sum())
            best = min(abs(m - 2 * r) for r in range(m + 1) if r <= total and m - r <= len(row) - total)
            assert abs(m - 2 * rewarded) == best


def test_the_result_may_be_written_to() -> None:
    chosen = select(np.zeros((2, 4)), 2)
    chosen[0, 0] = 3
    assert chosen.tolist() == [[3, 1], [0, 1]]


@pytest.mark.parametrize("m", [0, -1, 5])
def test_impossible_numbers_are_refused(m: int) -> None:
    with pytest.raises(InputError, match=f"cannot train on {m} of 4 rollouts"):
        select(np.zeros((1, 4)), m)
