"""Methods side by side before and after training (tab:main_results): question sets, methods, seeds.

A row is a group of runs on one split. Intervals are percentile bootstraps that draw questions and, where
there are several, runs: they hold both what other questions and what other seeds would have given. The
difference from the baseline is taken seed by seed, because runs of one seed begin alike: same order of the
questions, same random numbers. Axis letters: R runs, Q questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.analysis.accuracy import Estimate, QuestionScore
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.run_summary import WINDOW
from dttrl.analysis.runs import read_metrics, read_scores
from dttrl.errors import InputError
from dttrl.rng import derive

BASELINE = "ttrl"
_NONE = Estimate(math.nan, math.nan, math.nan)
_NAMES = ("before", "after", "change", "against")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ComparisonRow:
    """A group of runs on one split; accuracies are avg@n, in fractions."""

    group: RunGroup
    split: str
    questions: int
    n: str
    """The n of avg@n: "16", or "8-16" where questions differ."""
    first_step: int
    last_step: int
    before: Estimate
    after: Estimate
    change: Estimate
    against: Estimate
    """``after`` minus that of the baseline on the same questions and start; NaN without one.

    Over the seeds that both have; where they share none, of the means of all runs.
    """
    seeds: int
    """Seeds that ``against`` is over; 0: none in common, or no baseline."""
    lowest: float
    highest: float
    """``after`` of the worst and of the best run."""
    maj_before: float
    maj_after: float
    ratio_first: float
    """Majority ratio in training, over the first steps (a mean of up to 5)."""
    ratio_last: float
    label_accuracy: float
    """Over all steps."""


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


def compare(
    groups: Sequence[RunGroup], *, baseline: str = BASELINE, repeats: int = 2000, seed: int = 0
) -> list[ComparisonRow]:
    """Return a row for each group and split; raises InputError for runs without evaluations."""
    cells = [cell for group in groups for cell in _cells(group)]
    peers = {
        (cell.group.questions, cell.group.start, cell.split): cell
        for cell in cells
        if cell.group.label == baseline
    }
    rows = []
    for cell in cells:
        peer = peers.get((cell.group.questions, cell.group.start, cell.split))
        rows.append(_row(cell, None if peer is cell else peer, repeats=repeats, seed=seed))
    return rows


def comparison_frame(rows: Sequence[ComparisonRow]) -> pa.Table:
    """Return one row a (group, split), each estimate with its interval in ``_low`` and ``_high``."""
    records: list[dict[str, Any]] = []
    for row in rows:
        record: dict[str, Any] = {
            "questions": row.group.questions, "start": row.group.start, "method": row.group.label,
            "split": row.split, "n": row.n, "runs": len(row.group.runs), "question_count": row.questions,
            "first_step": row.first_step, "last_step": row.last_step, "against_seeds": row.seeds,
        }  # fmt: skip
        for name in _NAMES:
            estimate: Estimate = getattr(row, name)
            for suffix, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)):
                record[name + suffix] = _null(value)
        for name in (
            "lowest", "highest", "maj_before", "maj_after", "ratio_first", "ratio_last", "label_accuracy",
        ):  # fmt: skip
            record[name] = _null(getattr(row, name))
        records.append(record)
    kinds = dict.fromkeys(("questions", "start", "method", "split", "n"), pa.string())
    counts = ("runs", "question_count", "first_step", "last_step", "against_seeds")
    kinds |= dict.fromkeys(counts, pa.int64())
    fields = [(name, kinds.get(name, pa.float64())) for name in (records[0] if records else ())]
    return pa.Table.from_pylist(records, schema=pa.schema(fields))


def mean_interval(value_RQ: FloatArray, *, rng: np.random.Generator, repeats: int = 2000) -> Estimate:
    """Mean over runs and questions; the interval draws both with replacement (one run: questions only)."""
    if not value_RQ.size:
        return _NONE
    draws = _draws(value_RQ, _weights(value_RQ.shape[1], rng, repeats), rng)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(value_RQ.mean()), float(low), float(high))


def difference_interval(
    one_RQ: FloatArray, two_RQ: FloatArray, *, rng: np.random.Generator, repeats: int = 2000
) -> Estimate:
    """Mean of ``one_RQ`` minus that of ``two_RQ`` over the same questions; runs are drawn on each side.

    For runs that have nothing to do with one another; the interval of runs in pairs is
    :func:`mean_interval` of their differences.
    """
    weight_DQ = _weights(one_RQ.shape[1], rng, repeats)
    draws = _draws(one_RQ, weight_DQ, rng) - _draws(two_RQ, weight_DQ, rng)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(one_RQ.mean() - two_RQ.mean()), float(low), float(high))


def _weights(count: int, rng: np.random.Generator, repeats: int) -> FloatArray:
    return rng.multinomial(count, np.full(count, 1.0 / count), size=repeats) / count


def _draws(value_RQ: FloatArray, weight_DQ: FloatArray, rng: np.random.Generator) -> FloatArray:
    weight_DR = _weights(value_RQ.shape[0], rng, len(weight_DQ))
    draws: FloatArray = np.einsum("dr,rq,dq->d", weight_DR, value_RQ, weight_DQ, optimize=True)
    return draws


def _row(cell: _Cell, peer: _Cell | None, *, repeats: int, seed: int) -> ComparisonRow:
    def rng(purpose: str) -> np.random.Generator:
        return derive(seed, query=cell.split, purpose=f"compare:{purpose}")

    before, after = cell.before.value_RQ, cell.after.value_RQ
    against, seeds = _against(cell, peer, rng=rng("against"), repeats=repeats)
    first, last, accuracy = _training(cell.group.runs)
    per_run_R = after.mean(axis=1)
    return ComparisonRow(
        group=cell.group,
        split=cell.split,
        questions=len(cell.query_Q),
        n=cell.after.n,
        first_step=cell.before.step,
        last_step=cell.after.step,
        before=mean_interval(before, rng=rng("before"), repeats=repeats),
        after=mean_interval(after, rng=rng("after"), repeats=repeats),
        # A run's own start is subtracted before runs and questions are drawn: the two belong together.
        change=mean_interval(after - before, rng=rng("change"), repeats=repeats),
        against=against,
        seeds=seeds,
        lowest=float(per_run_R.min()),
        highest=float(per_run_R.max()),
        maj_before=cell.before.majority,
        maj_after=cell.after.majority,
        ratio_first=first,
        ratio_last=last,
        label_accuracy=accuracy,
    )


def _against(
    cell: _Cell, peer: _Cell | None, *, rng: np.random.Generator, repeats: int
) -> tuple[Estimate, int]:
    """Difference in accuracy after training from the baseline, and how many seeds it is over."""
    if peer is None:
        return _NONE, 0
    query_Q = sorted(set(cell.query_Q) & set(peer.query_Q))
    if not query_Q:
        return _NONE, 0
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
    runs = [_scores(run) for run in group.runs]
    cells = []
    for split in dict.fromkeys(split for scores in runs for _, split in scores):
        steps = set.intersection(*({step for step, name in scores if name == split} for scores in runs))
        if not steps:
            raise InputError(f"{group.title}: its runs share no evaluated step of the {split} questions")
        ends = [[scores[step, split] for scores in runs] for step in (min(steps), max(steps))]
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
    verdicts = [float(score.maj_correct) for score in flat if score.maj_correct is not None]
    low, high = min(score.n for score in flat), max(score.n for score in flat)
    return _Side(
        step,
        np.array([[score.n_correct / score.n for score in scores] for scores in chosen]),
        sum(verdicts) / len(verdicts) if verdicts else math.nan,
        str(low) if low == high else f"{low}-{high}",
    )


def _scores(run: Path) -> dict[tuple[int, str], list[QuestionScore]]:
    scores = read_scores(run)
    if not scores:
        raise InputError(f"{run}: no evaluated question has a gold answer, so there is nothing to compare")
    return scores


def _training(runs: Sequence[Path]) -> tuple[float, float, float]:
    """Majority ratio over the first and the last steps, and label accuracy over all, means over runs."""
    firsts, lasts, labels = [], [], []
    for run in runs:
        records = read_metrics(run)
        window = max(1, min(WINDOW, len(records) // 2))
        firsts.append(_mean(records[:window], "majority_ratio"))
        lasts.append(_mean(records[-window:], "majority_ratio"))
        labels.append(_mean(records, "label_accuracy"))
    first, last, accuracy = (
        float(np.mean(values)) if np.isfinite(values).all() else math.nan
        for values in (firsts, lasts, labels)
    )
    return first, last, accuracy


def _mean(records: Sequence[dict[str, Any]], name: str) -> float:
    known = [float(record[name]) for record in records if isinstance(record.get(name), int | float)]
    finite = [value for value in known if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
