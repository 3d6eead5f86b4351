"""A finished step as rows of the run's tables: rollouts, labels, history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from dttrl.methods import Signal
from dttrl.questions import Question
from dttrl.rollouts import Rollout, rollouts_to_table
from dttrl.schemas import HISTORY, LABELS, ROLLOUTS
from dttrl.scoring import ScoredQuestion
from dttrl.tables import table_from_columns
from dttrl.training_signal import ScoredBatch, TrainingSignal
from dttrl.voting.distrivoting import FALLBACKS


def rollout_table(
    rollouts: Sequence[Sequence[Rollout]],
    questions: Sequence[Question],
    scored: Sequence[ScoredQuestion],
    signal: TrainingSignal,
    *,
    keep_tokens: bool,
) -> pa.Table:
    """Return the rollouts of a step with answers, confidences, labels, rewards and advantages."""
    order = sorted(range(len(questions)), key=lambda b: questions[b].id)
    by_id = {question.id: question for question in questions}
    table = rollouts_to_table(
        [rollout for b in order for rollout in rollouts[b]], by_id, keep_tokens=keep_tokens
    )
    n_votes = signal.reward_BG.shape[1]
    advantage_BG = np.zeros(signal.reward_BG.shape)
    np.put_along_axis(advantage_BG, signal.trained_BM, signal.advantage_BM, axis=1)
    trained_BG = np.zeros(signal.reward_BG.shape, dtype=bool)
    np.put_along_axis(trained_BG, signal.trained_BM, True, axis=1)
    columns: dict[str, Sequence[object]] = {
        "answer": [answer for b in order for answer in scored[b].answers],
        "answer_source": [source for b in order for source in scored[b].sources],
        "answer_class": [int(value) for b in order for value in scored[b].class_G],
        "confidence": [_number(value) for b in order for value in scored[b].confidence_G],
        "pseudo_label": [label_of(scored[b], signal, b) for b in order for _ in range(n_votes)],
        "reward": signal.reward_BG[order].ravel().tolist(),
        "advantage": [
            float(value) if trained else None
            for value, trained in zip(advantage_BG[order].flat, trained_BG[order].flat, strict=True)
        ],
        "diversity_weight": [float(signal.weight_B[b]) for b in order for _ in range(n_votes)],
        "trained": trained_BG[order].ravel().tolist(),
    }
    for name, values in columns.items():
        field = ROLLOUTS.fields.field(name)
        table = table.append_column(field, pa.array(values, field.type))
    return table


def label_table(
    batch: ScoredBatch,
    questions: Sequence[Question],
    scored: Sequence[ScoredQuestion],
    signal: TrainingSignal,
) -> pa.Table:
    """Return the labels of a step, one row a question, as rows of LABELS."""
    vote = signal.vote
    n_questions, n_votes = batch.class_BG.shape
    reward_BM = np.take_along_axis(signal.reward_BG, signal.trained_BM, axis=1)
    columns: dict[str, Sequence[object]] = {
        "step": [batch.step] * n_questions,
        "query_id": [question.id for question in questions],
        "label": [label_of(scored[b], signal, b) for b in range(n_questions)],
        "label_class": vote.winner_R.tolist(),
        "gold": [question.answer for question in questions],
        "label_correct": [_is_correct(result, signal, b) for b, result in enumerate(scored)],
        "majority_answer": [
            result.spellings[c] if c >= 0 else None for c, result in zip(vote.majority_R, scored, strict=True)
        ],
        "n": [n_votes] * n_questions,
        "n_valid": vote.n_valid_R.tolist(),
        "majority_ratio": vote.majority_ratio_R.tolist(),
        "label_ratio": vote.label_ratio_R.tolist(),
        "tie": vote.tie_R.tolist(),
        "diversity": signal.diversity_B.tolist(),
        "diversity_weight": signal.weight_B.tolist(),
        "reward_mean": reward_BM.mean(axis=1).tolist(),
    }
    columns |= _filter_columns(signal, scored, n_questions)
    schema = LABELS.select(columns)
    return table_from_columns({name: list(columns[name]) for name in schema.names}, schema)


def history_table(
    batch: ScoredBatch, questions: Sequence[Question], signal: TrainingSignal, settings: Signal
) -> pa.Table | None:
    """Return the confidences that entered the history as rows of HISTORY; None where no history is kept."""
    if not settings.row.history or signal.progressive is None or signal.entered_BG is None:
        return None
    n_votes = batch.class_BG.shape[1]
    order = sorted(range(len(questions)), key=lambda b: questions[b].id)
    size = len(order) * n_votes
    return table_from_columns(
        {
            "step": [batch.step] * size,
            "query_id": [questions[b].id for b in order for _ in range(n_votes)],
            "sample_id": list(range(n_votes)) * len(order),
            "confidence": signal.entered_BG[order].ravel(),
            "midpoint": [signal.progressive.local.midpoint] * size,
        },
        HISTORY.fields,
    )


def label_of(scored: ScoredQuestion, signal: TrainingSignal, b: int) -> str | None:
    """Return how a question's pseudo-label is written: its class's spelling, or the gold answer itself."""
    if signal.by_gold:
        return scored.gold
    label = int(signal.label_B[b])
    return scored.spellings[label] if label >= 0 else None


def _is_correct(scored: ScoredQuestion, signal: TrainingSignal, b: int) -> bool | None:
    """Whether a label is right; None without gold, and where the gold label was given by no rollout."""
    label = int(signal.label_B[b])
    if scored.gold_class is None or (signal.by_gold and label < 0):
        return None
    return label >= 0 and label == scored.gold_class


def _filter_columns(
    signal: TrainingSignal, scored: Sequence[ScoredQuestion], n_questions: int
) -> Mapping[str, Sequence[object]]:
    distri, progressive = signal.distrivote, signal.progressive
    names = ("n_pos", "n_neg", "rejected", "fallback", "mean_neg", "std_neg", "mean_pos", "std_pos")
    if distri is None or progressive is None:
        return {name: [None] * n_questions for name in names if name in LABELS.fields.names}
    mixture = progressive.mixture
    columns: dict[str, Sequence[object]] = {
        "n_pos": distri.n_pos_R.tolist(),
        "n_neg": distri.n_neg_R.tolist(),
        "rejected": [
            result.spellings[c] if c >= 0 else None
            for c, result in zip(distri.rejected_R, scored, strict=True)
        ],
        "fallback": [FALLBACKS[f] or None for f in distri.fallback_R],
    }
    for name in ("mean_neg", "std_neg", "mean_pos", "std_pos"):
        columns[name] = [_number(getattr(mixture, name))] * n_questions
    return {name: values for name, values in columns.items() if name in LABELS.fields.names}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
