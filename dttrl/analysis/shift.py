"""How the distribution of confidences moves in training, block by block (fig:distribution_shift).

The paper pools the confidences of 15 consecutive steps, sees the distributions move to the right, and the
movement go to zero. Here every block has its distribution, its shift (mean minus the mean of the block
before, with an interval that resamples questions) and its distance (Wasserstein-1) from the block before.
Shift and distance in standard deviations of the first block can be compared between models. Axis letters:
N confidences of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.analysis.accuracy import UNKNOWN, Estimate
from dttrl.analysis.blocks import STEPS, Span, spans
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import read_config, read_records, rollout_files
from dttrl.data.schemas import HISTORY, ROLLOUTS
from dttrl.data.tables import read_table
from dttrl.errors import InputError
from dttrl.rng import derive

TOLERANCE = 0.1
"""A shift of this many standard deviations of the first block, or less, counts as none."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLUMNS = ["step", "query_id", "confidence"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ShiftCurve:
    """The blocks of a group of runs, ascending, and the confidences of each.

    Columns: ``q05`` and the like are :data:`QUANTILES`; ``shift`` is the change of the mean from the block
    before, in the units of the confidence, ``relative_shift`` in standard deviations of the first block;
    ``distance`` is the Wasserstein-1 distance from the block before, in the latter. The first block has none
    of the three (NaN).
    """

    group: RunGroup
    table: pd.DataFrame
    values: list[FloatArray]
    settled: Span | None
    """The first block that stays put: its shift and those of all later ones are within the tolerance."""


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
    rows: list[dict[str, Any]] = []
    blocks: list[tuple[FloatArray, NDArray[np.str_]]] = []
    settled: Span | None = None
    for span in spans(step_N.tolist(), size):
        inside_N = (step_N >= span.first) & (step_N <= span.last)
        blocks.append((value_N[inside_N], query_N[inside_N]))
        now_N = blocks[-1][0]
        shift, distance = UNKNOWN, math.nan
        scale = float(blocks[0][0].std()) or math.nan
        if len(blocks) > 1:
            rng = derive(seed, step=span.first, purpose="shift")
            shift = _mean_change(*blocks[-2:], rng=rng, repeats=repeats)
            distance = wasserstein(blocks[-2][0], now_N) / scale
        still = abs(shift.value / scale) <= tolerance
        settled = (settled or span) if still else None
        rows.append({
            **group.columns,
            "runs": len(group.runs),
            **span.columns,
            "n": now_N.size,
            "mean": now_N.mean(),
            "std": now_N.std(),
            **{f"q{round(100 * q):02d}": np.quantile(now_N, q) for q in QUANTILES},
            "shift": shift,
            "relative_shift": shift.value / scale,
            "distance": distance,
        })  # fmt: skip
    for row in rows:
        row["settled"] = settled is not None and row["first_step"] >= settled.first
    return ShiftCurve(group, frame(rows), [value_N for value_N, _ in blocks], settled)


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
    return Estimate.of_draws(now[0].mean() - before[0].mean(), means[1] - means[0])
