"""The choice of a checkpoint by the first votes: cases worked by hand, and laws."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.method.first_votes import COLUMNS, Standing, best_standing, standings, standings_of

Row = tuple[int, str, str | None, float]

# Two questions, two epochs of two steps and a third of one.
ROWS: list[Row] = [
    (1, "a", "7", 0.5),
    (2, "b", "9", 0.25),
    (3, "a", "7", 0.75),
    (4, "b", "8", 0.5),
    (5, "a", "8", 1.0),
]


def judged(rows: list[Row], *checkpoints: int) -> list[Standing]:
    step_R, query_R, answer_R, ratio_R = (list(column) for column in zip(*rows, strict=True))
    return standings(step_R, query_R, answer_R, ratio_R, checkpoints)  # type: ignore[arg-type]


def test_two_questions_by_hand() -> None:
    found = judged(ROWS, 5, 2, 3, 4)
    assert [standing.step for standing in found] == [2, 3, 4, 5]
    assert [standing.again for standing in found] == [0, 1, 2, 2]
    # Halves of a: .75 - .5; then b, which left its 9: 0 - .25; then a, which left its 7: 0 - .5.
    assert [standing.gain for standing in found] == [0.0, 0.125, 0.0, -0.375]
    assert [standing.kept for standing in found[1:]] == [1.0, 0.5, 0.0]
    assert math.isnan(found[0].kept)
    assert [standing.majority_ratio for standing in found] == [0.375, 0.5, 0.625, 0.75]
    assert [standing.shared for standing in found] == [0.0, 0.0, 0.0, 1.0]
    assert best_standing(found).step == 3


def test_of_equal_gains_the_latest_is_kept() -> None:
    assert best_standing(judged(ROWS, 1, 2)).step == 2  # no second vote yet: nothing speaks against the last
    assert best_standing(judged(ROWS, 4, 2)).step == 4
    assert best_standing(judged(ROWS, 5, 2)).step == 2


def test_before_the_first_vote_nothing_is_known() -> None:
    (start,) = judged(ROWS, 0)
    assert (start.again, start.gain) == (0, 0.0)
    assert math.isnan(start.majority_ratio)
    assert math.isnan(start.shared)


def test_a_question_without_an_answer_has_nothing_to_keep() -> None:
    (standing,) = judged(
        [(1, "a", None, 0.0), (2, "a", "7", 1.0), (1, "b", "3", 0.5), (2, "b", None, 0.0)], 2
    )
    assert (standing.again, standing.kept, standing.gain) == (2, 0.0, -0.25)
    assert standing.shared == 0.0


@pytest.mark.parametrize(("kind", "kept"), [("auto", 1.0), ("text", 0.5)])
def test_spellings_of_a_number_are_one_answer(kind: str, kept: float) -> None:
    rows: list[Row] = [
        (1, "a", "0.5", 0.5),
        (1, "b", "two", 1.0),
        (2, "a", r"\frac{1}{2}", 0.5),
        (2, "b", "Two", 1.0),
    ]
    table = pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    (standing,) = standings_of(table, [2], kind=kind)
    assert standing.kept == kept


def test_what_only_algebra_could_prove_equal_is_another_answer() -> None:
    table = pa.table(dict(zip(COLUMNS, [[1, 2], ["a"] * 2, ["x^2+2x+1", "(x+1)^2"], [0.5] * 2], strict=True)))
    (standing,) = standings_of(table, [2], kind="auto")
    assert standing.kept == 0.0


votes = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from("abc"),
        st.sampled_from(["1", "2", "3"]),
        st.integers(1, 8).map(lambda n: n / 8),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[:2],
)


@given(votes, st.randoms(use_true_random=False))
def test_the_order_of_the_votes_and_names_of_the_answers_do_not_matter(
    rows: list[Row], random: object
) -> None:
    renamed: list[Row] = [(step, query, f"{answer}!", ratio) for step, query, answer, ratio in rows]
    random.shuffle(renamed)  # type: ignore[attr-defined]
    for one, two in zip(judged(rows, *range(1, 10)), judged(renamed, *range(1, 10)), strict=True):
        assert repr(one) == repr(two)
        assert -1.0 <= one.gain <= 1.0


@given(votes)
def test_a_later_vote_does_not_change_an_earlier_checkpoint(rows: list[Row]) -> None:
    before = [row for row in rows if row[0] <= 4]
    if before:
        assert repr(judged(rows, 4)) == repr(judged(before, 4))


@given(votes)
def test_a_model_that_gives_other_answers_loses_what_it_agreed_on(rows: list[Row]) -> None:
    first = {}
    for step, query, _, ratio in sorted(rows):
        first.setdefault(query, (step, ratio))
    left = [row if row[0] == first[row[1]][0] else (row[0], row[1], "other", 1.0) for row in rows]
    (standing,) = judged(left, 9)
    again = [
        first[query][1] for query in first if any(r[1] == query and r[0] > first[query][0] for r in rows)
    ]
    assert standing.gain == pytest.approx(-sum(again) / len(first))
