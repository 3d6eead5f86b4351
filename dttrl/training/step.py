"""What a training step does between sampling and update, whatever engine samples and updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dttrl.answers.grading import Grader
from dttrl.confidence import Region
from dttrl.questions import Question
from dttrl.rollouts import Rollout
from dttrl.scoring import ScoredQuestion, score_question
from dttrl.settings.commands import TrainConfig
from dttrl.training import records
from dttrl.training.run_folder import RunFolder
from dttrl.training_signal import ScoredBatch, TrainingSignal


@dataclass(frozen=True, slots=True)
class Step:
    """The questions of a step with their rollouts (in sample order), scores and the signal made of them."""

    questions: Sequence[Question]
    rollouts: Sequence[Sequence[Rollout]]
    scored: Sequence[ScoredQuestion]
    batch: ScoredBatch
    signal: TrainingSignal


def score_rollouts(
    config: TrainConfig, grader: Grader, rollouts: Sequence[Rollout], question: Question
) -> ScoredQuestion:
    """Return answers, classes and confidences of one question's rollouts, as a run is configured."""
    return score_question(
        rollouts,
        gold=question.answer,
        grader=grader.for_source(question.source, question.id),
        region=Region.parse(config.scoring.region),
        measure=config.scoring.measure,
        last_number=config.scoring.last_number,
    )


def record_step(folder: RunFolder, config: TrainConfig, step: Step) -> None:
    """Write the rollouts and labels of a step, and add what entered the history."""
    if config.keeping.keep_rollouts:
        table = records.rollout_table(
            step.rollouts, step.questions, step.scored, step.signal, keep_tokens=config.keeping.keep_tokens
        )
        folder.write_rollouts(step.batch.step, table)
    folder.add_table("labels", records.label_table(step.batch, step.questions, step.scored, step.signal))
    history = records.history_table(step.batch, step.questions, step.signal, config.signal)
    if history is not None:
        folder.add_table("history", history)
    folder.flush("labels")
