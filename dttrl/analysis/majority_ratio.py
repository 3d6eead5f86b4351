"""Majority ratio and accuracy over the steps of runs (eq:majority_ratio; the paper's reward-hacking figure).

A run gives one curve; runs that differ in nothing but their seed are one group, whose curve is the mean with
a band from the lowest to the highest run. The training votes give ``majority_ratio`` and ``label_accuracy``
of every step; the evaluations give ``accuracy`` (avg@n) and ``maj_accuracy`` of the training questions and
``heldout_accuracy`` and ``heldout_maj_accuracy`` of the held-out ones, at the steps that were evaluated (NaN
elsewhere). Axis letters: R runs of a group, S steps, M measures.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from dttrl.analysis.accuracy import avg_at_n, known_mean
from dttrl.analysis.grouping import telling_labels
from dttrl.analysis.runs import expand_runs, read_config, read_metrics, read_records, read_scores
from dttrl.data.schemas import LABELS
from dttrl.errors import InputError

TITLES = {
    "majority_ratio": "majority ratio",
    "label_accuracy": "label accuracy",
    "diversity_weight": "diversity weight",
    "accuracy": "train avg@n",
    "maj_accuracy": "train maj@n",
    "heldout_accuracy": "heldout avg@n",
    "heldout_maj_accuracy": "heldout maj@n",
}
"""The measures of a curve, and how people are shown them."""
MEASURES = tuple(TITLES)
_VOTES = {
    "majority_ratio": "majority_ratio",
    "label_correct": "label_accuracy",
    "diversity_weight": "diversity_weight",
}
"""The measures of the votes in training, by their column in ``labels.parquet``."""
_SPLIT_PREFIX = {"train": "", "heldout": "heldout_"}


def majority_ratios(runs: Sequence[Path]) -> pd.DataFrame:
    """Return one row per (method, step): number of runs, then mean, lowest and highest of every measure.

    Groups come in order of first appearance. Runs of one method that differ in another setting than the
    seed stay apart, and ``method`` names the settings.
    """
    runs = expand_runs(runs)
    labels = telling_labels([read_config(run) for run in runs])
    members: dict[str, list[pd.DataFrame]] = {}
    for run, label in zip(runs, labels, strict=True):
        members.setdefault(label, []).append(read_curve(run))
    return pd.concat([_group(label, curves) for label, curves in members.items()], ignore_index=True)


def known_measures(frame: pd.DataFrame) -> list[str]:
    """Return the measures that any step has a value of."""
    return [name for name in MEASURES if frame[name].notna().any()]


def read_curve(run: Path) -> pd.DataFrame:
    """Return the measures of a run, finished or still running, a row per step with the step as index."""
    by_step: dict[int, dict[str, float]] = {}
    for record in read_metrics(run):
        by_step[int(record["step"])] = {name: _number(record.get(name)) for name in _VOTES.values()}
    labels = None if by_step else read_records(run, LABELS)
    if labels is not None:
        by_step = _from_labels(labels)
    evaluated = read_scores(run)
    for split, prefix in _SPLIT_PREFIX.items():
        for step, scores in evaluated.get(split, {}).items():
            values = by_step.setdefault(step, {})
            values[f"{prefix}accuracy"] = avg_at_n([s.n_correct for s in scores], [s.n for s in scores])
            values[f"{prefix}maj_accuracy"] = known_mean(score.maj_correct for score in scores)
    if not by_step:
        raise InputError(
            f"{run}: the run has no finished step yet (metrics.jsonl and evaluations.parquet are empty)"
        )
    return pd.DataFrame.from_dict(by_step, orient="index").reindex(columns=list(MEASURES)).sort_index()


def _from_labels(table: pa.Table) -> dict[int, dict[str, float]]:
    rows: dict[int, list[dict[str, float]]] = {}
    for row in table.select(["step", *_VOTES]).to_pylist():
        rows.setdefault(row["step"], []).append(row)
    return {
        step: {name: known_mean(row[column] for row in group) for column, name in _VOTES.items()}
        for step, group in rows.items()
    }


def _group(label: str, curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    step_S = np.unique(np.concatenate([curve.index.to_numpy() for curve in curves]))
    value_RSM = np.stack([curve.reindex(step_S).to_numpy(dtype=np.float64) for curve in curves])
    count_S = np.sum([np.isin(step_S, curve.index) for curve in curves], axis=0)
    columns = {"method": label, "step": step_S, "runs": count_S}
    with warnings.catch_warnings():  # steps that were not evaluated are NaN in every run
        warnings.simplefilter("ignore", category=RuntimeWarning)
        for suffix, part in (("", np.nanmean), ("_low", np.nanmin), ("_high", np.nanmax)):
            part_SM = part(value_RSM, axis=0)
            columns |= {name + suffix: part_SM[:, m] for m, name in enumerate(MEASURES)}
    order = [name + suffix for name in MEASURES for suffix in ("", "_low", "_high")]
    return pd.DataFrame(columns)[["method", "step", "runs", *order]]


def _number(value: object) -> float:
    return float(value) if isinstance(value, (bool, int, float)) else math.nan
