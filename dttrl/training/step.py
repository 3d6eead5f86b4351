"""A training step between sampling and update: scored, labelled, and as rows of the run's tables.

The same for every engine that samples and updates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from dttrl.answers.grading import Grader
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout, rollouts_to_table
from dttrl.data.schemas import HISTORY, LABELS, ROLLOUTS
from dttrl.data.tables import table_from_columns
from dttrl.method.measure_choice import Evidence, MeasuredPast, Past
from dttrl.method.scored import Scored
from dttrl.method.training_signal import TrainingSignal, training_signal
from dttrl.scoring.score import score_rollouts
from dttrl.scoring.vote import vote_columns
from dttrl.settings.commands import TrainConfig
from dttrl.settings.sections import Scoring
from dttrl.training.metrics import Metrics, evidence_metrics, rollout_metrics, step_metrics
from dttrl.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """The questions of a step with their rollouts (in sample order), scores and the signal made of them."""

    questions: Sequence[Question]
    rollouts: Sequence[Sequence[Rollout]]
    scored: Scored
    signal: TrainingSignal
    grader_unknown: int
    """Pairs of answers that the grader could not decide."""
    evidence: Sequence[Evidence] = ()
    """Where the measure is chosen: what speaks for each candidate."""

    def metrics(self, total: int) -> Metrics:
        """Return the step's part of its line in ``metrics.jsonl``; ``total`` counts the run's steps."""
        return {
            "step": self.scored.step,
            "total_steps": total,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            **step_metrics(self.scored, self.signal),
            **rollout_metrics(self.rollouts),
            **evidence_metrics(self.evidence),
            "grader_unknown": self.grader_unknown,
        }


class Clock:
    """Seconds of the phases of a step, under the names of ``metrics.jsonl``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End a phase, which began with the end of the one before."""
        now = time.perf_counter()
        self.seconds[f"seconds_{name}"] = round(now - self._last, 4)
        self._last = now


def label_step(
    questions: Sequence[Question],
    rollouts: Sequence[Sequence[Rollout]],
    history: Past,
    config: TrainConfig,
    grader: Grader,
    clock: Clock,
    *,
    unknown: int | None = None,
) -> tuple[LabelledStep, Past]:
    """Score the rollouts of a step and make its training signal; returns the next history with it.

    ``unknown`` is what the grader had not decided before the step, where it has seen these rollouts already.
    """
    before = grader.counters["unknown"] if unknown is None else unknown
    # With a range every step is as wide, whether or not a question took all it may: so is its replay.
    width = None if config.signal.until is None else config.signal.votes
    scored = score_questions(questions, rollouts, config.scoring, grader, width=width)
    undecided = grader.counters["unknown"] - before
    clock.lap("score")
    evidence: list[Evidence] = []
    if scored.candidates:
        scored, evidence, history = MeasuredPast.of(history).settle(scored)
    memory = history.memory if isinstance(history, MeasuredPast) else history
    signal, memory = training_signal(scored, memory, config.signal)
    history = replace(history, memory=memory) if isinstance(history, MeasuredPast) else memory
    clock.lap("label")
    return LabelledStep(questions, rollouts, scored, signal, undecided, evidence), history


def score_questions(
    questions: Sequence[Question],
    rollouts: Sequence[Sequence[Rollout]],
    scoring: Scoring,
    grader: Grader,
    *,
    width: int | None = None,
) -> Scored:
    """Return answers, classes and confidences of the questions' rollouts, in arrays of so many columns."""
    golds, sources = [q.answer for q in questions], [q.source for q in questions]
    return score_rollouts(rollouts, scoring, grader, golds=golds, sources=sources, width=width)


def record_step(folder: RunFolder, config: TrainConfig, step: LabelledStep) -> None:
    """Write the rollouts and labels of a step, and add what entered the history."""
    if config.keeping.keep_rollouts:
        assert step.scored.step is not None
        folder.write_rollouts(step.scored.step, rollout_table(step, keep_tokens=config.keeping.keep_tokens))
    folder.add_table("labels", label_table(step.scored, step.signal))
    if config.signal.row.history and step.signal.progressive is not None:
        folder.add_table("history", history_table(step.scored, step.signal))
    folder.flush("labels")


