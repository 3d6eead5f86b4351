"""From raw top-k log-probabilities to weighted advantages: dttrl against the working by hand (README.md)."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.rollouts import Rollout
from dttrl.method.confidence import token_confidence
from dttrl.method.history import History
from dttrl.method.methods import Signal
from dttrl.method.mixture import Mixture
from dttrl.method.scored import Scored
from dttrl.method.training_signal import TrainingSignal, training_signal
from dttrl.method.voting.distrivoting import FALLBACKS
from dttrl.scoring.score import score_rollouts
from dttrl.settings.sections import Scoring

HERE = Path(__file__).resolve().parent
DATA: dict[str, Any] = json.loads((HERE / "three_steps.json").read_text(encoding="utf-8"))
SETTINGS = DATA["settings"]
PARAMETERS = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos")
QUESTIONS = [(step, question) for step in range(3) for question in range(3)]


def make_rollout(step: int, query_id: str, sample_id: int, given: dict[str, Any]) -> Rollout:
    lengths = [len(token) for token in given["tokens"]]
    size = len(lengths)
    return Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text="".join(given["tokens"]),
        finish_reason="stop",
        token_ids=np.arange(size, dtype=np.int32),
        token_offset=np.cumsum([0, *lengths[:-1]]).astype(np.int32),
        token_confidence=token_confidence(np.array(given["logprobs"]), k=SETTINGS["k"]),
        token_logprob=np.zeros(size, dtype=np.float32),
        token_entropy=np.zeros(size, dtype=np.float32),
        step=step,
    )


@pytest.fixture(scope="module")
def computed() -> list[tuple[Scored, TrainingSignal]]:
    settings = Signal(method="distri-gmm", train_samples=SETTINGS["n_train"], tau=SETTINGS["tau"])
    history = History()
    results = []
    with Grader(kind="integer", use_algebra=False) as grader:
        for step in DATA["input"]:
            rollouts = [
                [
                    make_rollout(step["step"], question["query_id"], j, given)
                    for j, given in enumerate(question["rollouts"])
                ]
                for question in step["questions"]
            ]
            scored = score_rollouts(rollouts, Scoring(), grader)
            signal, history = training_signal(scored, history, settings)
            results.append((scored, signal))
    return results


Computed = list[tuple[Scored, TrainingSignal]]


def same_mixture(mixture: Mixture, expected: dict[str, float]) -> None:
    assert mixture.degenerate is None
    found = [getattr(mixture, name) for name in PARAMETERS]
    np.testing.assert_allclose(found, [expected[name] for name in PARAMETERS], rtol=0, atol=1e-4)


def answers(scored: Scored, question: int) -> list[str | None]:
    size = scored.class_RN.shape[1]
    found: list[str | None] = scored.rows["answer"].to_pylist()[question * size : (question + 1) * size]
    return found


@pytest.mark.parametrize(("step", "question"), QUESTIONS)
def test_token_and_trajectory_confidence(computed: Computed, step: int, question: int) -> None:
    expected = DATA["expected"][step]["questions"][question]
    given = DATA["input"][step]["questions"][question]["rollouts"]
    scored = computed[step][0]
    for rollout, values in zip(given, expected["token_confidence"], strict=True):
        found = token_confidence(np.array(rollout["logprobs"]), k=SETTINGS["k"])
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-6)
    np.testing.assert_allclose(scored.confidence_RN[question], expected["confidence"], rtol=0, atol=1e-6)
    assert answers(scored, question) == [rollout["answer"] for rollout in given]


@pytest.mark.parametrize("step", range(3))
def test_distribution(computed: Computed, step: int) -> None:
    expected = DATA["expected"][step]
    progressive = computed[step][1].progressive
    assert progressive is not None
    same_mixture(progressive.local, expected["local"])
    same_mixture(progressive.mixture, expected["mixture"])
    assert progressive.pool_size == expected["pool_size"]
    assert progressive.local.midpoint == pytest.approx(expected["midpoint"], abs=1e-4)
    if step == 0:
        assert np.isnan(progressive.shift)
    else:
        assert progressive.shift == pytest.approx(expected["shift"][-1], abs=1e-4)


@pytest.mark.parametrize(("step", "question"), QUESTIONS)
def test_label(computed: Computed, step: int, question: int) -> None:
    expected = DATA["expected"][step]["questions"][question]
    scored, signal = computed[step]
    vote = signal.distrivote
    assert vote is not None
    assert scored.spelling(signal.label_B)[question] == expected["label"]
    assert scored.spelling(signal.vote.majority_R)[question] == expected["majority"]
    assert scored.spelling(vote.rejected_R)[question] == expected["rejected"]
    assert FALLBACKS[vote.fallback_R[question]] == expected["fallback"]
    answered = [answer is not None for answer in answers(scored, question)]
    positives = [side and valid for side, valid in zip(expected["positive"], answered, strict=True)]
    assert vote.n_pos_R[question] == sum(positives)
    assert vote.n_neg_R[question] == sum(answered) - sum(positives)
    assert signal.reward_BG[question].tolist() == expected["reward"]


@pytest.mark.parametrize(("step", "question"), QUESTIONS)
def test_weighted_advantages(computed: Computed, step: int, question: int) -> None:
    expected = DATA["expected"][step]["questions"][question]
    signal = computed[step][1]
    assert signal.trained_BM[question].tolist() == list(range(SETTINGS["n_train"]))
    assert signal.diversity_B[question] == expected["diversity"]
    assert signal.weight_B[question] == pytest.approx(expected["weight"], abs=1e-6)
    np.testing.assert_allclose(
        signal.advantage_BM[question], expected["weighted_advantage"], rtol=0, atol=1e-6
    )


def test_the_example_shows_what_it_is_for() -> None:
    """The cases that README.md promises are in the data, so that a change of it cannot lose them."""
    questions = [question for step in DATA["expected"] for question in step["questions"]]
    later = [question for step in DATA["expected"][1:] for question in step["questions"]]
    assert sum(question["label"] != question["majority"] for question in questions) >= 2
    assert sum(question["rejected"] is not None for question in questions) >= 2
    assert any(question["fallback"] == "no-positives" for question in questions)
    unanimous = [question for question in questions if question["diversity"] == 1]
    assert any(question["positive_vote"] == question["negative_vote"] for question in unanimous)
    assert all(question["positive"] != question["positive_without_shift"] for question in later)
    for name in ("token_confidence", "confidence"):
        assert all(question[name] for question in questions)
    tokens = [
        row
        for step in DATA["input"]
        for q in step["questions"]
        for r in q["rollouts"]
        for row in r["logprobs"]
    ]
    assert any(row.index(max(row)) > 0 and row[0] == min(row) for row in tokens)
    assert any(row.count(-9999.0) == 2 for row in tokens)


def test_the_working_is_the_data() -> None:
    """``three_steps.json`` holds what ``work_out.py`` works out."""
    work = runpy.run_path(str(HERE / "work_out.py"))["work"]
    found = json.loads(json.dumps(work(DATA)))
    assert same(found, DATA["expected"])


def same(found: Any, expected: Any) -> bool:
    """Equal structures whose numbers agree to 1e-9 (another C library may round exp and log elsewhere)."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return bool(abs(found - expected) < 1e-9)
    return bool(found == expected)
