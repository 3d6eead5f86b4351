"""Accuracy of what lies on disk: scored rollout files and the evaluations of runs, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dttrl.analysis.accuracy import UNKNOWN, Accuracy, QuestionScore, summarize_split
from dttrl.analysis.frames import frame
from dttrl.analysis.runs import expand_runs, is_run, read_scores
from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.scoring import SCORED_COLUMNS, ScoredQuestion, read_scored, stored_kind
from dttrl.tables import RolloutFiles
from dttrl.voting.majority import majority as majority_vote


def measure_paths(
    paths: Sequence[Path],
    *,
    ks: Sequence[int] | None = None,
    kind: str | None = None,
    all_steps: bool = False,
    repeats: int = 2000,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Measure each path: a run by its evaluations, anything else as scored rollouts.

    Returns one row per measurement, each estimate with its interval. Of a run the first and the last
    evaluated step are given, or ``all_steps``; a rollout file of several training steps gives one row per
    step. Raises InputError where there are no gold answers.
    """
    found: list[tuple[str, int | None, int, Accuracy]] = []
    for path in expand_runs(paths):
        rows = _run_scores(path, all_steps) if is_run(path) else _file_scores(path, kind, progress)
        for name, split, step, scores, without_gold in rows:
            if not scores:
                raise InputError(f"{name}: no question has a gold answer, so there is no accuracy to compute")
            summary = summarize_split(scores, seed=seed, step=step, split=split, ks=ks, repeats=repeats)
            found.append((name, step, without_gold, summary))
    reached = sorted({k for *_, accuracy in found for k in accuracy.pass_at})
    return frame(
        (
            {
                "name": name,
                "step": step,
                "questions": accuracy.questions,
                "without_gold": without_gold,
                "n_low": accuracy.n_low,
                "n_high": accuracy.n_high,
                "majority_ratio": accuracy.majority_ratio,
                "avg": accuracy.average,
                "maj": accuracy.majority,
                **{f"pass_{k}": accuracy.pass_at.get(k, UNKNOWN) for k in reached},
            }
            for name, step, without_gold, accuracy in found
        ),
        step="Int64",
    )


def question_score(scored: ScoredQuestion) -> QuestionScore | None:
    """Return how a scored question went; None without a gold answer."""
    if scored.gold_class is None:
        return None
    vote = majority_vote(scored.class_G[None, :], scored.confidence_G[None, :])
    winner = int(vote.winner_R[0])
    return QuestionScore(
        query_id=scored.query_id,
        n=len(scored.answers),
        n_correct=scored.n_correct,
        maj_correct=winner >= 0 and winner == scored.gold_class,
        majority_ratio=float(vote.majority_ratio_R[0]),
    )


_Row = tuple[str, str, int | None, list[QuestionScore], int]
"""Name, split ("" for a file), step, scores, number of questions without a gold answer."""


def _run_scores(run: Path, all_steps: bool) -> list[_Row]:
    rows: list[_Row] = []
    for split, scores in read_scores(run).items():
        chosen = list(scores) if all_steps else sorted({min(scores), max(scores)})
        rows += [(f"{run} {split}", split, step, scores[step], 0) for step in chosen]
    if not rows:
        raise InputError(f"{run}: no evaluated question has a gold answer")
    return rows


def _file_scores(path: Path, kind: str | None, progress: Callable[[int], None] | None) -> list[_Row]:
    files = RolloutFiles([path])
    files.require("answer", "gold")
    by_step: dict[int | None, tuple[list[QuestionScore], list[str]]] = {}
    with Grader(kind=kind or stored_kind(files.metadata)) as grader:
        columns = [name for name in SCORED_COLUMNS if name in files.column_names]
        for done, group in enumerate(files.groups(columns), start=1):
            scored = read_scored(group.table, query_id=group.query_id, grader=grader)
            scores, without = by_step.setdefault(group.step, ([], []))
            score = question_score(scored)
            if score is None:
                without.append(group.query_id)
            else:
                scores.append(score)
            if progress is not None:
                progress(done)
    if not by_step:
        raise InputError(f"{path}: holds no rollout")
    return [(str(path), "", step, scores, len(without)) for step, (scores, without) in by_step.items()]
