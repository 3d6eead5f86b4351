"""``dttrl import``, and files of other tools given straight to ``vote`` and ``score``."""

from __future__ import annotations

import json
import pickle
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.schemas import ROLLOUTS, VOTES
from dttrl.data.tables import read_metadata, read_table
from dttrl.interop.formats import FORMATS
from dttrl_cli.app import main

DATA = Path(__file__).resolve().parents[1] / "data" / "interop"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[str, str]:
    assert main([str(word) for word in words]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def error(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def answers(path: Path, method: str = "sc") -> dict[str, str]:
    rows = read_table(path, VOTES).to_pylist()
    return {row["query_id"]: row["answer"] for row in rows if row["method"] == method}


def test_the_list_has_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "import", "--list")
    data = json.loads(run(capsys, "import", "--list", "--json")[0])
    assert [entry["format"] for entry in data] == list(FORMATS)
    for entry in FORMATS.values():
        assert re.search(rf"^{entry.name} +{re.escape(entry.recognised)} ", text, re.MULTILINE)


def test_import_score_vote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts, scored, votes = (tmp_path / f"{name}.parquet" for name in ("r", "s", "v"))
    text, notes = run(capsys, "import", "openai", DATA / "openai_chat.jsonl", "-o", rollouts)
    assert "Possible: token confidences: all methods, after dttrl score." in text
    assert "responses that are errors were passed over (1)" in notes
    run(capsys, "score", rollouts, "-o", scored)
    table = read_table(scored, ROLLOUTS)
    assert table["answer"].to_pylist() == ["6", "2", "3"]
    # No blank line: the last step is the whole text; means of the confidences of test_interop_formats.
    assert table["confidence"].to_pylist() == [None, pytest.approx(1.175), 1.5]
    run(capsys, "vote", scored, "-m", "all", "-o", votes)
    assert answers(votes, "wsc") == {"product": "6", "sum": "3"}
    assert read_metadata(votes)["model"] == "tiny-1"


def test_json_says_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "r.parquet"
    text, notes = run(capsys, "import", "verl", DATA / "verl_40.jsonl", "-o", output, "--json", "--quiet")
    data = json.loads(text)
    assert notes == ""
    assert (data["format"], data["questions"], data["rollouts"]) == ("verl", 2, 5)
    assert data["possible"].startswith("no confidence: votes without weights (sc, latent)")
    assert data["entries"]["text"] == 5


def test_columns_score_and_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, votes = tmp_path / "r.parquet", tmp_path / "v.parquet"
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"id": "q1", "prompt": "1+1?", "answer": "2"}\n{"id": "q2", "prompt": "2+3?"}\n')
    columns = "question=qid, answer=prediction"
    command = ["import", "columns", DATA / "table.csv", "--columns", columns, "-o", output]
    run(capsys, *command, "--score", "certainty", "--questions", questions)
    table = read_table(output, ROLLOUTS)
    assert table["prompt"].to_pylist() == ["1+1?"] * 2 + ["2+3?"] * 2
    assert table["gold"].to_pylist() == ["2", "2", None, None]
    text, _ = run(capsys, "vote", output, "-m", "sc", "-m", "wsc", "-o", votes)
    assert re.search(r"^wsc +1/1 ", text, re.MULTILINE)
    assert answers(votes, "wsc") == {"q1": "2", "q2": "5"}
    assert "exists already" in error(capsys, *command)
    run(capsys, *command, "--overwrite")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("verl_40.jsonl", {"2", "6"}),
        ("ttrl.jsonl", {"25", "0.5"}),  # AIME: an integer, MATH: as it is written
        ("samples_gsm8k_2025-01-02T03-04-05.678901.jsonl", {"4", "9"}),
        ("inspect_log.json", {"2", "5"}),
        ("openai_chat.jsonl", {"6", "3"}),  # a tie, which the confidence breaks
    ],
)
def test_vote_takes_the_files_as_they_are(
    tmp_path: Path, name: str, expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    votes = tmp_path / "v.parquet"
    _, notes = run(capsys, "vote", DATA / name, "-m", "sc", "-o", votes)
    assert f"{DATA / name}: read as " in notes
    assert set(answers(votes).values()) == expected
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "entry", "expected"),
    [
        ("verl_generation.jsonl", "verl", {"2", "5"}),
        ("trl_completions.jsonl", "trl", {"2", None}),
        ("lighteval_details.jsonl", "lighteval", {"2", "5"}),
    ],
)
def test_vote_takes_parquet_of_other_tools(
    tmp_path: Path, name: str, entry: str, expected: set[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]
    path, votes = tmp_path / "theirs.parquet", tmp_path / "v.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    _, notes = run(capsys, "vote", path, "-o", votes)
    assert f"{path}: read as {entry}; no confidence: votes without weights (sc, latent)" in notes
    assert set(answers(votes).values()) == expected
    scored = tmp_path / "s.parquet"
    run(capsys, "import", entry, path, "-o", tmp_path / "r.parquet")
    run(capsys, "score", tmp_path / "r.parquet", "-o", scored)
    run(capsys, "vote", scored, "-m", "sc", "-o", votes, "--overwrite")
    assert set(answers(votes).values()) == expected


def test_vote_uses_the_confidences_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = tmp_path / "v.parquet"
    run(capsys, "vote", DATA / "openai_chat.jsonl", "-m", "wsc", "-o", votes)
    assert answers(votes, "wsc") == {"product": "6", "sum": "3"}
    # Also where the file has answers besides: without the confidences wsc would be refused.
    run(capsys, "vote", DATA / "inspect_log.json", "-m", "wsc", "-o", votes, "--overwrite")
    assert answers(votes, "wsc") == {"1": "2", "two": "5"}


def test_vote_without_confidence_says_what_remains(capsys: pytest.CaptureFixture[str]) -> None:
    _, notes = run(capsys, "vote", DATA / "verl_40.jsonl")
    assert (
        "read as verl; no confidence: votes without weights (sc, latent); best-of-n and MoB on a stored "
        "score need" in notes
    )
    assert "possible without them: sc, latent" in error(
        capsys, "vote", "-q", DATA / "verl_40.jsonl", "-m", "wsc"
    )


def test_score_takes_them_and_folders_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name in ("verl_40.jsonl", "verl_uid_41.jsonl"):
        (folder / name).write_bytes((DATA / name).read_bytes())
    output = tmp_path / "s.parquet"
    _, notes = run(capsys, "score", folder, "-o", output)
    assert f"{folder}: read as verl" in notes
    table = read_table(output, ROLLOUTS)
    assert sorted(zip(table["step"].to_pylist(), table["answer"].to_pylist(), strict=True)) == [
        (40, "2"), (40, "2"), (40, "3"), (40, "5"), (40, "6"), (41, "2"), (41, "2"), (41, "4"),
    ]  # fmt: skip


def test_our_own_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ours.parquet"
    # A column of another tool beside ours does not make it theirs.
    pq.write_table(
        pa.table(
            {"query_id": ["q"], "sample_id": [0], "answer": ["1"], "responses": [["x"]], "prompt": ["p"]}
        ),
        path,
    )
    _, notes = run(capsys, "vote", path)
    assert "read as" not in notes


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["import"], "needs a format"),
        (["import", "verl", "x.jsonl"], "--output"),
        (["import", "csv", "x", "-o", "y"], "format 'csv' is unknown; formats: verl, ttrl"),
        (["import", "verl", "absent.jsonl", "-o", "y"], "absent.jsonl: no such file"),
        (["import", "columns", "x", "-o", "y", "--columns", "question"], "'question' is not ROLE=FIELD"),
        (["import", "columns", "x", "-o", "y", "--columns", "query=a"], "'query=a' is not ROLE=FIELD"),
        (["import", "columns", "x", "-o", "y", "--columns", "id=a,id=b"], "once each"),
        (["import", "openai", "x", "-o", "y", "--k", "0"], "--k"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in error(capsys, *words)


def test_a_pickle_given_to_vote_says_how_to_import_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.pkl"
    trace = {"text": r"\boxed{1}", "token_ids": [1, 2], "confs": [2.0, 3.0]}
    path.write_bytes(pickle.dumps({"qid": 1, "ground_truth": "1", "all_traces": [trace]}))
    assert "dttrl import deepconf --allow-pickle" in error(capsys, "vote", path)
    output = tmp_path / "r.parquet"
    assert "--allow-pickle" in error(capsys, "import", "deepconf", path, "-o", output)
    run(capsys, "import", "deepconf", path, "--allow-pickle", "-o", output)
    run(capsys, "score", output, "-o", tmp_path / "s.parquet")
    assert read_table(tmp_path / "s.parquet", ROLLOUTS)["confidence"].to_pylist() == [2.5]


def test_a_malformed_file_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "40.jsonl"
    path.write_text((DATA / "verl_40.jsonl").read_text() + "{broken\n")
    for command in (["import", "verl", path], ["score", path]):
        assert f"{path}:6: bad JSON" in error(capsys, *command, "-o", tmp_path / "o.parquet")
    assert f"{path}:6: bad JSON" in error(capsys, "vote", path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["40.jsonl", "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_public_rollouts_by_their_columns(
    tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Last letters (data/README.md of the shared data): 415 of 500 by majority over equal strings."""
    (source,) = (shared_data / "data" / "rollouts").glob("lastletters_gpt3.5_esc_n40*.parquet")
    output = tmp_path / "r.parquet"
    columns = "id=query_id,sample=sample_id,answer=answer,gold=gold,text=text"
    text, _ = run(capsys, "import", "columns", source, "--columns", columns, "-o", output)
    assert re.search(r"^rollouts +20000$", text, re.MULTILINE)
    voted, _ = run(capsys, "vote", output, "--kind", "text", "-m", "sc")
    assert re.search(r"^sc +415/500 ", voted, re.MULTILINE)
