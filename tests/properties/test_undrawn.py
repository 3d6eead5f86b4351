"""Rollouts that were not drawn (class ABSENT at the end of a row) count nowhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data.schemas import ROLLOUTS
from dttrl.method.ballots import ABSENT, FloatArray, IntArray
from dttrl.method.methods import METHODS, Signal
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal
from dttrl.method.voting.registry import METHODS as VOTES
from dttrl.method.voting.registry import parse_method
from dttrl.training.metrics import step_metrics
from tests.scored_arrays import with_gold

# A vote under the mixture of all questions is of all of them; distrivoting fits rounding apart.
ALONE = [name for name in VOTES if not VOTES[name].pooled]


@st.composite
def cut_rows(draw: st.DrawFn) -> tuple[IntArray, FloatArray, IntArray]:
    """Classes and confidences of which each question lacks some at the end, and how many it has."""
    shape = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size_R = rng.integers(1, shape[1] + 1, shape[0]).astype(np.int32)
    there_RN = np.arange(shape[1]) < size_R[:, None]
    # Eighths: sums are exact, so that ties are ties in every row length.
    value_RN = np.where(rng.random(shape) < 0.9, rng.integers(1, 40, shape) / 8, np.nan)
    class_RN = np.where(there_RN, rng.integers(-1, 3, shape), ABSENT).astype(np.int32)
    return class_RN, np.where(there_RN, value_RN, np.nan), size_R


@pytest.mark.parametrize("name", ALONE)
@given(cut=cut_rows())
def test_a_vote_is_that_of_the_rollouts_drawn(name: str, cut: tuple[IntArray, FloatArray, IntArray]) -> None:
    class_RN, confidence_RN, size_R = cut
    together = parse_method(name).vote(class_RN, confidence_RN).vote
    for r, size in enumerate(size_R.tolist()):
        alone = parse_method(name).vote(class_RN[[r], :size], confidence_RN[[r], :size]).vote
        for field in together._fields:
            assert getattr(together, field)[r] == pytest.approx(getattr(alone, field)[0]), field


@pytest.mark.parametrize("name", METHODS)
@given(cut=cut_rows())
def test_columns_that_nobody_drew_change_no_signal(
    name: str, cut: tuple[IntArray, FloatArray, IntArray]
) -> None:
    class_RN, confidence_RN, size_R = cut
    more = ((0, 0), (0, 3))
    wide = (
        np.pad(class_RN, more, constant_values=ABSENT),
        np.pad(confidence_RN, more, constant_values=np.nan),
    )
    train = int(size_R.min())
    for select in ("first", "balanced"):
        settings = Signal(method=name, train_samples=train, select=select)  # type: ignore[arg-type]
        found = []
        for arrays in ((class_RN, confidence_RN), wide):
            scored = with_gold(Scored(*arrays, 1), [0] * len(class_RN))
            signal, history = training_signal(scored, None, settings)
            found.append((scored, signal, history, step_metrics(scored, signal)))
        (short, one, before, metrics), (_, two, after, wider) = found
        assert np.array_equal(one.trained_BM, two.trained_BM)
        assert (np.take_along_axis(short.class_RN, one.trained_BM, axis=1) != ABSENT).all()
        assert np.allclose(one.advantage_BM, two.advantage_BM)
        assert np.array_equal(one.weight_B, two.weight_B)
        for name_, values in before.to_arrays().items():
            assert np.array_equal(values, after.to_arrays()[name_], equal_nan=True)
        width = class_RN.shape[1]
        wider = {key.replace(f"{width + 3}", f"{width}") if key[0] == "p" else key: value
                 for key, value in wider.items()}  # fmt: skip
        assert wider == pytest.approx(metrics, nan_ok=True)


def test_ratios_are_of_each_questions_own_rollouts() -> None:
    class_RN = np.array([[0, 0, 1, -1], [0, 1, ABSENT, ABSENT]], dtype=np.int32)
    confidence_RN = np.array([[4.0, 3.0, np.nan, 1.0], [6.0, 2.0, np.nan, np.nan]])
    scored = with_gold(Scored(class_RN, confidence_RN, 1), [0, 1])
    signal, _ = training_signal(scored, None, Signal(method="ttrl", train_samples=2))
    metrics = step_metrics(scored, signal)
    assert signal.vote.majority_ratio_R.tolist() == [2 / 4, 1 / 2]
    assert metrics["no_answer_rate"] == (1 / 4 + 0) / 2
    assert metrics["confidence_missing"] == (1 / 4 + 0) / 2
    assert metrics["ground_truth_ratio"] == (2 / 4 + 1 / 2) / 2
    # Rewards 1100 and 10 against truths 1100 and 01.
    assert metrics["majority_voting_reward"] == (2 / 4 + 1 / 2) / 2
    assert metrics["reward_accuracy"] == (1 + 0) / 2


def test_the_penalty_counts_what_was_drawn() -> None:
    """Two classes among 20 are at most a tenth of 20, among 4 they are not."""
    class_RN = np.zeros((2, 20), dtype=np.int32)
    class_RN[:, 1] = 1
    class_RN[1, 4:] = ABSENT
    scored = Scored(class_RN, np.where(class_RN == ABSENT, np.nan, 1.0), 1)
    signal, _ = training_signal(scored, None, Signal(method="distri-wsc", train_samples=2))
    assert signal.weight_B.tolist() == [0.5, 1.0]


def test_questions_are_taken_with_their_own_rows() -> None:
    class_RN = np.array([[0, 0, 0], [1, ABSENT, ABSENT], [0, 1, ABSENT]], dtype=np.int32)
    rows = pa.table({"answer": list("aaabcd")}, schema=ROLLOUTS.select(("answer",)))
    scored = Scored(class_RN, np.where(class_RN == ABSENT, np.nan, 1.0), rows=rows)
    assert scored.n_drawn_R.tolist() == [3, 1, 2]
    assert scored.take([2, 0]).rows["answer"].to_pylist() == list("cdaaa")
