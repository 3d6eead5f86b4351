from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.rollout_files import RolloutFiles
from dttrl.scored_blocks import ScoredBlock, read_blocks
from dttrl.scoring import read_scored

SPELLINGS = ["1/2", "0.5", " 0.5", "3", "3.0", "x", "", None]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(use_algebra=False) as opened:
        yield opened


def write(path: Path, *, classes: bool, seed: int) -> Path:
    """Questions of two sizes in two steps, with every kind of answer; classes, where stored, have gaps."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        name: [] for name in ("step", "query_id", "sample_id", "gold", "answer", "answer_class", "confidence")
    }
    for step in (1, 2):
        for q in range(30):
            size = int(rng.choice([4, 4, 9]))
            answers = [SPELLINGS[i] for i in rng.integers(0, len(SPELLINGS), size)]
            number = {"1/2": 7, "0.5": 7, " 0.5": 7, "3": 2, "3.0": 2, "x": 5}
            columns["step"] += [step] * size
            columns["query_id"] += [f"q{q}"] * size
            columns["sample_id"] += list(range(size))
            columns["gold"] += [[None, "0.5", "3.00", "9"][q % 4]] * size
            columns["answer"] += answers
            columns["answer_class"] += [number[a] if a else -1 for a in answers]
            columns["confidence"] += [None if rng.random() < 0.2 else float(rng.random()) for _ in answers]
    kinds = {
        "step": pa.int32(),
        "sample_id": pa.int32(),
        "answer_class": pa.int32(),
        "confidence": pa.float64(),
    }
    table = pa.table({name: pa.array(v, kinds.get(name, pa.string())) for name, v in columns.items()})
    pq.write_table(table if classes else table.drop_columns(["answer_class"]), path)
    return path


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("rows", [1, 50, 2**16])
def test_blocks_say_what_questions_read_one_by_one_say(
    tmp_path: Path, grader: Grader, classes: bool, rows: int
) -> None:
    files = RolloutFiles([write(tmp_path / "r.parquet", classes=classes, seed=rows)])
    singles = [
        (group.step, read_scored(group.table, query_id=group.query_id, grader=grader))
        for group in files.groups()
    ]
    seen = 0
    for block in read_blocks(files, grader=grader, rows=rows):
        for r, query_id in enumerate(block.query_id):
            step, scored = singles[seen]
            seen += 1
            assert (block.step, query_id, block.gold[r]) == (step, scored.query_id, scored.gold)
            np.testing.assert_array_equal(block.class_RN[r], scored.class_G)
            np.testing.assert_array_equal(block.confidence_RN[r], scored.confidence_G)
            assert [block.words[w] for w in block.word_RC[r] if w >= 0] == scored.spellings
            assert block.n_classes_R[r] == len(scored.spellings)
            assert block.gold_class_R[r] == (-1 if scored.gold_class is None else scored.gold_class)
    assert seen == len(singles) == 60


def one(tmp_path: Path, grader: Grader, columns: dict[str, list[object]], **choices: str) -> ScoredBlock:
    size = len(next(iter(columns.values())))
    table = pa.table({"query_id": ["q"] * size, "sample_id": list(range(size)), **columns})
    pq.write_table(table, tmp_path / "one.parquet")
    files = RolloutFiles([tmp_path / "one.parquet"])
    (block,) = read_blocks(files, grader=grader, **choices)  # type: ignore[arg-type]
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
    with pytest.raises(InputError, match="2 different gold answers"):
        one(tmp_path, grader, {"answer": ["1", "1"], "gold": ["1", "2"]})


def test_a_question_nobody_answers(tmp_path: Path, grader: Grader) -> None:
    block = one(tmp_path, grader, {"answer": pa.array([None, None], pa.string()), "gold": ["1", "1"]})  # type: ignore[dict-item]
    assert block.class_RN.tolist() == [[-1, -1]]
    assert block.gold_class_R.tolist() == [-1]
    assert block.spelling(np.array([-1])) == [None]
    assert block.correct(np.array([-1])) == [False]
