"""Accuracy of what lies on disk: scored rollout files and the evaluations of runs, as rows of one table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dttrl.analysis import majority
from dttrl.analysis.accuracy import Accuracy, QuestionScore, evaluation_scores, summarize_split
from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.schemas import EVALUATIONS
from dttrl.scored import Scored
from dttrl.scored_files import read_scored
from dttrl.scoring import stored_kind
from dttrl.tables import RolloutFiles, read_table
from dttrl.voting.majority import majority as majority_vote


@dataclass(frozen=True)
class Measured:
    """The accuracy of one file, or of one split of a run at one step."""

    name: str
    step: int | None
    accuracy: Accuracy
    without_gold: int = 0


def measure_paths(
    paths: Sequence[Path],
    *,
    ks: Sequence[int] | None = None,
    kind: str | None = None,
    all_steps: bool = False,
    repeats: int = 2000,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Measured]:
    """Measure each path: a run folder by its evaluations, anything else as scored rollouts.

    Of a run the first and the last evaluated step are given, or ``all_steps``. A rollout file of several
    training steps gives one row a step. Raises InputError where there are no gold answers.
    """
    measured: list[Measured] = []
    for path in dict.fromkeys(paths):
        rows = _run_scores(path, all_steps) if majority.is_run(path) else _file_scores(path, kind, progress)
        for name, split, step, scores, without_gold in rows:
            if not scores:
                raise InputError(f"{name}: no question has a gold answer, so there is no accuracy to compute")
            summary = summarize_split(scores, seed=seed, step=step, split=split, ks=ks, repeats=repeats)
            measured.append(Measured(name, step, summary, without_gold))
    return measured


def measured_frame(measured: Sequence[Measured]) -> pa.Table:
    """Return one row a measurement, each number with its interval in ``_low`` and ``_high``."""
    ks = sorted({k for item in measured for k in item.accuracy.pass_at})
    records: list[dict[str, Any]] = []
    for item in measured:
        accuracy = item.accuracy
        record: dict[str, Any] = {
            "name": item.name,
            "step": item.step,
            "questions": accuracy.questions,
            "without_gold": item.without_gold,
            "n_low": accuracy.n_low,
            "n_high": accuracy.n_high,
            "majority_ratio": _null(accuracy.majority_ratio),
        }
        estimates = {"avg": accuracy.average, "maj": accuracy.majority}
        estimates |= {f"pass_{k}": accuracy.pass_at[k] for k in ks if k in accuracy.pass_at}
        for name, estimate in estimates.items():
            record[name] = _null(estimate.value)
            record[f"{name}_low"], record[f"{name}_high"] = _null(estimate.low), _null(estimate.high)
        records.append(record)
    names = ["avg", "maj", *(f"pass_{k}" for k in ks)]
    floats = [(name + end, pa.float64()) for name in names for end in ("", "_low", "_high")]
    integers = [(name, pa.int64()) for name in ("step", "questions", "without_gold", "n_low", "n_high")]
    schema = pa.schema([("name", pa.string()), *integers, ("majority_ratio", pa.float64()), *floats])
    return pa.Table.from_pylist(records, schema=schema)


def question_scores(scored: Scored) -> list[QuestionScore]:
    """Return how scored questions went that have a gold answer."""
    vote = majority_vote(scored.class_RN, scored.confidence_RN)
    n_correct_R, ratio_R = scored.correct_RN.sum(axis=1).tolist(), vote.majority_ratio_R.tolist()
    return [
        QuestionScore(scored.query_id[r], scored.class_RN.shape[1], n_correct_R[r], right, ratio_R[r])
        for r, right in enumerate(scored.correct(vote.winner_R))
        if right is not None
    ]


_Row = tuple[str, str, int | None, list[QuestionScore], int]
"""Name, split ("" for a file), step, scores, number of questions without a gold answer."""


def _run_scores(run: Path, all_steps: bool) -> list[_Row]:
    path = run / majority.EVALUATION_FILE
    if not path.is_file():
        raise InputError(
            f"{run}: the run has no {majority.EVALUATION_FILE}; it had no gold answers to evaluate"
        )
    scores = evaluation_scores(read_table(path, EVALUATIONS))
    rows: list[_Row] = []
    for split in dict.fromkeys(name for _, name in scores):
        steps = [step for step, name in scores if name == split]
        chosen = steps if all_steps else sorted({steps[0], steps[-1]})
        rows += [(f"{run} {split}", split, step, scores[step, split], 0) for step in chosen]
    if not rows:
        raise InputError(f"{path}: no evaluated question has a gold answer")
    return rows


def _file_scores(path: Path, kind: str | None, progress: Callable[[int], None] | None) -> list[_Row]:
    files = RolloutFiles([path])
    files.require("answer", "gold")
    by_step: dict[int | None, list[QuestionScore]] = {}
    without: Counter[int | None] = Counter()
    done = 0
    with Grader(kind=kind or stored_kind(files.metadata)) as grader:
        for scored in read_scored(files, grader=grader):
            scores = question_scores(scored)
            by_step.setdefault(scored.step, []).extend(scores)
            without[scored.step] += len(scored.query_id) - len(scores)
            done += len(scored.query_id)
            if progress is not None:
                progress(done)
    return [(str(path), "", step, scores, without[step]) for step, scores in by_step.items()]


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
