"""How good the pseudo-labels of runs are, block by block, measured against the gold answers afterwards.

Label accuracy and reward accuracy are TTRL's (arXiv:2504.16084). The confusion counts say what the method
made of the plain majority vote (questions) and of the rollouts (rewards). Calibration asks whether labels
said to be right with some probability are right as often, and of the mixture what the filter takes for
granted: that positive rollouts are the right ones. Rollout counts and the mixture's calibration need the step
rollouts; the rest comes from ``labels.parquet`` and ``metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dttrl.analysis.accuracy import known_mean
from dttrl.analysis.blocks import STEPS, Span, spans
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import read_metrics, read_records, scored_steps
from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader
from dttrl.data.schemas import LABELS
from dttrl.errors import InputError
from dttrl.method.mixture import Mixture
from dttrl.method.partition import assign_positive, centred
from dttrl.method.scored import Scored
from dttrl.method.voting.registry import parse_method
from dttrl.scoring.scored_files import column_floats

METRICS = (
    "majority_ratio", "label_accuracy", "expected_accuracy", "majority_accuracy", "reward_accuracy", "auroc",
    "auroc_within", "positive_rate",
)  # fmt: skip
"""What a block averages over steps and runs, under its name in ``metrics.jsonl``."""
BINS = 10
_MIXTURE = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos")

FloatArray = NDArray[np.float64]
Judged = tuple[FloatArray, NDArray[np.bool_]]
"""Probabilities to be right, and which were."""
LABELS_COUNTED = ("both_wrong", "broken", "repaired", "kept")
"""What became of the plain vote of a question: the label and the majority are both wrong; the label is wrong
and the majority was right; the other way round; both are right."""
COUNTS = (
    *(f"labels_{name}" for name in reversed(LABELS_COUNTED)),
    *(f"rollouts_{reward}_{right}" for reward in ("rewarded", "unrewarded") for right in ("right", "wrong")),
    *(f"rollouts_{name}" for name in ("positive", "positive_right", "negative", "negative_right")),
)
"""What a block counts: questions, and rollouts by reward and by component against whether they are right."""


@dataclass(frozen=True)
class LabelQuality:
    """A group of runs: its blocks, and the calibration over all its kept steps.

    ``blocks`` has means of :data:`METRICS` (NaN: not known), :data:`COUNTS`, ``right_if_positive``,
    P(correct | positive), and ``right_if_negative``, and the calibrations' mean of |share right −
    probability|, by bin (expected calibration error). ``calibration`` has the filled bins of
    P(positive | confidence) over rollouts, [low, high), their mean and the share right; it is empty without
    rollouts. ``label_calibration`` has those of the probability that a label is right, over questions, and
    ``label_brier`` is the mean of (probability − whether right)²; for labels that say one.
    """

    group: RunGroup
    blocks: pd.DataFrame
    calibration: pd.DataFrame
    label_calibration: pd.DataFrame


def label_quality(
    group: RunGroup, *, size: int = STEPS, bins: int = BINS, progress: Callable[[int], None] | None = None
) -> LabelQuality:
    """Measure a group of runs; raises InputError where no question has a gold answer."""
    metrics = {run: {int(record["step"]): record for record in read_metrics(run)} for run in group.runs}
    steps = sorted({step for records in metrics.values() for step in records})
    if not steps:
        raise InputError(f"{group.runs[0]}: the run has no finished step yet (metrics.jsonl is empty)")
    rows = {span: _means(span, metrics.values()) | dict.fromkeys(COUNTS, 0) for span in spans(steps, size)}
    if all(math.isnan(row["label_accuracy"]) for row in rows.values()):
        raise InputError(f"{group.runs[0]}: its questions have no gold answers, so labels cannot be judged")
    judged: list[Judged] = []
    labels: list[Judged] = []
    done = 0
    for run in group.runs:
        labels.append(_count_labels(run, rows))
        for scored in scored_steps(run, columns=("reward",)):
            done += len(scored.query_id)
            if progress is not None:
                progress(done)
            record = metrics[run].get(scored.step or 0)
            row = _row(rows, scored.step or 0)
            if record is not None and row is not None:
                judged += _count_rollouts(scored, record, group.settings, row)
    table, label_table = calibration(judged, bins=bins), calibration(labels, bins=bins)
    overall = {
        "calibration_error": calibration_error(table),
        "label_calibration_error": calibration_error(label_table),
        "label_brier": known_mean(
            each for value, right in labels for each in ((value - right) ** 2).tolist()
        ),
    }
    names = {**group.columns, "runs": len(group.runs)}
    blocks = [
        {
            **names,
            **span.columns,
            **row,
            **{
                f"right_if_{name}": _share(row[f"rollouts_{name}_right"], row[f"rollouts_{name}"])
                for name in ("positive", "negative")
            },
            **overall,
        }
        for span, row in rows.items()
    ]
    return LabelQuality(group, frame(blocks), table, label_table)


def calibration(judged: Sequence[Judged], *, bins: int = BINS) -> pd.DataFrame:
    """Return the filled bins of equal width of a probability to be right against the share right.

    ``judged``: probabilities, and whether what they are of is right, in parts.
    """
    value_N = np.concatenate([value for value, _ in judged] or [np.empty(0)])
    right_N = np.concatenate([right for _, right in judged] or [np.empty(0, dtype=bool)])
    index_N = np.minimum((value_N * bins).astype(np.int64), bins - 1)
    rows = [
        (b / bins, (b + 1) / bins, inside_N.sum(), value_N[inside_N].mean(), right_N[inside_N].mean())
        for b in range(bins)
        if (inside_N := index_N == b).any()
    ]
    return pd.DataFrame(rows, columns=["low", "high", "n", "probability", "right"])


def calibration_error(table: pd.DataFrame) -> float:
    """Return the expected calibration error of bins: mean distance of probability and share right."""
    error = (table["n"] * (table["right"] - table["probability"]).abs()).sum()
    return _share(error, table["n"].sum())


def positive_probability(value_N: FloatArray, mixture: Mixture) -> FloatArray:
    """Return P(positive | confidence) of a mixture, mixing weights included (its responsibility)."""
    logs = [
        math.log(max(weight, 1e-300)) - math.log(std) - 0.5 * ((value_N - mean) / std) ** 2
        for mean, std, weight in (
            (mixture.mean_neg, mixture.std_neg, mixture.weight_neg),
            (mixture.mean_pos, mixture.std_pos, mixture.weight_pos),
        )
    ]
    with np.errstate(over="ignore"):
        result: FloatArray = 1.0 / (1.0 + np.exp(logs[0] - logs[1]))
    return result


def _means(span: Span, runs: Iterable[Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    records = [record for by_step in runs for step, record in by_step.items() if span.holds(step)]
    return {name: known_mean(record.get(name) for record in records) for name in METRICS}


def _row(rows: Mapping[Span, dict[str, Any]], step: int) -> dict[str, Any] | None:
    return next((row for span, row in rows.items() if span.holds(step)), None)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def _count_labels(run: Path, rows: Mapping[Span, dict[str, Any]]) -> Judged:
    """Count the questions of a run's labels; those without a verdict are left out.

    Returns the probabilities of the labels that have one.
    """
    labels = read_records(run, LABELS)
    judged: list[tuple[float, bool]] = []
    with Grader() as grader:
        for question in [] if labels is None else labels.to_pylist():
            row, label = _row(rows, question["step"]), question["label_correct"]
            if row is None or label is None:
                continue
            probability = question.get("label_probability")  # older runs have no such column
            if probability is not None:
                judged.append((probability, label))
            majority, gold = question["majority_answer"], question["gold"]
            # A class has one spelling: the majority's being the label's is to be the same class.
            if majority is not None and majority == question["label"]:
                right = label
            else:
                right = bool(majority) and (majority == gold or grader.equal(majority, gold) is Verdict.YES)
            row[f"labels_{LABELS_COUNTED[2 * label + right]}"] += 1
    values = np.array([value for value, _ in judged], dtype=np.float64)
    return values, np.array([right for _, right in judged], dtype=np.bool_)


def _count_rollouts(
    scored: Scored,
    record: Mapping[str, Any],
    settings: Mapping[str, Any],
    row: dict[str, Any],
) -> Iterator[Judged]:
    """Count the rollouts of one step; yield what its mixture, where it has one, makes of them."""
    mixture = _mixture(record)
    label = settings["label"]
    monotone = label is not None and parse_method(label).parameters.get("monotone") == "yes"

    def count(name: str, counted_BG: NDArray[np.bool_]) -> None:
        row[f"rollouts_{name}"] += int(counted_BG.sum())

    known_B, right_BG = scored.has_gold_R, scored.correct_RN
    if "reward" in scored.rows.column_names:
        reward_BG = column_floats(scored.rows["reward"], "reward").reshape(right_BG.shape)
        judged_B = known_B & np.isfinite(reward_BG).all(axis=1)
        for name, chosen_BG in (("rewarded", reward_BG > 0), ("unrewarded", ~(reward_BG > 0))):
            count(f"{name}_right", (chosen_BG & right_BG)[judged_B])
            count(f"{name}_wrong", (chosen_BG & ~right_BG)[judged_B])
    if mixture is None:
        return
    right_BG = right_BG[known_B]
    value_BG = centred(scored.confidence_RN[known_B], settings["centre"])
    positive_BG = assign_positive(value_BG, mixture, monotone=monotone)
    for name, component_BG in (("positive", positive_BG), ("negative", ~positive_BG)):
        count(name, component_BG)
        count(f"{name}_right", component_BG & right_BG)
    finite_BG = np.isfinite(value_BG)
    yield positive_probability(value_BG[finite_BG], mixture), right_BG[finite_BG]


def _mixture(record: Mapping[str, Any]) -> Mixture | None:
    values = [record.get(f"mixture_{name}") for name in _MIXTURE]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if record.get("mixture_degenerate") or len(numbers) < len(_MIXTURE) or not numbers[1] * numbers[4] > 0:
        return None
    low, std_low, weight_low, high, std_high, weight_high = numbers
    return Mixture(low, std_low, weight_low, high, std_high, weight_high, n=0)
