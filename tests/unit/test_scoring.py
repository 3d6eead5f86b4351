from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.answers.grading import Grader
from dttrl.confidence import Region
from dttrl.errors import InputError, OutputExistsError
from dttrl.questions import Question
from dttrl.rollouts import Rollout, rollouts_to_table
from dttrl.schemas import ROLLOUTS
from dttrl.scoring import classify, gold_of, read_scored, score_files, score_question
from dttrl.tables import RolloutFiles, read_metadata, read_table, write_table

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


def test_a_question_is_scored_by_hand(grader: Grader) -> None:
    scored = score_question(rollouts("a"), gold="1/2", grader=grader)
    assert scored.answers[2:] == ["7", None]
    assert scored.sources == ["boxed", "boxed", "boxed", None]
    assert scored.class_G.tolist() == [0, 0, 1, -1]
    assert scored.gold_class == 0
    assert scored.n_correct == 2
    # The first text's last step is the one with the answer, from character 3; the others are one step.
    first = np.mean(np.arange(3, len(TEXTS["a"][0])))
    assert scored.confidence_G[0] == first
    assert scored.confidence_G[1] == np.mean(np.arange(len(TEXTS["a"][1])))


def test_region_and_measure_change_the_confidence_only(grader: Grader) -> None:
    base = score_question(rollouts("a"), gold=None, grader=grader)
    other = score_question(
        rollouts("a"), gold=None, grader=grader, region=Region.parse("tail:1"), measure="logprob"
    )
    assert other.confidence_G.tolist() == [-(len(text) - 1) for text in TEXTS["a"]]
    assert other.class_G.tolist() == base.class_G.tolist()
    assert other.gold_class is None


def test_gold_that_no_rollout_gives_and_no_rollouts_at_all(grader: Grader) -> None:
    assert score_question(rollouts("a"), gold="12", grader=grader).gold_class == -1
    empty = classify("q", answers=[], sources=[], confidence_G=np.empty(0), gold="1", grader=grader)
    assert (empty.class_G.size, empty.spellings, empty.gold_class, empty.n_correct) == (0, [], -1, 0)


def test_files_are_scored_and_keep_everything_else(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    done: list[int] = []
    summary = score_files([generated], output, grader=grader, progress=done.append)
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
    score_files([generated], first, grader=grader)
    score_files([first], second, grader=grader, region=Region.parse("all"), measure="perplexity")
    table = read_table(second, ROLLOUTS)
    assert table.column_names == read_table(first, ROLLOUTS).column_names
    expected = [math.exp(-np.mean(np.arange(len(text)))) for texts in TEXTS.values() for text in texts]
    assert table["confidence"].to_pylist() == pytest.approx(expected)


def test_what_was_scored_is_read_back(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    score_files([generated], output, grader=grader)
    group = next(iter(RolloutFiles([output]).groups()))
    stored = read_scored(group.table, query_id="a", grader=grader)
    fresh = score_question(rollouts("a"), gold="1/2", grader=grader)
    assert stored.class_G.tolist() == fresh.class_G.tolist()
    assert stored.confidence_G.tolist() == fresh.confidence_G.tolist()
    assert (stored.answers, stored.sources, stored.gold_class) == (
        fresh.answers,
        fresh.sources,
        fresh.gold_class,
    )


def test_files_of_other_people_keep_their_confidence_and_columns(tmp_path: Path, grader: Grader) -> None:
    path, output = tmp_path / "theirs.parquet", tmp_path / "scored.parquet"
    table = pa.table(
        {
            "query_id": ["q", "q"], "sample_id": [0, 1], "text": [r"\boxed{1}", r"\boxed{2}"],
            "confidence": [0.25, None], "trace": ["x", "y"],
        }
    )  # fmt: skip
    pq.write_table(table, path)
    summary = score_files([path], output, grader=grader)
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
    summary = score_files([path], output, grader=grader)
    assert "only votes without weights are possible" in summary.notes[0]
    assert read_table(output, ROLLOUTS)["confidence"].to_pylist() == [None]


def test_answers_without_classes_are_classed_on_the_way(grader: Grader) -> None:
    table = pa.table({"answer": ["1/2", "0.5", "", None], "gold": ["2"] * 4})
    scored = read_scored(table, query_id="q", grader=grader)
    assert scored.class_G.tolist() == [0, 0, -1, -1]
    assert scored.gold_class == -1
    assert np.isnan(scored.confidence_G).all()


def test_stored_classes_are_made_dense_and_must_fit_the_answers(grader: Grader) -> None:
    table = pa.table({"answer": ["5", "9", None, "5"], "answer_class": pa.array([3, 8, -1, 3], pa.int32())})
    assert read_scored(table, query_id="q", grader=grader).class_G.tolist() == [0, 1, -1, 0]
    table = pa.table({"answer": ["5", None], "answer_class": pa.array([0, 0], pa.int32())})
    with pytest.raises(InputError, match="question 'q', rollout 1: answer_class is 0"):
        read_scored(table, query_id="q", grader=grader)


def test_rows_of_a_question_must_agree_on_gold() -> None:
    assert gold_of(pa.table({"gold": ["1", "1"]}), "q") == "1"
    assert gold_of(pa.table({"gold": pa.array([None], pa.string())}), "q") is None
    assert gold_of(pa.table({"text": ["1"]}), "q") is None
    with pytest.raises(InputError, match=r"question 'q'.*2 different gold answers"):
        gold_of(pa.table({"gold": ["1", "2"]}), "q")


def test_nothing_is_overwritten_or_left_behind(generated: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "scored.parquet"
    output.write_text("mine")
    with pytest.raises(OutputExistsError):
        score_files([generated], output, grader=grader)
    assert output.read_text() == "mine"
    bad = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"query_id": ["q"], "sample_id": [0], "answer": ["1"]}), bad)
    with pytest.raises(InputError, match="text"):
        score_files([bad], tmp_path / "new.parquet", grader=grader)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.parquet", "rollouts.parquet", "scored.parquet",
    ]  # fmt: skip
