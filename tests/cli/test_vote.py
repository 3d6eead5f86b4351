from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.schemas import ROLLOUTS, VOTES
from dttrl.data.tables import read_table, write_table
from dttrl.method.history import History
from dttrl.method.voting.registry import METHODS
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


def test_without_a_method_three_stand_side_by_side(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, error = output(capsys, str(scored), "-q")
    assert re.findall(r"^(\w+) +\d/2 ", text, re.MULTILINE) == ["sc", "latent", "distrivoting"]
    assert max(map(len, text.splitlines())) <= 100
    assert "expected" in text
    assert "No gold answers" not in text
    assert error == ""


def test_without_gold_the_expected_accuracy_is_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.parquet"
    columns = {"query_id": ["q"] * 3, "sample_id": [0, 1, 2], "answer": ["1", "1", "2"]}
    pq.write_table(pa.table(columns | {"confidence": [1.0, 2.0, 1.0]}), path)
    text, _ = output(capsys, str(path))
    assert re.search(r"^sc +- +- +0\.\d{3} +0\.667", text, re.MULTILINE)
    assert "No gold answers: the expected accuracy is the latent vote's own estimate." in text
    data = json.loads(output(capsys, str(path), "--json")[0])
    assert 0 < data["methods"][0]["expected_accuracy"] < 1
    assert data["methods"][0]["accuracy"] is None


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
    assert "possible without them: sc, latent" in capsys.readouterr().err


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


def test_disagreements_are_listed_with_tallies(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = output(capsys, str(scored), "-m", "sc", "-m", "wsc", "--disagreements")
    assert re.search(r"^a\nanswer +rollouts +confidence +right +elected by\n", text, re.MULTILINE)
    assert re.search(r"^ *1 +2 +2.500 +no +sc$", text, re.MULTILINE)
    assert re.search(r"^ *2 +1 +9.000 +yes +wsc$", text, re.MULTILINE)
    assert "\nb\n" not in text
    data = json.loads(output(capsys, str(scored), "-m", "sc", "-m", "wsc", "--disagreements", "--json")[0])
    assert [split["query_id"] for split in data["split"]] == ["a"]
    assert data["split"][0]["tallies"][0] == {
        "answer": "1", "count": 2, "confidence": 2.5, "right": False, "methods": ["sc"],
    }  # fmt: skip


def test_strings_may_vote_instead_of_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.parquet"
    answers = ["1/2", "0.5", "3", "3"]
    columns = {"query_id": ["q"] * 4, "sample_id": list(range(4)), "answer": answers, "gold": ["0.5"] * 4}
    columns["weight"] = [1, 1, 9, 9]
    columns["confidence"] = [2, 2, 1, 0.5]
    pq.write_table(pa.table(columns), path)
    assert re.search(r"^sc +1/1", output(capsys, str(path), "-m", "sc")[0], re.MULTILINE)
    assert re.search(r"^sc +0/1", output(capsys, str(path), "-m", "sc", "--classes", "raw")[0], re.MULTILINE)
    weighed = output(capsys, str(path), "-m", "wsc", "--confidence", "weight")[0]
    assert re.search(r"^wsc +0/1", weighed, re.MULTILINE)
    assert main(["vote", str(path), "--confidence", "none-such"]) == 2
    assert "none-such" in capsys.readouterr().err


def test_questions_that_steps_repeat_are_one_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"step": step, "query_id": query, "sample_id": 0, "gold": "1", "answer": {"a": "1", "b": "2"}[query]}
        for step in range(1, 21)
        for query in "ab"
    ]
    path = tmp_path / "steps.parquet"
    write_table(path, pa.Table.from_pylist(rows, schema=ROLLOUTS.select(rows[0])), ROLLOUTS, metadata={})
    data = json.loads(output(capsys, str(path), "-m", "sc", "--json")[0])
    (sc,) = data["methods"]
    # Wilson's interval of 20 right of 40 is 0.352 to 0.648; two questions know far less.
    assert (sc["accuracy"], sc["accuracy_low"], sc["accuracy_high"]) == (0.5, 0.0, 1.0)


def test_steps_have_a_history_of_their_own(tmp_path: Path) -> None:
    """`progressive` at step 2 votes under both steps, shifted; without a past it would differ."""
    rng = np.random.default_rng(2)
    rows = []
    for step, level in ((1, 0.0), (2, 5.0)):
        for q in range(6):
            for i, value in enumerate(level + 5 + rng.normal(size=8).round(3) + 2 * rng.integers(0, 2, 8)):
                rows.append(
                    {"step": step, "query_id": f"q{q}", "sample_id": i, "gold": "1",
                     "confidence": float(value), "answer": str(rng.integers(0, 3))}
                )  # fmt: skip
    path = tmp_path / "steps.parquet"
    write_table(path, pa.Table.from_pylist(rows, schema=ROLLOUTS.select(rows[0])), ROLLOUTS, metadata={})
    means = {}
    for name in ("progressive", "progressive:window=0"):
        out = tmp_path / f"{len(name)}.parquet"
        assert main(["vote", str(path), "-m", name, "-o", str(out), "-q"]) == 0
        table = read_table(out, VOTES)
        means[name] = dict(zip(table["step"].to_pylist(), table["mean_pos"].to_pylist(), strict=True))
    assert means["progressive"][1] == means["progressive:window=0"][1]
    assert means["progressive"][2] != means["progressive:window=0"][2]
    history = History()
    for step in (1, 2):
        values = np.array([row["confidence"] for row in rows if row["step"] == step])
        progressive, history = history.advance(step, values)
        assert means["progressive"][step] == pytest.approx(progressive.mixture.mean_pos, abs=1e-9)


@pytest.mark.parametrize("name", ["scored.parquet", "votes.csv", "-"])
def test_votes_do_not_replace_rollouts_or_pretend_to_be_csv(
    scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = scored.read_bytes()
    assert main(["vote", str(scored), "-o", str(tmp_path / name), "--overwrite"]) == 2
    assert capsys.readouterr().err.startswith("dttrl: error: ")
    assert scored.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["scored.parquet"]
