from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.schemas import ROLLOUTS, VOTES
from dttrl.tables import read_table, write_table
from dttrl.voting.registry import METHODS
from dttrl_cli.app import main


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    answers = {"a": ["1", "1", "2"], "b": ["3", "3", "3"]}
    rows = [
        {
            "query_id": query, "sample_id": i, "gold": {"a": "2", "b": "3"}[query], "answer": answer,
            "confidence": [1.0, 1.5, 9.0][i],
        }
        for query, given in answers.items()
        for i, answer in enumerate(given)
    ]  # fmt: skip
    path = tmp_path / "scored.parquet"
    write_table(path, pa.Table.from_pylist(rows, schema=ROLLOUTS.select(rows[0])), ROLLOUTS, metadata={})
    return path


def output(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, str]:
    assert main(["vote", *args]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_methods_are_compared(scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = tmp_path / "votes.parquet"
    text, _ = output(capsys, str(scored), "-m", "sc", "-m", "wsc", "-o", str(votes))
    assert re.search(r"^sc +1/2 +0\.500 \(0\.\d+-0\.\d+\)", text, re.MULTILINE)
    assert re.search(r"^wsc +2/2 +1\.000", text, re.MULTILINE)
    assert re.search(r"^sc / wsc +1$", text, re.MULTILINE)
    assert read_table(votes, VOTES).num_rows == 4


def test_json_holds_the_same_numbers(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, error = output(capsys, str(scored), "--method", "all", "--json", "--quiet")
    data: dict[str, Any] = json.loads(text)
    assert error == ""
    methods = {entry["method"]: entry for entry in data["methods"]}
    assert set(methods) == set(METHODS)
    assert (methods["sc"]["correct"], methods["sc"]["with_gold"], methods["sc"]["accuracy"]) == (1, 2, 0.5)
    assert methods["sc"]["accuracy_low"] < 0.5 < methods["sc"]["accuracy_high"]
    pair = next(entry for entry in data["disagreements"] if entry["second"] == "wsc")
    assert pair == {"first": "sc", "second": "wsc", "questions": 1}


def test_the_list_names_every_method_and_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, "--list")
    for info in METHODS.values():
        assert info.name in text
        for name, parameter in info.parameters.items():
            line = re.search(rf"^{info.name} +{name} +(.+?)  ", text, re.MULTILINE)
            assert line is not None
            assert line[1] == parameter.form


def test_without_confidence_the_majority_votes_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"query_id": ["q"] * 2, "sample_id": [0, 1], "answer": ["x", "x"]}), path)
    text, error = output(capsys, str(path), "--kind", "text")
    assert re.search(r"^sc +- +-", text, re.MULTILINE)
    assert "only methods without weights are possible" in error


def test_a_column_of_nulls_is_no_confidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.parquet"
    nothing = pa.array([None, None], pa.float64())
    columns = {"query_id": ["q"] * 2, "sample_id": [0, 1], "answer": ["1", "1"], "confidence": nothing}
    pq.write_table(pa.table(columns), path)
    _, error = output(capsys, str(path))
    assert "only methods without weights are possible" in error
    assert main(["vote", str(path), "-m", "wsc"]) == 2
    assert "without them only sc is possible" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "at least one file"),
        (["FILE", "-m", "nonsense"], "'nonsense'"),
        (["FILE", "-m", "distrivoting:f=loud"], "f='loud'"),
        (["FILE", "FILE"], "given twice"),
    ],
)
def test_wrong_use_is_one_line(
    scored: Path, args: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vote", *(str(scored) if arg == "FILE" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dttrl: error: ")
    assert error.count("\n") == 1
    assert named in error
