"""The tables of docs/latent.md that come from training: each variant against ``ttrl``, and calibration.

    PYTHONPATH=.:cli python benchmarks/findings/latent_training.py data/latent data/reference/tables

Reads a pack of runs that are called START.VARIANT.SEED (plans ``latent`` and ``latent-smollm2``), and writes
``latent-training`` (a row per start, variant and split) and ``latent-labels`` (a row per start, way of labels
and end of training) as Parquet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import plan as plans
from dttrl.analysis.accuracy import known_mean
from dttrl.analysis.comparison import compare
from dttrl.analysis.frames import write_frame
from dttrl.analysis.grouping import RunGroup, group_folders
from dttrl.analysis.label_quality import calibration, calibration_error
from dttrl.analysis.runs import read_metrics, read_records
from dttrl.data.schemas import LABELS

STARTS = (*plans.STARTS, *plans.SMOLLM2_STARTS)
SHARES = {"in full": ("latent", "latent-no-penalty"),
          "by probability": ("latent-weighed", "latent-weighed-no-penalty")}  # fmt: skip
"""How labels count, and the variants where they do so, with the penalty and without."""
ENDS = 20
"""Steps at the beginning and at the end of training whose labels are judged."""


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="Tables of the latent-answer labels from a pack of runs.")
    parser.add_argument("pack", type=Path, help="data/latent")
    parser.add_argument("tables", type=Path, help="folder of the tables")
    options = parser.parse_args()
    groups = named_groups(options.pack)
    for name, table in (("training", training(groups)), ("labels", labels(groups))):
        write_frame(options.tables / f"latent-{name}.parquet", table, overwrite=True)
        with pd.option_context("display.width", 200, "display.max_rows", None, "display.max_columns", None):
            print(table.round(3).to_string(index=False))


def named_groups(pack: Path) -> list[RunGroup]:
    """Return the runs of a pack as groups that have the plan's names of start and variant, in its order."""
    groups = [
        replace(group, start=names(run)[0], label=names(run)[1])
        for group in group_folders([pack])
        for run in group.runs[:1]
    ]
    variants = list(plans.LATENT)
    return sorted(groups, key=lambda group: (STARTS.index(group.start), variants.index(group.label)))


def names(run: Path) -> tuple[str, str]:
    """Return start and variant of a run."""
    start, variant, _ = run.name.rpartition("#")[2].split(".")
    return start, variant


def training(groups: list[RunGroup]) -> pd.DataFrame:
    """Return what ``dttrl analyze compare`` gives, with the share of right majorities."""
    majority = {
        (group.start, group.label): float(
            np.mean([known_mean(step.get("majority_accuracy") for step in read_metrics(run))
                     for run in group.runs])
        )
        for group in groups
    }  # fmt: skip
    table = compare(groups)
    right = [majority[key] for key in zip(table["start"], table["method"], strict=True)]
    return table.assign(majority_accuracy=right)


def labels(groups: list[RunGroup]) -> pd.DataFrame:
    """Return how well probabilities of labels told right ones, at both ends of training."""
    return pd.DataFrame([
        {"start": start, "counts": counts, "runs": len(runs), **row}
        for start in STARTS
        for counts, variants in SHARES.items()
        if (runs := [run for g in groups if (g.start, g.label) in {(start, v) for v in variants}
                     for run in g.runs])
        for row in judged(runs)
    ])  # fmt: skip


def judged(runs: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield a row for the first steps and one for the last."""
    columns = ["step", "label_correct", "label_probability"]
    parts = [read_records(run, LABELS, columns=columns) for run in runs]
    known = pd.concat([part.to_pandas() for part in parts if part is not None]).dropna()
    end = known["step"].max()
    for name, some in (
        (f"first {ENDS}", known[known["step"] <= ENDS]),
        (f"last {ENDS}", known[known["step"] > end - ENDS]),
    ):
        given = some["label_probability"].to_numpy(dtype=np.float64)
        right = some["label_correct"].to_numpy(dtype=bool)
        yield {
            "steps": name,
            "labels": len(some),
            "expected": float(given.mean()),
            "right": float(right.mean()),
            "brier": float(((given - right) ** 2).mean()),
            "calibration_error": calibration_error(calibration([(given, right)])),
        }


if __name__ == "__main__":
    main()
