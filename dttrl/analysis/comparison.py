"""Methods side by side before and after training (tab:main_results): question sets, methods, seeds.

A row is a group of runs on one split. Intervals are percentile bootstraps that draw questions and, where
there are several, runs: they hold both what other questions and what other seeds would have given. The
difference from the baseline is taken seed by seed, because runs of one seed begin alike: same order of the
questions, same random numbers. Axis letters: R runs, Q questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dttrl.analysis.accuracy import UNKNOWN, Estimate, QuestionScore, known_mean, n_label
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.run_summary import WINDOW
from dttrl.analysis.runs import read_metrics, read_scores
from dttrl.errors import InputError
from dttrl.rng import derive

BASELINE = "ttrl"
COLUMNS = {
    "n": "The n of avg@n: 16, or 8-16 where questions differ.",
    "against_seeds": "Seeds that ``against`` is over; 0: none in common, or no baseline.",
    "before": "avg@n at the first evaluation that all runs have, as a fraction.",
    "after": "The same at the last.",
    "change": "``after`` minus ``before``.",
    "against": "``after`` minus that of the baseline on the same questions and start; NaN without one. "
    "Over the seeds that both have; where they share none, of the means of all runs.",
    "lowest": "``after`` of the worst run.",
    "highest": "``after`` of the best run.",
    "ratio_first": "Majority ratio in training, over the first steps (a mean of up to 5).",
    "ratio_last": "The same over the last steps.",
    "label_accuracy": "Over all steps.",
}
"""What the columns of the table mean, where the name does not say it."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Side:
    """avg@n of every run and question at one evaluated step, with its majority accuracy."""

    step: int
    value_RQ: FloatArray
    majority: float
    n: str


@dataclass(frozen=True)
class _Cell:
    group: RunGroup
    split: str
    query_Q: tuple[str, ...]
    before: _Side
    after: _Side

    @property
    def place(self) -> tuple[str, str, str]:
        """What the cells of a baseline and of its rivals have in common."""
        return self.group.questions, self.group.start, self.split