def rollout_table(step: LabelledStep, *, keep_tokens: bool) -> pa.Table:
    """Return the rollouts of a step with answers, confidences, labels, rewards and advantages."""
    signal, order = step.signal, _by_id(step.scored)
    scored = step.scored.take(order)
    by_id = {question.id: question for question in step.questions}
    table = rollouts_to_table(
        [rollout for b in order for rollout in step.rollouts[b]], by_id, keep_tokens=keep_tokens
    )
    drawn_BG = scored.drawn_RN
    advantage_BG = np.full(signal.reward_BG.shape, np.nan)
    np.put_along_axis(advantage_BG, signal.trained_BM, signal.advantage_BM, axis=1)
    trained_BG = np.zeros(signal.reward_BG.shape, dtype=bool)
    np.put_along_axis(trained_BG, signal.trained_BM, True, axis=1)
    labels = _labels(step.scored, signal)
    columns = {
        "answer": scored.rows["answer"],
        "answer_source": scored.rows["answer_source"],
        "answer_class": scored.class_RN[drawn_BG],
        "confidence": _finite(scored.confidence_RN[drawn_BG]),
        "pseudo_label": [labels[b] for b in order for _ in step.rollouts[b]],
        "reward": signal.reward_BG[order][drawn_BG],
        "advantage": _finite(advantage_BG[order][drawn_BG]),
        "diversity_weight": np.repeat(signal.weight_B[order], scored.n_drawn_R),
        "trained": trained_BG[order][drawn_BG],
    }
    for name, values in columns.items():
        field = ROLLOUTS.fields.field(name)
        table = table.append_column(
            field, values if isinstance(values, pa.ChunkedArray) else pa.array(values, field.type)
        )
    return table


def label_table(scored: Scored, signal: TrainingSignal) -> pa.Table:
    """Return the labels of a step, one row a question, as rows of LABELS."""
    correct = scored.correct(signal.label_B)
    if signal.by_gold:
        # The gold answer cannot be a wrong label: where no rollout gave it there is just no label.
        correct = [right or None for right in correct]
    columns = vote_columns(scored, signal.vote, signal.distrivote, signal.probability_B) | {
        "label": _labels(scored, signal),
        "label_class": signal.label_B,
        "label_correct": correct,
        "majority_answer": scored.spelling(signal.vote.majority_R),
        "diversity": signal.diversity_B,
        "diversity_weight": signal.weight_B,
        "reward_mean": np.take_along_axis(signal.reward_BG, signal.trained_BM, axis=1).mean(axis=1),
    }
    return table_from_columns(columns, LABELS.fields)


def history_table(scored: Scored, signal: TrainingSignal) -> pa.Table:
    """Return the confidences that entered the history as rows of HISTORY."""
    assert signal.progressive is not None
    assert signal.entered_BG is not None
    order = _by_id(scored)
    drawn_BG = scored.take(order).drawn_RN
    question_P, sample_P = np.nonzero(drawn_BG)
    return table_from_columns(
        {
            "step": [scored.step] * len(sample_P),
            "query_id": [scored.query_id[order[b]] for b in question_P.tolist()],
            "sample_id": sample_P,
            "confidence": signal.entered_BG[order][drawn_BG],
            "midpoint": [signal.progressive.local.midpoint] * len(sample_P),
        },
        HISTORY.fields,
    )


def _by_id(scored: Scored) -> list[int]:
    return sorted(range(len(scored.query_id)), key=lambda b: scored.query_id[b])


def _labels(scored: Scored, signal: TrainingSignal) -> Sequence[str | None]:
    """How the pseudo-labels are written: the spelling of each one's class, or the gold answer itself."""
    return scored.gold if signal.by_gold else scored.spelling(signal.label_B)


def _finite(values: np.ndarray) -> pa.Array:
    """Return numbers with null for what is not finite."""
    return pa.array(values, mask=~np.isfinite(values))
