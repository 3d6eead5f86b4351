from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.questions import Question
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout, rollouts_to_table
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table, write_table
from dttrl.errors import InputError, OutputExistsError
from dttrl.method.scored import Scored
from dttrl.scoring.score import score_files, score_rollouts
from dttrl.scoring.scored_files import read_scored
from dttrl.settings.sections import Scoring

QUESTIONS = {
    "a": Question("a", "What is 1/2?", answer="1/2"),
    "b": Question("b", "No answer known?"),
}
TEXTS = {
    "a": ["x\n\n\\boxed{\\frac{1}{2}}\n\nI am sure", r"so \boxed{0.5}", r"so \boxed{7}", "I do not know"],
    "b": [r"\boxed{3}", r"\boxed{3}"],
}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as opened:
        yield opened


def rollout(query_id: str, sample_id: int, text: str) -> Rollout:
    """A token a character; confidences grow with the position, so that the region is seen in the mean."""
    offsets = np.arange(len(text), dtype=np.int32)
    values = np.arange(len(text), dtype=np.float32)
    return Rollout(query_id, sample_id, text, "stop", offsets, offsets, values, -values, values)


def rollouts(query_id: str) -> list[Rollout]:
    return [rollout(query_id, i, text) for i, text in enumerate(TEXTS[query_id])]


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    table = rollouts_to_table([*rollouts("a"), *rollouts("b")], QUESTIONS, keep_tokens=False)
    path = tmp_path / "rollouts.parquet"
    write_table(path, table, ROLLOUTS, metadata={"model": "m", "k": 20})
    return path


def score(grader: Grader, gold: str | None = None, **choices: Any) -> Scored:
    return score_rollouts([rollouts("a")], Scoring(**choices), grader, golds=[gold])


def test_a_question_is_scored_by_hand(grader: Grader) -> None:
    scored = score(grader, "1/2")
    assert scored.rows["answer"].to_pylist()[2:] == ["7", None]
    assert scored.rows["answer_source"].to_pylist() == ["boxed", "boxed", "boxed", None]
    assert scored.class_RN.tolist() == [[0, 0, 1, -1]]
    assert scored.gold_class_R.tolist() == [0]
    assert scored.correct_RN.tolist() == [[True, True, False, False]]
    assert scored.spelling(np.array([1], np.int32)) == ["7"]
    # The first text's last step is the one with the answer, from character 3; the others are one step.
    first = np.mean(np.arange(3, len(TEXTS["a"][0])))
    assert scored.confidence_RN[0, 0] == first
    assert scored.confidence_RN[0, 1] == np.mean(np.arange(len(TEXTS["a"][1])))


def test_region_and_measure_change_the_confidence_only(grader: Grader) -> None:
    base = score(grader)
    other = score(grader, region="tail:1", measure="logprob")
    assert other.confidence_RN.tolist() == [[-(len(text) - 1) for text in TEXTS["a"]]]
    assert other.class_RN.tolist() == base.class_RN.tolist()
    assert other.has_gold_R.tolist() == [False]
    assert (other.measure, base.measure) == ("logprob", "topk")


def test_gold_that_no_rollout_gives(grader: Grader) -> None:
    scored = score(grader, "12")
    assert scored.gold_class_R.tolist() == [-1]
    assert scored.correct(np.array([0], np.int32)) == [False]


def test_questions_scored_together_are_those_scored_alone(grader: Grader) -> None:
    """Of other numbers of classes, of kinds by their source, with and without gold."""
    groups = [
        [rollout(name, i, text) for i, text in enumerate(texts)]
        for name, texts in {
            "a": [r"\boxed{1}", r"\boxed{2}", "none"],
            "b": [r"\boxed{2}", r"\boxed{2.0}", r"\boxed{2}"],
            "c": ["none", "no", "none"],
            "d": ["The answer is (B)", r"\boxed{B}", r"\boxed{C}"],
        }.items()
    ]
    golds, sources = ["2", "3", None, "B"], [None, None, None, "gpqa"]
    whole = score_rollouts(groups, Scoring(), grader, golds=golds, sources=sources)
    for r in range(4):
        alone = score_rollouts([groups[r]], Scoring(), grader, golds=[golds[r]], sources=[sources[r]])
        assert whole.class_RN[r].tolist() == alone.class_RN[0].tolist()
        assert whole.confidence_RN[r].tolist() == alone.confidence_RN[0].tolist()
        assert whole.gold_class_R[r] == alone.gold_class_R[0]
        for c in range(-1, int(alone.n_classes_R[0])):
            everywhere = np.full(4, min(c, 0), np.int32)
            everywhere[r] = c
            assert whole.spelling(everywhere)[r] == alone.spelling(np.array([c], np.int32))[0]
            assert whole.correct(everywhere)[r] == alone.correct(np.array([c], np.int32))[0]
        taken = whole.take([r])
        assert taken.rows.equals(alone.rows)
    assert whole.has_gold_R.tolist() == [True, True, False, True]
    assert whole.gold_class_R.tolist() == [1, -1, -1, 0]


