from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout, rollouts_to_table
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table, write_table
from dttrl_cli.app import main

TEXTS = {"a": [r"\boxed{4}", r"\boxed{4.0}", "the last number is 5", "nothing"], "b": [r"\boxed{1}"] * 2}


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    questions = {"a": Question("a", "2+2?", answer="4"), "b": Question("b", "1?")}
    made = []
    for query_id, texts in TEXTS.items():
        for sample_id, text in enumerate(texts):
            offsets = np.arange(len(text), dtype=np.int32)
            values = np.full(len(text), 1.0 + sample_id, dtype=np.float32)
            made.append(Rollout(query_id, sample_id, text, "stop", offsets, offsets, values, -values, values))
    path = tmp_path / "rollouts.parquet"
    write_table(
        path, rollouts_to_table(made, questions, keep_tokens=False), ROLLOUTS, metadata={"model": "m"}
    )
    return path


def test_scores_and_counts(rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scored.parquet"
    assert main(["score", str(rollouts), "-o", str(output)]) == 0
    text = capsys.readouterr().out
    for line in (r"answer: boxed +4", r"answer: none +2", r"answer classes +2", r"accuracy +0\.500"):
        assert any(re.search(line, row) for row in text.splitlines()), line
    assert "over the 1 questions that have a gold answer" in text
    table = read_table(output, ROLLOUTS)
    assert table["answer_class"].to_pylist() == [0, 0, -1, -1, 0, 0]
    assert table["confidence"].to_pylist() == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]


def test_options_reach_the_scoring(
    rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scored.parquet"
    options = ["--last-number", "--region", "tail:2", "--measure", "logprob", "--json", "--quiet"]
    assert main(["score", str(rollouts), "-o", str(output), *options]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert result["answers"] == {"boxed": 4, "last-number": 1, "none": 1}
    assert result["accuracy"] == 0.5
    assert read_table(output, ROLLOUTS)["confidence"].to_pylist() == [-1.0, -2.0, -3.0, -4.0, -1.0, -2.0]
    metadata = read_metadata(output)
    assert (metadata["region"], metadata["measure"], metadata["last_number"]) == ("tail:2", "logprob", True)


def test_yaml_gives_options_and_flags_win(rollouts: Path, tmp_path: Path) -> None:
    config, output = tmp_path / "score.yaml", tmp_path / "scored.parquet"
    config.write_text("region: all\nmeasure: entropy\n")
    command = ["score", str(rollouts), "-o", str(output), "--config", str(config), "--measure", "topk"]
    assert main(command) == 0
    metadata = read_metadata(output)
    assert (metadata["region"], metadata["measure"]) == ("all", "topk")


def test_overwriting_is_asked_for(rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scored.parquet"
    command = ["score", str(rollouts), "-o", str(output), "-q"]
    assert main(command) == 0
    before = output.read_bytes()
    capsys.readouterr()
    assert main([*command, "--region", "all"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert output.read_bytes() == before
    assert main([*command, "--region", "all", "--overwrite"]) == 0
    assert output.read_bytes() != before


def test_a_bad_region_is_one_line(rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(rollouts), "-o", str(tmp_path / "s.parquet"), "--region", "middle"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dttrl: error: ")
    assert error.count("\n") == 1
    assert "last-step" in error


def test_what_was_decided_how_is_reported(
    rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scored.parquet"
    assert main(["score", str(rollouts), "-o", str(output)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"classes of several spellings +1", text)
    assert re.search(r"not decided.* +0", text)
    assert re.search(r"workers killed +0", text)
    assert re.search(r"a +4 +4\.0", text)  # the example


def test_a_question_is_explained(rollouts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scored.parquet"
    command = ["score", str(rollouts), "-o", str(output), "--explain", "a"]
    assert main(command) == 0
    assert "both are the number 4" in capsys.readouterr().out
    assert main([*command, "--json", "--quiet", "--overwrite"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(e["a"], e["b"], e["verdict"]) for e in result["explained"]] == [("4", "4.0", "yes")]
    assert result["examples"] == [{"query_id": "a", "spellings": ["4", "4.0"]}]
    assert main([*command[:-1], "nothing", "--overwrite"]) == 2
    assert "has no question of that id" in capsys.readouterr().err


def test_the_kind_follows_the_source(tmp_path: Path) -> None:
    questions = {
        "q1": Question("q1", "?", answer="204", source="aime2024"),
        "q2": Question("q2", "?", answer="C", source="gpqa_diamond"),
        "q3": Question("q3", "?", answer="1200", source="amc"),
    }
    texts = {"q1": r"\boxed{1200}", "q2": "The answer is (C).", "q3": r"\boxed{1200}"}
    empty = np.zeros(0, dtype=np.int32)
    values = np.zeros(0, dtype=np.float32)
    made = [Rollout(q, 0, text, "stop", empty, empty, values, values, values) for q, text in texts.items()]
    path, output = tmp_path / "rollouts.parquet", tmp_path / "scored.parquet"
    table = rollouts_to_table(made, questions, keep_tokens=False)
    write_table(path, table, ROLLOUTS, metadata={"model": "m"})
    assert main(["score", str(path), "-o", str(output), "-q"]) == 0
    assert read_table(output, ROLLOUTS)["answer"].to_pylist() == [None, "C", "1200"]
    assert read_metadata(output)["answer_kind"] == "auto"
    assert main(["score", str(path), "-o", str(output), "-q", "--overwrite", "--kind", "math"]) == 0
    assert read_table(output, ROLLOUTS)["answer"].to_pylist() == ["1200", "(C)", "1200"]
    assert main(["score", str(path), "-o", str(output), "-q", "--overwrite", "--kind", "maths"]) == 2


def test_hardly_any_answer_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, values = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    for count, noted in ((19, True), (9, False)):
        texts = [r"\boxed{1}", *["nothing"] * count]
        made = [Rollout("q", i, text, "stop", empty, empty, values, values, values)
                for i, text in enumerate(texts)]  # fmt: skip
        path, output = tmp_path / "rollouts.parquet", tmp_path / "scored.parquet"
        table = rollouts_to_table(made, {"q": Question("q", "?")}, keep_tokens=False)
        write_table(path, table, ROLLOUTS, metadata={"model": "m"}, overwrite=True)
        assert main(["score", str(path), "-o", str(output), "--overwrite", "--json"]) == 0
        captured = capsys.readouterr()
        assert ("no answer was found in 95 % of the rollouts" in captured.err) == noted
        assert any("--template" in note for note in json.loads(captured.out)["notes"]) == noted
