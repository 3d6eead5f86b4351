"""Run folders: made once, cut back to a checkpoint, never overwritten by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from dttrl.data.questions import Question
from dttrl.data.schemas import EVALUATIONS, LABELS
from dttrl.data.tables import read_table, table_from_columns
from dttrl.errors import InputError, OutputExistsError
from dttrl.training.run_folder import (
    RunFolder,
    check_inputs,
    check_run,
    create_run,
    find_config,
    read_questions_of,
)

SPLITS = {
    "train": [Question("q", "1+1=?", "2", "sums"), Question("r", "Z\u00fcrich \ud800?\n", None, None)],
    "heldout": [Question("q", "2+2=?", "4", None)],
}


def evaluation(step: int) -> pa.Table:
    values = {
        "step": step,
        "split": "train",
        "query_id": "q",
        "source": None,
        "n": 4,
        "n_correct": step,
        "maj_correct": True,
        "majority_ratio": 0.5,
        "answer": "1",
        "gold": "1",
    }
    return table_from_columns({name: [value] for name, value in values.items()}, EVALUATIONS.fields)


def filled(path: Path, steps: int) -> RunFolder:
    create_run(path, "method: ttrl\n", SPLITS, overwrite=False)
    folder = RunFolder(path, {"model": "tiny"})
    for step in range(1, steps + 1):
        folder.add_table("evaluations", evaluation(step))
        folder.flush()
        folder.append_metrics({"step": step, "loss": float("nan")})
        folder.rollouts_path(step).parent.mkdir(exist_ok=True)
        folder.rollouts_path(step).write_bytes(b"rollouts")
    return folder


def test_rewind_keeps_what_the_checkpoint_covers(tmp_path: Path) -> None:
    filled(tmp_path / "run", steps=5)
    # The last line of a killed process may be cut anywhere.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    folder = RunFolder(tmp_path / "run", {"model": "tiny"})
    folder.rewind(3)
    table = read_table(tmp_path / "run" / "evaluations.parquet", EVALUATIONS)
    assert table["step"].to_pylist() == [1, 2, 3]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "run" / "rollouts").iterdir()) == [
        "step-000001.parquet",
        "step-000002.parquet",
        "step-000003.parquet",
    ]
    folder.add_table("evaluations", evaluation(4))
    folder.flush("evaluations")
    table = read_table(tmp_path / "run" / "evaluations.parquet", EVALUATIONS)
    assert table["step"].to_pylist() == [1, 2, 3, 4]


def test_rewind_to_the_start_leaves_no_record(tmp_path: Path) -> None:
    filled(tmp_path / "run", steps=2).rewind(-1)
    assert not (tmp_path / "run" / "evaluations.parquet").exists()
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
    assert list((tmp_path / "run" / "rollouts").iterdir()) == []


def test_metrics_are_json_without_nan(tmp_path: Path) -> None:
    filled(tmp_path / "run", steps=1)
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {"step": 1, "loss": None}


def test_a_run_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    filled(tmp_path / "run", steps=1)
    with pytest.raises(OutputExistsError, match="--resume"):
        create_run(tmp_path / "run", "method: ttrl-gt\n", SPLITS, overwrite=False)
    assert (tmp_path / "run" / "config.yaml").read_text() == "method: ttrl\n"
    create_run(tmp_path / "run", "method: ttrl-gt\n", SPLITS, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "questions"]


def test_a_folder_that_is_no_run_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputExistsError, match="not a run folder"):
        check_run(tmp_path / "thesis", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputExistsError, match="is a file"):
        check_run(tmp_path / "file", overwrite=True)
    check_run(tmp_path / "new", overwrite=False)
    (tmp_path / "empty").mkdir()
    check_run(tmp_path / "empty", overwrite=False)


def test_find_config_says_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        find_config(tmp_path)


def test_tables_are_validated_on_the_way_out(tmp_path: Path) -> None:
    folder = filled(tmp_path / "run", steps=1)
    folder.add_table("evaluations", evaluation(1))
    with pytest.raises(InputError, match="query_id"):
        folder.flush("evaluations")
    assert LABELS.name == "labels"


def test_questions_come_back_as_they_were(tmp_path: Path) -> None:
    filled(tmp_path / "run", steps=1)
    assert read_questions_of(tmp_path / "run") == SPLITS
    (tmp_path / "run" / "questions" / "train.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(InputError, match=r"train\.jsonl"):
        read_questions_of(tmp_path / "run")
    with pytest.raises(InputError, match="cannot be resumed"):
        read_questions_of(tmp_path)


def test_inputs_inside_the_run_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "q.jsonl").write_text("")
    inputs = {"model": tmp_path / "run" / "model", "question file": tmp_path / "q.jsonl"}
    with pytest.raises(InputError, match="the model lies in the run folder"):
        check_inputs(tmp_path / "run", inputs)
    check_inputs(tmp_path / "other", inputs)
