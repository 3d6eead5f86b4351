"""Accuracy of what lies on disk: scored rollout files and the evaluations of runs, as rows of one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dttrl.analysis.accuracy import UNKNOWN, Accuracy, QuestionScore, summarize_split
from dttrl.analysis.frames import frame
from dttrl.analysis.runs import expand_runs, is_run, read_scores
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.method.scored import Scored
from dttrl.method.voting.majority import majority as majority_vote
from dttrl.scoring.score import stored_kind
from dttrl.scoring.scored_files import read_scored


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
