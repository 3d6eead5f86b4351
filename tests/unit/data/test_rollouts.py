from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dttrl.data.questions import Question
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout, rollouts_to_table, table_to_rollouts
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import write_table
from dttrl.errors import InputError
from tests.rollout_groups import read_groups

QUESTIONS = {
    "a": Question("a", "1 + 1?", "2", "sums"),
    "b": Question("b", "Why?"),
}
INTS, FLOATS = np.empty(0, np.int32), np.empty(0, np.float32)


def rollout(query_id: str = "a", sample_id: int = 0, **changes: Any) -> Rollout:
    full = Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text="so 2",
        finish_reason="stop",
        token_ids=np.array([5, 6, 2], np.int32),
        token_offset=np.array([0, 2, 4], np.int32),
        token_confidence=np.array([1.5, np.nan, np.inf], np.float32),
        token_logprob=np.array([-0.5, -np.inf, 0], np.float32),
        token_entropy=np.array([0.25, 0, 0], np.float32),
    )
    return replace(full, **changes)


def bare(query_id: str, sample_id: int) -> Rollout:
    return Rollout(query_id, sample_id, "", "abort", INTS, INTS, FLOATS, FLOATS, FLOATS)


def test_table_has_the_question_and_the_declared_types() -> None:
    table = rollouts_to_table([rollout(step=3), bare("b", 1)], QUESTIONS, keep_tokens=True)
    assert table.schema.equals(ROLLOUTS.select(table.column_names), check_metadata=True)
    first, second = table.to_pylist()
    assert (first["prompt"], first["gold"], first["source"], first["step"]) == ("1 + 1?", "2", "sums", 3)
    assert (second["prompt"], second["gold"], second["source"], second["step"]) == ("Why?", None, None, None)
    assert first["num_tokens"] == 3
    assert first["token_ids"] == [5, 6, 2]
    assert second["num_tokens"] == 0
    assert second["token_ids"] == []


def test_rollouts_survive_the_table() -> None:
    rollouts = [
        rollout(step=0),
        bare("b", 1),
        rollout("b", 2, token_ids=INTS),
        rollout("b", 3, token_entropy=FLOATS, finish_reason="length"),
    ]
    table = rollouts_to_table(rollouts, QUESTIONS, keep_tokens=True)
    assert table.column("token_ids").to_pylist()[2] is None
    assert table_to_rollouts(table) == rollouts
    assert table_to_rollouts(table.slice(2, 1)) == rollouts[2:3]
    assert table_to_rollouts(pa.concat_tables([table.slice(3), table.slice(0, 2)])) == [
        rollouts[3],
        *rollouts[:2],
    ]
    without = rollouts_to_table(rollouts, QUESTIONS, keep_tokens=False)
    assert "token_ids" not in without.column_names
    assert table_to_rollouts(without) == [replace(r, token_ids=INTS) for r in rollouts]
    assert table_to_rollouts(without)[0].num_tokens == 3
    assert table_to_rollouts(table.slice(0, 0)) == []


def test_rollouts_survive_the_file(tmp_path: Path) -> None:
    rollouts = [rollout("a", i, step=0) for i in range(3)]
    table = rollouts_to_table(rollouts, QUESTIONS, keep_tokens=True)
    write_table(tmp_path / "r.parquet", table, ROLLOUTS, metadata={})
    (group,) = read_groups(RolloutFiles([tmp_path / "r.parquet"]))
    assert table_to_rollouts(group.table) == rollouts


def test_broken_text_is_made_safe_and_offsets_stay() -> None:
    broken = rollout(text="\ud800\x00 2", token_offset=np.array([0, 1, 2], np.int32))
    (back,) = table_to_rollouts(rollouts_to_table([broken], QUESTIONS, keep_tokens=True))
    assert back.text == "\ufffd\ufffd 2"
    assert [back.text[start] for start in back.token_offset] == ["\ufffd", "\ufffd", " "]


def test_equality_looks_at_every_field() -> None:
    assert rollout() == rollout()
    assert hash(rollout()) == hash(rollout())
    for changes in (
        {"text": "x"},
        {"step": 0},
        {"finish_reason": "length"},
        {"token_logprob": np.array([-0.5, -np.inf, 1], np.float32)},
        {"token_ids": INTS},
    ):
        assert rollout() != rollout(**changes)
    assert rollout() != "rollout"


def test_token_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"'a'/0: token arrays of lengths \[2, 3\]"):
        rollout(token_ids=np.array([1, 2], np.int32))


def test_a_rollout_without_its_question_is_refused() -> None:
    with pytest.raises(InputError, match="rollout 'c'/7: no question has this id"):
        rollouts_to_table([rollout("c", 7)], QUESTIONS, keep_tokens=True)


def test_foreign_tables() -> None:
    table = pa.table({"query_id": ["q"], "sample_id": [4], "text": ["t"]})
    (only,) = table_to_rollouts(table)
    assert (only.step, only.finish_reason, only.num_tokens) == (None, "stop", 0)
    with pytest.raises(InputError, match="column 'text'"):
        table_to_rollouts(table.drop_columns(["text"]))
    with pytest.raises(InputError, match="'finish_reason', row 0: 'eos', expected stop, length, abort"):
        table_to_rollouts(table.append_column("finish_reason", pa.array(["eos"])))
    confidence = pa.array([[1.0, None]], pa.list_(pa.float32()))
    (only,) = table_to_rollouts(table.append_column("token_confidence", confidence))
    np.testing.assert_array_equal(only.token_confidence, [1.0, np.nan])
    with pytest.raises(InputError, match="'token_ids': null inside a list"):
        table_to_rollouts(table.append_column("token_ids", pa.array([[1, None]], pa.list_(pa.int32()))))
    with pytest.raises(InputError, match=r"'q'/4: token arrays of lengths \[1, 2\]"):
        table_to_rollouts(
            table.append_column("token_confidence", confidence).append_column(
                "token_logprob", pa.array([[1.0]], pa.list_(pa.float32()))
            )
        )
