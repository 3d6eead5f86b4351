from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dttrl_cli.app import main

DATA = Path(__file__).parents[2] / "data"


def test_of_one_run_the_table_and_the_sentence_name_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "checkpoints", f"{DATA / 'collapse'}#quickstart.ttrl-1e-4.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (kept,) = (line.split() for line in lines if line.endswith("first votes, gold"))
    assert kept[:5] == ["0", "5", "0", "-", "+0.000"]
    assert lines[-1] == (
        "Without gold answers: keep step 5 (gain +0.000), not the last, step 40 (-0.532). "
        "The run has left its first votes; the model before training may be better still."
    )


def test_of_many_runs_the_sentence_says_what_the_choice_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "checkpoints", str(DATA / "collapse")]) == 0
    out = capsys.readouterr().out
    assert "another step than the last is kept in 3 of 3 runs" in out
    assert "On heldout questions that costs 1.30 points, the last step 20.38" in out


def test_table_and_json_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.parquet"
    runs = f"{DATA / 'reference'}#sums-right.ttrl.?"
    assert main(["analyze", "checkpoints", runs, "--start", "-o", str(table), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == pq.read_table(table).to_pylist()
    assert [row["step"] for row in said["rows"]] == [0, 20, 40, 60, 80, 100] * 3
    assert {row["runs"] for row in said["choices"]} == {3}
    (last,) = (r for r in said["choices"] if (r["split"], r["choice"]) == ("train", "last"))
    assert last["against_last"] == 0.0


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("method: ttrl\n")
    assert main(["analyze", "checkpoints", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "the run has no votes yet" in err
    assert err.count("\n") == 1
