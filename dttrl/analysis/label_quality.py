"""How good the pseudo-labels of runs are, block by block, measured against the gold answers afterwards.

Label accuracy and reward accuracy are TTRL's (arXiv:2504.16084). The confusion counts say what the method
made of the plain majority vote (questions) and of the rollouts (rewards). Calibration asks of the mixture
what the filter takes for granted: that positive rollouts are the right ones. Rollout counts and calibration
need the step rollouts; the rest comes from ``labels.parquet`` and ``metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.analysis.blocks import STEPS, Span, spans
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.majority import LABEL_FILE, read_metrics
from dttrl.analysis.step_rollouts import scored_steps
from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.mixture import Mixture
from dttrl.partition import assign_positive
from dttrl.schemas import LABELS
from dttrl.scored import Scored
from dttrl.scored_files import column_floats
from dttrl.tables import read_table
from dttrl.voting.registry import parse_method

METRICS = (
    "majority_ratio", "label_accuracy", "majority_accuracy", "reward_accuracy", "auroc", "auroc_within",
    "positive_rate",
)  # fmt: skip
"""What a block averages over steps and runs, under its name in ``metrics.jsonl``."""
BINS = 10
_MIXTURE = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos")

FloatArray = NDArray[np.float64]


@dataclass
class Confusion:
    """What became of the plain vote: questions whose majority and whose label are right or wrong."""

    kept: int = 0
    """Both right."""
    repaired: int = 0
    """The majority was wrong and the label is right."""
    broken: int = 0
    """The majority was right and the label is wrong."""
    both_wrong: int = 0

    def add(self, *, majority: bool, label: bool) -> None:
        """Count a question."""
        name = ("both_wrong", "broken", "repaired", "kept")[2 * label + majority]
        setattr(self, name, getattr(self, name) + 1)


@dataclass
class RolloutCounts:
    """Rollouts by reward and by component of the mixture against whether they are right."""

    rewarded_right: int = 0
    rewarded_wrong: int = 0
    unrewarded_right: int = 0
    unrewarded_wrong: int = 0
    positive: int = 0
    positive_right: int = 0
    negative: int = 0
    negative_right: int = 0

    @property
    def right_if_positive(self) -> float:
        """P(correct | positive); NaN without positives."""
        return self.positive_right / self.positive if self.positive else math.nan

    @property
    def right_if_negative(self) -> float:
        """P(correct | negative); NaN without negatives."""
        return self.negative_right / self.negative if self.negative else math.nan


@dataclass
class LabelBlock:
    """A block of steps: means of :data:`METRICS` (NaN: not known) and counts."""

    span: Span
    means: dict[str, float]
    confusion: Confusion = field(default_factory=Confusion)
    rollouts: RolloutCounts = field(default_factory=RolloutCounts)


@dataclass(frozen=True)
class CalibrationBin:
    """Rollouts whose probability of the positive component lies in [low, high), and the share right."""

    low: float
    high: float
    n: int
    probability: float
    right: float


@dataclass(frozen=True)
class LabelQuality:
    """A group of runs: its blocks, and the calibration over all its kept steps ([] where there is none)."""

    group: RunGroup
    blocks: list[LabelBlock]
    calibration: list[CalibrationBin]
    calibration_error: float
    """Mean of |share right − probability| over rollouts, by bin (expected calibration error)."""


def label_quality(
    group: RunGroup, *, size: int = STEPS, bins: int = BINS, progress: Callable[[int], None] | None = None
) -> LabelQuality:
    """Measure a group of runs; raises InputError where no question has a gold answer."""
    metrics = {run: {int(record["step"]): record for record in read_metrics(run)} for run in group.runs}
    steps = sorted({step for records in metrics.values() for step in records})
    if not steps:
        raise InputError(f"{group.runs[0]}: the run has no finished step yet (metrics.jsonl is empty)")
    blocks = [LabelBlock(span, _means(span, list(metrics.values()))) for span in spans(steps, size)]
    if all(math.isnan(block.means["label_accuracy"]) for block in blocks):
        raise InputError(f"{group.runs[0]}: its questions have no gold answers, so labels cannot be judged")
    probabilities: list[FloatArray] = []
    rights: list[NDArray[np.bool_]] = []
    done = 0
    for run in group.runs:
        _count_labels(run, blocks)
        for scored in scored_steps(run, columns=("reward",)):
            done += len(scored.query_id)
            if progress is not None:
                progress(done)
            record = metrics[run].get(scored.step or 0)
            block = _block(blocks, scored.step or 0)
            if record is not None and block is not None:
                _count_rollouts(scored, record, group.settings, block.rollouts, probabilities, rights)
    table = calibration(probabilities, rights, bins=bins)
    total = sum(row.n for row in table)
    error = sum(row.n * abs(row.right - row.probability) for row in table) / total if total else math.nan
    return LabelQuality(group, blocks, table, error)


def calibration(
    probabilities: Sequence[FloatArray], rights: Sequence[NDArray[np.bool_]], *, bins: int = BINS
) -> list[CalibrationBin]:
    """Return the filled bins of equal width of P(positive | confidence) against the share right."""
    if not probabilities:
        return []
    value_N, right_N = np.concatenate(probabilities), np.concatenate(rights)
    index_N = np.minimum((value_N * bins).astype(np.int64), bins - 1)
    return [
        CalibrationBin(
            b / bins, (b + 1) / bins, int(inside.sum()), float(value_N[inside].mean()),
            float(right_N[inside].mean()),
        )
        for b in range(bins)
        if (inside := index_N == b).any()
    ]  # fmt: skip


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


def quality_frame(measured: Sequence[LabelQuality]) -> pa.Table:
    """Return one row a (group, block)."""
    rows: list[dict[str, Any]] = []
    for quality in measured:
        group = quality.group
        names = {"questions": group.questions, "start": group.start, "method": group.label}
        for block in quality.blocks:
            counts = block.rollouts
            rows.append(
                {
                    **names,
                    "runs": len(group.runs),
                    "first_step": block.span.first,
                    "last_step": block.span.last,
                    **{name: _null(value) for name, value in block.means.items()},
                    **{f"labels_{name}": count for name, count in vars(block.confusion).items()},
                    **{f"rollouts_{name}": count for name, count in vars(counts).items()},
                    "right_if_positive": _null(counts.right_if_positive),
                    "right_if_negative": _null(counts.right_if_negative),
                    "calibration_error": _null(quality.calibration_error),
                }
            )
    floats = {*METRICS, "right_if_positive", "right_if_negative", "calibration_error"}
    texts = {"questions", "start", "method"}
    fields = [
        (name, pa.string() if name in texts else pa.float64() if name in floats else pa.int64())
        for name in (rows[0] if rows else ())
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def _means(span: Span, runs: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[str, float]:
    records = [
        record for by_step in runs for step, record in by_step.items() if span.first <= step <= span.last
    ]
    means = {}
    for name in METRICS:
        known = [float(record[name]) for record in records if isinstance(record.get(name), int | float)]
        finite = [value for value in known if math.isfinite(value)]
        means[name] = sum(finite) / len(finite) if finite else math.nan
    return means


def _block(blocks: Sequence[LabelBlock], step: int) -> LabelBlock | None:
    return next((block for block in blocks if block.span.first <= step <= block.span.last), None)


def _count_labels(run: Path, blocks: Sequence[LabelBlock]) -> None:
    """Add the questions of a run's labels to the confusion counts; those without a verdict are left out."""
    path = run / LABEL_FILE
    if not path.is_file():
        return
    names = ["step", "query_id", "label", "gold", "label_correct", "majority_answer"]
    with Grader() as grader:
        for row in read_table(path, LABELS, columns=names).to_pylist():
            block = _block(blocks, row["step"])
            if block is None or row["label_correct"] is None:
                continue
            majority, gold = row["majority_answer"], row["gold"]
            # A class has one spelling: the majority's being the label's is to be the same class.
            same = majority is not None and majority == row["label"]
            right = row["label_correct"] if same else bool(majority) and _equal(grader, majority, gold)
            block.confusion.add(majority=bool(right), label=row["label_correct"])


