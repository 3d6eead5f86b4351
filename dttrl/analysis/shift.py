"""How the distribution of confidences moves in training, block by block (fig:distribution_shift).

The paper pools the confidences of 15 consecutive steps, sees the distributions move to the right, and the
movement go to zero. Here every block has its distribution, its shift (mean minus the mean of the block
before, with an interval that resamples questions) and its distance (Wasserstein-1) from the block before.
Shift and distance in standard deviations of the first block can be compared between models. Axis letters:
N confidences of a block.
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

from dttrl.analysis.accuracy import Estimate
from dttrl.analysis.blocks import STEPS, Span, spans
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import read_config, read_records, rollout_files
from dttrl.errors import InputError
from dttrl.rng import derive
from dttrl.schemas import HISTORY, ROLLOUTS
from dttrl.tables import read_table

TOLERANCE = 0.1
"""A shift of this many standard deviations of the first block, or less, counts as none."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLUMNS = ["step", "query_id", "confidence"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """The confidences of a block of steps; the first block of a curve has no shift (NaN)."""

    span: Span
    value_N: FloatArray
    mean: float
    std: float
    quantiles: tuple[float, ...]
    """At :data:`QUANTILES`."""
    shift: Estimate
    """Change of the mean from the block before, in the units of the confidence."""
    relative_shift: float
    """``shift`` in standard deviations of the first block."""
    distance: float
    """Wasserstein-1 distance from the block before, in standard deviations of the first block."""


@dataclass(frozen=True)
class ShiftCurve:
    """The blocks of a group of runs, ascending; ``settled`` is the first block that stays put, if any.

    A block has settled when its shift and those of all later blocks are within the tolerance.
    """

    group: RunGroup
    blocks: list[Block]
    settled: Span | None


def shift_curve(
    group: RunGroup, *, size: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0, repeats: int = 2000
) -> ShiftCurve:
    """Pool the runs of a group and follow their confidences; raises InputError where none were kept."""
    parts = [read_confidences(run) for run in group.runs]
    step_N = np.concatenate([part.column("step").to_numpy() for part in parts])
    query_N = np.concatenate([np.asarray(part.column("query_id").to_pylist(), dtype=str) for part in parts])
    value_N = np.concatenate([part.column("confidence").to_numpy() for part in parts])
    if not value_N.size:
        raise InputError(f"{group.runs[0]}: no rollout has a confidence")
    blocks: list[Block] = []
    before: tuple[FloatArray, NDArray[np.str_]] | None = None
    for span in spans(step_N.tolist(), size):
        inside_N = (step_N >= span.first) & (step_N <= span.last)
        now = (value_N[inside_N], query_N[inside_N])
        shift, distance = Estimate(math.nan, math.nan, math.nan), math.nan
        scale = blocks[0].std if blocks else float(now[0].std())
        if before is not None:
            rng = derive(seed, step=span.first, purpose="shift")
            shift = _mean_change(before, now, rng=rng, repeats=repeats)
            distance = wasserstein(before[0], now[0]) / scale if scale else math.nan
        blocks.append(
            Block(
                span=span,
                value_N=now[0],
                mean=float(now[0].mean()),
                std=float(now[0].std()),
                quantiles=tuple(np.quantile(now[0], QUANTILES).tolist()),
                shift=shift,
                relative_shift=shift.value / scale if scale else math.nan,
                distance=distance,
            )
        )
        before = now
    return ShiftCurve(group, blocks, settled_at(blocks, tolerance))


def settled_at(blocks: Sequence[Block], tolerance: float = TOLERANCE) -> Span | None:
    """Return the first block from which on no shift is over the tolerance; None where the last still is."""
    found = None
    for block in reversed(blocks[1:]):
        if not abs(block.relative_shift) <= tolerance:
            break
        found = block.span
    return found


def read_confidences(run: Path) -> pa.Table:
    """Return step, query_id and finite confidence of a run: from its step rollouts, else from its history.

    The history of a run with ``centre: question`` holds no confidences as they were measured, and is refused.
    """
    files = rollout_files(run)
    if files:
        tables = [read_table(path, ROLLOUTS, columns=_COLUMNS) for path in files]
        table = pa.concat_tables(tables)
    else:
        table = read_records(run, HISTORY, columns=_COLUMNS)
        if table is None:
            raise InputError(
                f"{run}: kept neither rollouts nor a history of confidences; train with --keep-rollouts"
            )
        if read_config(run)["centre"] != "none":
            raise InputError(
                f"{run}: its history holds centred confidences; train with --keep-rollouts to see the shift"
            )
    value_N = table.column("confidence").cast(pa.float64()).to_numpy(zero_copy_only=False)
    return table.filter(pa.array(np.isfinite(value_N)))


def wasserstein(one_N: FloatArray, two_N: FloatArray) -> float:
    """Return the Wasserstein-1 distance of two samples: the area between their distribution functions.

    >>> wasserstein(np.array([0.0, 1.0]), np.array([2.0, 3.0]))
    2.0
    """
    both = np.sort(np.concatenate([one_N, two_N]))
    width = np.diff(both)
    one = np.searchsorted(np.sort(one_N), both[:-1], side="right") / one_N.size
    two = np.searchsorted(np.sort(two_N), both[:-1], side="right") / two_N.size
    return float(np.sum(np.abs(one - two) * width))


def shift_frame(curves: Sequence[ShiftCurve]) -> pa.Table:
    """Return one row a (group, block)."""
    names = [f"q{round(100 * q):02d}" for q in QUANTILES]
    rows: list[dict[str, Any]] = [
        {
            "questions": curve.group.questions,
            "start": curve.group.start,
            "method": curve.group.label,
            "runs": len(curve.group.runs),
            "first_step": block.span.first,
            "last_step": block.span.last,
            "n": int(block.value_N.size),
            "mean": block.mean,
            "std": block.std,
            **dict(zip(names, block.quantiles, strict=True)),
            "shift": _null(block.shift.value),
            "shift_low": _null(block.shift.low),
            "shift_high": _null(block.shift.high),
            "relative_shift": _null(block.relative_shift),
            "distance": _null(block.distance),
            "settled": curve.settled is not None and block.span.first >= curve.settled.first,
        }
        for curve in curves
        for block in curve.blocks
    ]
    texts, whole = ("questions", "start", "method"), ("runs", "first_step", "last_step", "n")
    kinds = {name: pa.string() for name in texts} | {name: pa.int64() for name in whole}
    fields = [(name, kinds.get(name, pa.float64())) for name in rows[0] if name != "settled"] if rows else []
    return pa.Table.from_pylist(rows, schema=pa.schema([*fields, ("settled", pa.bool_())]))


def _mean_change(
    before: tuple[FloatArray, NDArray[np.str_]],
    now: tuple[FloatArray, NDArray[np.str_]],
    *,
    rng: np.random.Generator,
    repeats: int,
) -> Estimate:
    """Change of the mean, with a percentile interval that draws questions, the same ones on both sides."""
    names = np.unique(np.concatenate([before[1], now[1]]))
    sums, counts = [], []
    for value_N, query_N in (before, now):
        index_N = np.searchsorted(names, query_N)
        sums.append(np.bincount(index_N, weights=value_N, minlength=names.size))
        counts.append(np.bincount(index_N, minlength=names.size).astype(np.float64))
    weight_RQ = rng.multinomial(names.size, np.full(names.size, 1.0 / names.size), size=repeats)
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw may miss every question of one side
        means = [(weight_RQ @ total) / (weight_RQ @ count) for total, count in zip(sums, counts, strict=True)]
    low, high = np.nanquantile(means[1] - means[0], [0.025, 0.975])
    return Estimate(float(now[0].mean() - before[0].mean()), float(low), float(high))


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
