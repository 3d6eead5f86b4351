"""Majority ratio and accuracy over the steps of runs (eq:majority_ratio; the paper's reward-hacking figure).

A run folder gives one curve; runs that differ in nothing but their seed are one group, whose curve is the
mean with a band from the lowest to the highest run. The training votes give ``majority_ratio`` and
``label_accuracy`` of every step; the evaluations give ``accuracy`` (avg@n) and ``maj_accuracy`` of the
training questions and ``heldout_accuracy`` and ``heldout_maj_accuracy`` of the held-out ones, at the steps
that were evaluated (NaN elsewhere). Axis letters: S steps, R runs of a group.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.analysis.accuracy import avg_at_n, evaluation_scores, maj_at_n
from dttrl.errors import InputError
from dttrl.schemas import EVALUATIONS, LABELS
from dttrl.settings.commands import TrainConfig, with_defaults
from dttrl.tables import read_table
from dttrl.validation import one_line

CONFIG, METRICS, LABEL_FILE, EVALUATION_FILE = (
    "config.yaml", "metrics.jsonl", "labels.parquet", "evaluations.parquet",
)  # fmt: skip
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
_SPLIT_PREFIX = {"train": "", "heldout": "heldout_"}

# Settings that say where and how long a run ran, not what it did: runs that differ only here are one group.
INCIDENTAL = frozenset({
    "seed", "run", "device", "threads", "batch_size", "checkpoint_every", "keep_tokens", "keep_rollouts",
})  # fmt: skip


@dataclass(frozen=True)
class RunCurve:
    """One run: its steps, ascending, and one value a step for each of ``MEASURES``."""

    path: Path
    method: str
    settings: Mapping[str, Any]
    step_S: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class GroupCurve:
    """Runs of one method: mean, lowest and highest over the runs that have the step, and how many do."""

    label: str
    runs: tuple[Path, ...]
    step_S: NDArray[np.int64]
    count_S: NDArray[np.int64]
    mean: Mapping[str, NDArray[np.float64]]
    low: Mapping[str, NDArray[np.float64]]
    high: Mapping[str, NDArray[np.float64]]

    def knows(self, name: str) -> bool:
        """Whether any step has a value of this measure."""
        return bool(np.isfinite(self.mean[name]).any())


def is_run(path: Path) -> bool:
    """Whether ``path`` is the folder of a training run."""
    return (path / CONFIG).is_file()


def read_config(run: Path) -> dict[str, Any]:
    """Return the resolved settings of a run as plain data; those younger than the run at their defaults."""
    import yaml

    path = run / CONFIG
    if run.is_file():
        raise InputError(f"{run}: is a file, not a run folder; name the folder that dttrl train made")
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder")
    if not path.is_file():
        raise InputError(f"{run}: not a run folder, it has no {CONFIG}")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as YAML ({one_line(error)})") from error
    if not isinstance(settings, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(settings).__name__}")
    return with_defaults(TrainConfig, settings)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return one record a step, ascending; the last record of a step counts, a cut last line is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    records: dict[int, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            records[int(record["step"])] = record
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # the run was killed, or is writing it now
                break
            raise InputError(f"{path}: line {number} is not a JSON object with a step") from error
    return [records[step] for step in sorted(records)]


def read_run(run: Path) -> RunCurve:
    """Read the curve of one run folder, finished or still running."""
    settings = read_config(run)
    by_step: dict[int, dict[str, float]] = {}
    for record in read_metrics(run):
        names = ("majority_ratio", "label_accuracy", "diversity_weight")
        by_step[int(record["step"])] = {name: _number(record.get(name)) for name in names}
    if not by_step and (run / LABEL_FILE).is_file():
        by_step = _from_labels(read_table(run / LABEL_FILE, LABELS))
    if (run / EVALUATION_FILE).is_file():
        for step, values in _from_evaluations(read_table(run / EVALUATION_FILE, EVALUATIONS)).items():
            by_step.setdefault(step, {}).update(values)
    if not by_step:
        raise InputError(
            f"{run}: the run has no finished step yet ({METRICS} and {EVALUATION_FILE} are empty)"
        )
    steps = sorted(by_step)
    return RunCurve(
        path=run,
        method=str(settings["method"]),
        settings=settings,
        step_S=np.asarray(steps, dtype=np.int64),
        values={name: np.asarray([by_step[step].get(name, math.nan) for step in steps]) for name in MEASURES},
    )


def group_runs(curves: Sequence[RunCurve]) -> list[GroupCurve]:
    """Group runs over seeds, in order of first appearance.

    Runs of one method that differ in another setting stay apart, and the label names the settings.
    """
    members: dict[str, list[RunCurve]] = {}
    for curve in curves:
        members.setdefault(_label(curve, curves), []).append(curve)
    return [_mean(label, group) for label, group in members.items()]


def frame(groups: Sequence[GroupCurve]) -> pa.Table:
    """Return one row a (method, step): number of runs, then mean, lowest and highest of every measure."""
    columns: dict[str, list[Any]] = {"method": [], "step": [], "runs": []}
    for name in MEASURES:
        for suffix in ("", "_low", "_high"):
            columns[name + suffix] = []
    for group in groups:
        columns["method"] += [group.label] * group.step_S.size
        columns["step"] += group.step_S.tolist()
        columns["runs"] += group.count_S.tolist()
        for name in MEASURES:
            for suffix, part in (("", group.mean), ("_low", group.low), ("_high", group.high)):
                columns[name + suffix] += [None if math.isnan(x) else x for x in part[name].tolist()]
    floats = [(name, pa.float64()) for name in columns if name not in ("method", "step", "runs")]
    schema = pa.schema([("method", pa.string()), ("step", pa.int64()), ("runs", pa.int64()), *floats])
    return pa.table(columns, schema=schema)


def _from_labels(table: pa.Table) -> dict[int, dict[str, float]]:
    columns = table.select(["step", "majority_ratio", "label_correct", "diversity_weight"]).to_pydict()
    rows: dict[int, list[tuple[float, float, float]]] = {}
    for step, ratio, correct, weight in zip(*columns.values(), strict=True):
        rows.setdefault(step, []).append((_number(ratio), _number(correct), _number(weight)))
    names = ("majority_ratio", "label_accuracy", "diversity_weight")
    return {
        step: dict(zip(names, (_nanmean(column) for column in zip(*group, strict=True)), strict=True))
        for step, group in rows.items()
    }


def _from_evaluations(table: pa.Table) -> dict[int, dict[str, float]]:
    result: dict[int, dict[str, float]] = {}
    for (step, split), scores in evaluation_scores(table).items():
        if split not in _SPLIT_PREFIX:
            continue
        prefix = _SPLIT_PREFIX[split]
        result.setdefault(step, {}).update(
            {
                f"{prefix}accuracy": avg_at_n(
                    [score.n_correct for score in scores], [score.n for score in scores]
                ),
                f"{prefix}maj_accuracy": maj_at_n(score.maj_correct for score in scores),
            }
        )
    return result


def _label(curve: RunCurve, curves: Sequence[RunCurve]) -> str:
    peers = [other.settings for other in curves if other.method == curve.method]
    names = sorted({name for settings in peers for name in settings} - INCIDENTAL)
    different = [
        name for name in names if any(settings.get(name) != curve.settings.get(name) for settings in peers)
    ]
    return " ".join([curve.method, *(f"{name}={curve.settings.get(name)}" for name in different)])


def _mean(label: str, group: Sequence[RunCurve]) -> GroupCurve:
    step_S = np.unique(np.concatenate([curve.step_S for curve in group]))
    count_S = np.zeros(step_S.size, dtype=np.int64)
    stacked = {name: np.full((len(group), step_S.size), np.nan) for name in MEASURES}
    for index, curve in enumerate(group):
        position_S = np.searchsorted(step_S, curve.step_S)
        count_S[position_S] += 1
        for name in MEASURES:
            stacked[name][index, position_S] = curve.values[name]
    with warnings.catch_warnings():  # steps that were not evaluated are NaN in every run
        warnings.simplefilter("ignore", category=RuntimeWarning)
        return GroupCurve(
            label=label,
            runs=tuple(curve.path for curve in group),
            step_S=step_S,
            count_S=count_S,
            mean={name: np.nanmean(value_RS, axis=0) for name, value_RS in stacked.items()},
            low={name: np.nanmin(value_RS, axis=0) for name, value_RS in stacked.items()},
            high={name: np.nanmax(value_RS, axis=0) for name, value_RS in stacked.items()},
        )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (bool, int, float)) else math.nan


def _nanmean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