def _equal(grader: Grader, one: str, two: str) -> bool:
    return one == two or grader.equal(one, two) is Verdict.YES


def _count_rollouts(
    scored: Scored,
    record: Mapping[str, Any],
    settings: Mapping[str, Any],
    counts: RolloutCounts,
    probabilities: list[FloatArray],
    rights: list[NDArray[np.bool_]],
) -> None:
    """Count the rollouts of one step, and judge its mixture where it has one."""
    mixture, correct_RN = _mixture(record), scored.correct_RN
    reward_RN = None
    if "reward" in scored.rows.column_names:
        reward_RN = column_floats(scored.rows["reward"], "reward").reshape(scored.class_RN.shape)
    for r in np.flatnonzero(scored.has_gold_R).tolist():
        right_G = correct_RN[r]
        if reward_RN is not None and np.isfinite(reward_RN[r]).all():
            rewarded_G = reward_RN[r] > 0
            counts.rewarded_right += int((rewarded_G & right_G).sum())
            counts.rewarded_wrong += int((rewarded_G & ~right_G).sum())
            counts.unrewarded_right += int((~rewarded_G & right_G).sum())
            counts.unrewarded_wrong += int((~rewarded_G & ~right_G).sum())
        if mixture is None:
            continue
        value_G = scored.confidence_RN[r]
        finite_G = np.isfinite(value_G)
        if settings["centre"] == "question" and finite_G.any():
            value_G = value_G - value_G[finite_G].mean()
        label = settings["label"]
        monotone = label is not None and parse_method(label).parameters.get("monotone") == "yes"
        positive_G = assign_positive(value_G[None, :], mixture, monotone=monotone)[0]
        counts.positive += int(positive_G.sum())
        counts.positive_right += int((positive_G & right_G).sum())
        counts.negative += int((~positive_G).sum())
        counts.negative_right += int((~positive_G & right_G).sum())
        probabilities.append(positive_probability(value_G[finite_G], mixture))
        rights.append(right_G[finite_G])


def _mixture(record: Mapping[str, Any]) -> Mixture | None:
    values = [record.get(f"mixture_{name}") for name in _MIXTURE]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if record.get("mixture_degenerate") or len(numbers) < len(_MIXTURE) or not numbers[1] * numbers[4] > 0:
        return None
    low, std_low, weight_low, high, std_high, weight_high = numbers
    return Mixture(low, std_low, weight_low, high, std_high, weight_high, n=0)


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
