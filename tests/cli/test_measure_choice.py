"""``dttrl score --measure auto`` and ``--weigh-labels``, as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout, rollouts_to_table
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table, write_table
from dttrl_cli.app import main
from tests.latent_draws import draw
from tests.tiny import write_questions


def write_rollouts(path: Path, *, tells: bool) -> Path:
    """Thirty questions whose entropy tells right from wrong, or nothing does."""
    drawn = draw(8, 30, 12, delta=3.0 if tells else 0.0)
    noise = np.random.default_rng(9).normal(size=(3, *drawn.class_RN.shape)).astype(np.float32)
    made, questions = [], {}
    for r, row in enumerate(drawn.class_RN.tolist()):
        questions[f"q{r}"] = Question(f"q{r}", "?")
        for i, answer in enumerate(row):
            text = rf"\boxed{{{answer}}}"
            offsets = np.arange(len(text), dtype=np.int32)
            one = np.ones(len(text), dtype=np.float32)
            topk, logprob, certainty = noise[:, r, i]
            entropy = np.float32(50 - drawn.confidence_RN[r, i])
            columns = (one * (topk + 9), -one * np.exp(logprob), one * entropy, one * certainty)
            made.append(Rollout(f"q{r}", i, text, "stop", offsets, offsets, *columns))
    write_table(path, rollouts_to_table(made, questions, keep_tokens=False), ROLLOUTS, metadata={})
    return path


def test_the_measure_that_tells_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = write_rollouts(tmp_path / "r.parquet", tells=True), tmp_path / "scored.parquet"
    assert main(["score", str(path), "-o", str(output), "--measure", "auto", "--json"]) == 0
    captured = capsys.readouterr()
    note = json.loads(captured.out)["notes"][0]
    assert note.startswith("measure entropy:last-step chosen: gain +")
    for name in ("perplexity", "topk", "self-certainty"):
        assert f"{name}:all " in note
    assert "none of them" not in note
    assert note in " ".join(captured.err.split())
    assert (read_metadata(output)["measure"], read_metadata(output)["region"]) == ("entropy", "last-step")
    again = tmp_path / "again.parquet"
    command = ["score", str(path), "-o", str(again), "--measure", "entropy", "--region", "last-step", "-q"]
    assert main(command) == 0
    assert read_table(again, ROLLOUTS).equals(read_table(output, ROLLOUTS))


def test_where_none_tells_the_note_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = write_rollouts(tmp_path / "r.parquet", tells=False), tmp_path / "scored.parquet"
    assert main(["score", str(path), "-o", str(output), "--measure", "auto", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"][0].endswith("; none of them tells right from wrong")


def test_without_token_columns_there_is_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "theirs.parquet", tmp_path / "scored.parquet"
    rows = {"query_id": ["q", "q"], "sample_id": [0, 1], "text": [r"\boxed{1}", r"\boxed{2}"]}
    pq.write_table(pa.table({**rows, "confidence": [0.25, 0.5]}), path)
    assert main(["score", str(path), "-o", str(output), "--measure", "auto"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dttrl: error: {path}: no token statistics")
    assert "leave --measure out" in error
    assert error.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize("method", [["distri-gmm"], ["ttrl"], ["ttrl-gt"], ["ttrl-latent", "--label", "mob"]])
def test_labels_that_have_no_probability_are_not_weighed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: list[str]
) -> None:
    questions = write_questions(tmp_path / "questions.jsonl")
    command = ["train", "none", str(questions), "--run", str(tmp_path / "run")]
    assert main([*command, "--weigh-labels", "--method", *method]) == 2
    error = capsys.readouterr().err
    assert "--weigh-labels does nothing with labels by " in error
    assert error.count("\n") == 1
