"""How good the policy is: avg@n and maj@n on questions with gold answers, which never reach the labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dttrl.data.questions import Question
from dttrl.data.schemas import EVALUATIONS
from dttrl.data.tables import table_from_columns
from dttrl.method.scored import Scored
from dttrl.method.voting.majority import majority
from dttrl.rng import derive_seed
from dttrl.settings.commands import TrainConfig
from dttrl.settings.sections import Sampling


def evaluation_settings(config: TrainConfig, split: str) -> Sampling:
    """Return how evaluations sample; the seed differs from training's and by split."""
    changes = {
        "seed": derive_seed(config.sampling.seed, purpose=f"evaluation:{split}"),
        "temperature": config.evaluation.temperature,
        "top_p": config.evaluation.top_p,
        "top_k": 0,
    }
    return config.sampling.model_copy(update=changes)


def evaluation_table(step: int, split: str, scored: Scored) -> pa.Table:
    """Return rows of EVALUATIONS, one a question; all have a gold answer."""
    vote = majority(scored.class_RN, scored.confidence_RN)
    n_questions, n_rollouts = scored.class_RN.shape
    columns = {
        "step": [step] * n_questions,
        "split": [split] * n_questions,
        "query_id": scored.query_id,
        "source": scored.source,
        "n": [n_rollouts] * n_questions,
        "n_correct": scored.correct_RN.sum(axis=1),
        "maj_correct": scored.correct(vote.winner_R),
        "majority_ratio": vote.majority_ratio_R,
        "answer": scored.spelling(vote.winner_R),
        "gold": scored.gold,
    }
    return table_from_columns(columns, EVALUATIONS.fields)


def evaluation_summary(table: pa.Table) -> dict[str, float | int]:
    """Return avg@n, maj@n and the majority ratio over the questions of one evaluation."""
    n = np.asarray(table["n"], dtype=np.float64)
    most = int(n.max(initial=0))
    correct = np.asarray(table["n_correct"], dtype=np.float64)
    return {
        "questions": table.num_rows,
        f"avg@{most}": float((correct / n).mean()),
        f"maj@{most}": float(np.asarray(table["maj_correct"], dtype=np.float64).mean()),
        "majority_ratio": float(np.asarray(table["majority_ratio"], dtype=np.float64).mean()),
    }


def graded_questions(splits: Mapping[str, list[Question]]) -> dict[str, list[Question]]:
    """Return the questions that are evaluated, those with gold answers, by split; no split is empty."""
    found = {split: [q for q in questions if q.answer is not None] for split, questions in splits.items()}
    return {split: questions for split, questions in found.items() if questions}
