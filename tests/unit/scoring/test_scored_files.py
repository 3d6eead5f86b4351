from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.method.ballots import ABSENT
from dttrl.method.scored import Scored
from dttrl.scoring.scored_files import read_scored


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(use_algebra=False) as opened:
        yield opened


def one(tmp_path: Path, grader: Grader, columns: dict[str, list[object]], **choices: str) -> Scored:
    size = len(next(iter(columns.values())))
    table = pa.table({"query_id": ["q"] * size, "sample_id": list(range(size)), **columns})
    pq.write_table(table, tmp_path / "one.parquet")
    files = RolloutFiles([tmp_path / "one.parquet"])
    (block,) = read_scored(files, grader=grader, **choices)  # type: ignore[arg-type]
    return block


def test_raw_classes_are_strings_and_several_may_be_right(tmp_path: Path, grader: Grader) -> None:
    columns: dict[str, list[object]] = {"answer": ["1/2", "0.5", None, "1/2", "3"], "gold": ["0.50"] * 5}
    block = one(tmp_path, grader, columns, classes="raw")
    assert block.class_RN.tolist() == [[0, 1, -1, 0, 2]]
    assert block.right_RC.tolist() == [[True, True, False]]
    for number, right in ((0, True), (1, True), (2, False), (-1, False)):
        assert block.correct(np.array([number])) == [right]
    merged = one(tmp_path, grader, columns)
    assert merged.class_RN.tolist() == [[0, 0, -1, 0, 1]]
    assert merged.spelling(np.array([0])) == ["1/2"]
    assert merged.spelling(np.array([-1])) == [None]


def test_another_column_of_confidences(tmp_path: Path, grader: Grader) -> None:
    columns: dict[str, list[object]] = {"answer": ["1", "2"], "confidence": [1.0, 2.0], "lowest": [5, 4]}
    assert one(tmp_path, grader, columns, confidence="lowest").confidence_RN.tolist() == [[5.0, 4.0]]
    columns["lowest"] = ["high", "low"]
    with pytest.raises(InputError, match="'lowest' holds string"):
        one(tmp_path, grader, columns, confidence="lowest")


def test_contradicting_classes_and_golds_are_refused(tmp_path: Path, grader: Grader) -> None:
    with pytest.raises(InputError, match="rollout 1: answer_class is 3, but the answer is None"):
        one(tmp_path, grader, {"answer": ["1", None], "answer_class": [0, 3]})
    with pytest.raises(InputError, match="question 'q', rollout 1: answer_class is 0"):
        one(tmp_path, grader, {"answer": ["5", None], "answer_class": [0, 0]})
    with pytest.raises(InputError, match="2 different gold answers"):
        one(tmp_path, grader, {"answer": ["1", "1"], "gold": ["1", "2"]})


def test_a_question_nobody_answers(tmp_path: Path, grader: Grader) -> None:
    block = one(tmp_path, grader, {"answer": pa.array([None, None], pa.string()), "gold": ["1", "1"]})  # type: ignore[dict-item]
    assert block.class_RN.tolist() == [[-1, -1]]
    assert block.gold_class_R.tolist() == [-1]
    assert block.spelling(np.array([-1])) == [None]
    assert block.correct(np.array([-1])) == [False]


def test_answers_without_classes_are_classed_on_the_way(tmp_path: Path, grader: Grader) -> None:
    scored = one(tmp_path, grader, {"answer": ["1/2", "0.5", "", None], "gold": ["2"] * 4})
    assert scored.class_RN.tolist() == [[0, 0, -1, -1]]
    assert scored.gold_class_R.tolist() == [-1]
    assert np.isnan(scored.confidence_RN).all()
    assert (scored.measure, scored.source, scored.step) == (None, [None], None)


def test_stored_classes_are_made_dense(tmp_path: Path, grader: Grader) -> None:
    columns: dict[str, list[object]] = {"answer": ["5", "9", None, "5"], "answer_class": [3, 8, -1, 3]}
    assert one(tmp_path, grader, columns).class_RN.tolist() == [[0, 1, -1, 0]]


def test_gold_is_of_the_question_and_may_be_missing(tmp_path: Path, grader: Grader) -> None:
    assert one(tmp_path, grader, {"answer": ["1", "1"], "gold": ["1", "1"]}).gold == ["1"]
    for missing in ([None, None], ["", ""]):
        columns: dict[str, Any] = {"answer": ["1", "1"], "gold": pa.array(missing, pa.string())}
        scored = one(tmp_path, grader, columns)
        assert scored.gold == [None]
        assert scored.correct(np.array([0], np.int32)) == [None]


def test_columns_that_are_asked_for_come_along(tmp_path: Path, grader: Grader) -> None:
    scored = one(tmp_path, grader, {"answer": ["1", "2"], "reward": [0.0, 1.0], "trace": ["x", "y"]})
    assert "reward" not in scored.rows.column_names
    files = RolloutFiles([tmp_path / "one.parquet"])
    (scored,) = read_scored(files, grader=grader, columns=("reward", "absent"))
    assert scored.rows["reward"].to_pylist() == [0.0, 1.0]
    assert "trace" not in scored.rows.column_names


def test_questions_of_different_sizes_come_together_where_a_width_is_given(
    tmp_path: Path, grader: Grader
) -> None:
    table = pa.table({
        "step": [1] * 6, "query_id": ["a", "a", "a", "b", "c", "c"], "sample_id": [0, 1, 2, 0, 0, 1],
        "answer": ["1", "2", None, "3", "4", "4"], "confidence": [1.0, 2.0, 3.0, 4.0, 5.0, None],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "cut.parquet")
    files = RolloutFiles([tmp_path / "cut.parquet"])
    apart = list(read_scored(files, grader=grader))
    assert [block.class_RN.shape for block in apart] == [(1, 3), (1, 1), (1, 2)]
    for width, columns in ((4, 4), (2, 3)):
        (block,) = read_scored(files, grader=grader, width=width)
        assert block.class_RN.shape == (3, columns)
        assert block.n_drawn_R.tolist() == [3, 1, 2]
        for r, alone in enumerate(apart):
            size = alone.class_RN.shape[1]
            assert block.class_RN[r, :size].tolist() == alone.class_RN[0].tolist()
            assert (block.class_RN[r, size:] == ABSENT).all()
            taken = block.take([r])
            assert taken.rows["answer"].to_pylist() == alone.rows["answer"].to_pylist()
            assert np.array_equal(block.confidence_RN[r, :size], alone.confidence_RN[0], equal_nan=True)
            assert np.isnan(block.confidence_RN[r, size:]).all()