def compare(
    groups: Sequence[RunGroup], *, baseline: str = BASELINE, repeats: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Return a row for each group and split (:data:`COLUMNS`), each estimate with its interval.

    Raises InputError for runs without evaluations.
    """
    cells = [cell for group in groups for cell in _cells(group)]
    peers = {cell.place: cell for cell in cells if cell.group.label == baseline}
    rows = []
    for cell in cells:
        peer = peers.get(cell.place)
        rows.append(_row(cell, None if peer is cell else peer, repeats=repeats, seed=seed))
    return frame(rows)


def mean_interval(value_RQ: FloatArray, *, rng: np.random.Generator, repeats: int = 2000) -> Estimate:
    """Mean over runs and questions; the interval draws both with replacement (one run: questions only)."""
    if not value_RQ.size:
        return UNKNOWN
    draws = _draws(value_RQ, _weights(value_RQ.shape[1], rng, repeats), rng)
    return Estimate.of_draws(value_RQ.mean(), draws)


def difference_interval(
    one_RQ: FloatArray, two_RQ: FloatArray, *, rng: np.random.Generator, repeats: int = 2000
) -> Estimate:
    """Mean of ``one_RQ`` minus that of ``two_RQ`` over the same questions; runs are drawn on each side.

    For runs that have nothing to do with one another; the interval of runs in pairs is
    :func:`mean_interval` of their differences.
    """
    weight_DQ = _weights(one_RQ.shape[1], rng, repeats)
    draws = _draws(one_RQ, weight_DQ, rng) - _draws(two_RQ, weight_DQ, rng)
    return Estimate.of_draws(one_RQ.mean() - two_RQ.mean(), draws)


def _weights(count: int, rng: np.random.Generator, repeats: int) -> FloatArray:
    return rng.multinomial(count, np.full(count, 1.0 / count), size=repeats) / count


def _draws(value_RQ: FloatArray, weight_DQ: FloatArray, rng: np.random.Generator) -> FloatArray:
    weight_DR = _weights(value_RQ.shape[0], rng, len(weight_DQ))
    draws: FloatArray = np.einsum("dr,rq,dq->d", weight_DR, value_RQ, weight_DQ, optimize=True)
    return draws


def _row(cell: _Cell, peer: _Cell | None, *, repeats: int, seed: int) -> dict[str, Any]:
    def rng(purpose: str) -> np.random.Generator:
        return derive(seed, query=cell.split, purpose=f"compare:{purpose}")

    before, after = cell.before.value_RQ, cell.after.value_RQ
    against, seeds = _against(cell, peer, rng=rng("against"), repeats=repeats)
    first, last, accuracy = _training(cell.group.runs)
    return {
        **cell.group.columns,
        "split": cell.split,
        "n": cell.after.n,
        "runs": len(cell.group.runs),
        "question_count": len(cell.query_Q),
        "first_step": cell.before.step,
        "last_step": cell.after.step,
        "against_seeds": seeds,
        "before": mean_interval(before, rng=rng("before"), repeats=repeats),
        "after": mean_interval(after, rng=rng("after"), repeats=repeats),
        # A run's own start is subtracted before runs and questions are drawn: the two belong together.
        "change": mean_interval(after - before, rng=rng("change"), repeats=repeats),
        "against": against,
        "lowest": after.mean(axis=1).min(),
        "highest": after.mean(axis=1).max(),
        "maj_before": cell.before.majority,
        "maj_after": cell.after.majority,
        "ratio_first": first,
        "ratio_last": last,
        "label_accuracy": accuracy,
    }


def _against(
    cell: _Cell, peer: _Cell | None, *, rng: np.random.Generator, repeats: int
) -> tuple[Estimate, int]:
    """Difference in accuracy after training from the baseline, and how many seeds it is over."""
    query_Q = sorted(set(cell.query_Q) & set(peer.query_Q)) if peer is not None else []
    if peer is None or not query_Q:
        return UNKNOWN, 0
    one_RQ, two_RQ = _of_questions(cell, query_Q), _of_questions(peer, query_Q)
    one, two = _by_seed(cell.group, one_RQ), _by_seed(peer.group, two_RQ)
    shared = [seed for seed in one if seed in two]
    if not shared:
        return difference_interval(one_RQ, two_RQ, rng=rng, repeats=repeats), 0
    difference_SQ = np.stack([one[seed] - two[seed] for seed in shared])
    return mean_interval(difference_SQ, rng=rng, repeats=repeats), len(shared)


def _of_questions(cell: _Cell, query_Q: Sequence[str]) -> FloatArray:
    return cell.after.value_RQ[:, [cell.query_Q.index(query) for query in query_Q]]


def _by_seed(group: RunGroup, value_RQ: FloatArray) -> dict[int, FloatArray]:
    """Return the values (Q,) of each seed, the mean of its runs."""
    runs: dict[int, list[FloatArray]] = {}
    for seed, value_Q in zip(group.seeds, value_RQ, strict=True):
        runs.setdefault(seed, []).append(value_Q)
    return {seed: np.mean(values, axis=0) for seed, values in runs.items()}


def _cells(group: RunGroup) -> list[_Cell]:
    runs = [read_scores(run) for run in group.runs]
    if not all(runs):
        run = group.runs[runs.index({})]
        raise InputError(f"{run}: no evaluated question has a gold answer, so there is nothing to compare")
    cells = []
    for split in dict.fromkeys(split for scores in runs for split in scores):
        by_step_R = [scores.get(split, {}) for scores in runs]
        steps = set.intersection(*(set(by_step) for by_step in by_step_R))
        if not steps:
            raise InputError(f"{group.title}: its runs share no evaluated step of the {split} questions")
        ends = [[by_step[step] for by_step in by_step_R] for step in (min(steps), max(steps))]
        shared = set.intersection(*({score.query_id for score in one} for end in ends for one in end))
        if not shared:
            raise InputError(f"{group.title}: its runs share no {split} question")
        query_Q = tuple(sorted(shared))
        sides = [_side(step, end, query_Q) for step, end in zip((min(steps), max(steps)), ends, strict=True)]
        cells.append(_Cell(group, split, query_Q, *sides))
    return cells


def _side(step: int, runs: Sequence[Sequence[QuestionScore]], query_Q: Sequence[str]) -> _Side:
    found = [{score.query_id: score for score in scores} for scores in runs]
    chosen = [[by_id[query] for query in query_Q] for by_id in found]
    flat = [score for scores in chosen for score in scores]
    low, high = min(score.n for score in flat), max(score.n for score in flat)
    return _Side(
        step,
        np.array([[score.n_correct / score.n for score in scores] for scores in chosen]),
        known_mean(score.maj_correct for score in flat),
        n_label(low, high),
    )


def _training(runs: Sequence[Path]) -> list[float]:
    """Majority ratio over the first and the last steps, and label accuracy over all, means over runs."""
    values = []
    for run in runs:
        records = read_metrics(run)
        window = max(1, min(WINDOW, len(records) // 2))
        ratios, labels = (
            [record.get(name) for record in records] for name in ("majority_ratio", "label_accuracy")
        )
        values.append([known_mean(ratios[:window]), known_mean(ratios[-window:]), known_mean(labels)])
    return [float(np.mean(value_R)) for value_R in zip(*values, strict=True)]
