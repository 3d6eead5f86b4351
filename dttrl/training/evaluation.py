"""How good the policy is: avg@n and maj@n on questions with gold answers, which never reach the labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from dttrl.questions import Question
from dttrl.rng import derive_seed
from dttrl.sampling.base import SampleRequest
from dttrl.schemas import EVALUATIONS
from dttrl.scoring import ScoredQuestion
from dttrl.settings.commands import TrainConfig
from dttrl.settings.sections import Sampling
from dttrl.tables import table_from_columns
from dttrl.voting.majority import majority


def evaluation_settings(config: TrainConfig, split: str) -> Sampling:
    """Return how evaluations sample; the seed differs from training's and by split."""
    changes = {
        "seed": derive_seed(config.sampling.seed, purpose=f"evaluation:{split}"),
        "temperature": config.evaluation.temperature,
        "top_p": config.evaluation.top_p,
        "top_k": 0,
    }
    return config.sampling.model_copy(update=changes)


def evaluation_table(step: int, split: str, scored: Iterable[tuple[Question, ScoredQuestion]]) -> pa.Table:
    """Return rows of EVALUATIONS, one a question with a gold answer."""
    rows = []
    for question, result in scored:
        vote = majority(result.class_G[None, :], result.confidence_G[None, :])
        winner = int(vote.winner_R[0])
        rows.append(
            {
                "step": step,
                "split": split,
                "query_id": question.id,
                "source": question.source,
                "n": len(result.class_G),
                "n_correct": result.n_correct,
                "maj_correct": winner >= 0 and winner == result.gold_class,
                "majority_ratio": float(vote.majority_ratio_R[0]),
                "answer": result.spellings[winner] if winner >= 0 else None,
                "gold": question.answer,
            }
        )
    names = EVALUATIONS.fields.names
    return table_from_columns({name: [row[name] for row in rows] for name in names}, EVALUATIONS.fields)


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


def requests_of(
    questions: Sequence[Question], prompt_ids: Sequence[tuple[int, ...]], n: int, step: int
) -> list[SampleRequest]:
    """Return the requests for n samples of each question at a step."""
    return [
        SampleRequest(question.id, ids, tuple(range(n)), step)
        for question, ids in zip(questions, prompt_ids, strict=True)
    ]