def test_files_are_scored_and_keep_everything_else(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    done: list[int] = []
    summary = score_files([generated], output, Scoring(), grader, progress=done.append)
    assert done == [4, 6]
    assert (summary.questions, summary.rollouts, summary.classes) == (2, 6, 3)
    assert dict(summary.sources) == {"boxed": 5, "none": 1}
    assert (summary.gold_questions, summary.correct_rollouts, summary.accuracy) == (1, 2, 0.5)
    assert summary.without_confidence == 0
    before, after = read_table(generated, ROLLOUTS), read_table(output, ROLLOUTS)
    assert after.select(before.column_names).equals(before)
    assert after["answer_class"].to_pylist() == [0, 0, 1, -1, 0, 0]
    metadata = read_metadata(output)
    assert (metadata["model"], metadata["measure"], metadata["region"]) == ("m", "topk", "last-step")
    assert "math-verify" in metadata["grader"]


def test_scoring_again_replaces_the_scores(generated: Path, tmp_path: Path, grader: Grader) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    score_files([generated], first, Scoring(), grader)
    score_files([first], second, Scoring(region="all", measure="perplexity"), grader)
    table = read_table(second, ROLLOUTS)
    assert table.column_names == read_table(first, ROLLOUTS).column_names
    expected = [math.exp(-np.mean(np.arange(len(text)))) for texts in TEXTS.values() for text in texts]
    assert table["confidence"].to_pylist() == pytest.approx(expected)


def test_what_was_scored_is_read_back(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    score_files([generated], output, Scoring(), grader)
    stored = next(iter(read_scored(RolloutFiles([output]), grader=grader)))
    fresh = score(grader, "1/2")
    assert stored.class_RN.tolist() == fresh.class_RN.tolist()
    assert stored.confidence_RN.tolist() == fresh.confidence_RN.tolist()
    assert stored.gold_class_R.tolist() == fresh.gold_class_R.tolist()
    assert stored.rows["answer"].to_pylist() == fresh.rows["answer"].to_pylist()


def test_files_of_other_people_keep_their_confidence_and_columns(tmp_path: Path, grader: Grader) -> None:
    path, output = tmp_path / "theirs.parquet", tmp_path / "scored.parquet"
    table = pa.table(
        {
            "query_id": ["q", "q"], "sample_id": [0, 1], "text": [r"\boxed{1}", r"\boxed{2}"],
            "confidence": [0.25, None], "trace": ["x", "y"],
        }
    )  # fmt: skip
    pq.write_table(table, path)
    summary = score_files([path], output, Scoring(), grader)
    assert summary.notes == ["no column token_confidence: the confidences stored in the file are kept"]
    assert summary.without_confidence == 1
    assert math.isnan(summary.accuracy)
    scored = read_table(output, ROLLOUTS)
    assert scored["confidence"].to_pylist() == [0.25, None]
    assert scored["trace"].to_pylist() == ["x", "y"]
    assert read_metadata(output)["region"] is None


def test_without_any_confidence_the_summary_says_what_remains(tmp_path: Path, grader: Grader) -> None:
    path, output = tmp_path / "theirs.parquet", tmp_path / "scored.parquet"
    pq.write_table(pa.table({"query_id": ["q"], "sample_id": [0], "text": [r"\boxed{1}"]}), path)
    summary = score_files([path], output, Scoring(), grader)
    assert "only votes without weights are possible" in summary.notes[0]
    assert read_table(output, ROLLOUTS)["confidence"].to_pylist() == [None]


def test_nothing_is_overwritten_or_left_behind(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    output.write_text("mine")
    with pytest.raises(OutputExistsError):
        score_files([generated], output, Scoring(), grader)
    assert output.read_text() == "mine"
    bad = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"query_id": ["q"], "sample_id": [0], "answer": ["1"]}), bad)
    with pytest.raises(InputError, match="text"):
        score_files([bad], tmp_path / "new.parquet", Scoring(), grader)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.parquet", "rollouts.parquet", "scored.parquet",
    ]  # fmt: skip
