"""What it costs to choose a checkpoint without gold answers: regret of several criteria, by kind of run.

    PYTHONPATH=.:cli python benchmarks/findings/checkpoint_choice.py data data/reference/tables

Reads the packs ``reference``, ``collapse`` and ``latent`` in the folder, and writes
``checkpoint-choice.parquet``. Beside the choices of ``dttrl analyze checkpoints`` it has what else was tried,
none of which reads gold answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

import plan as plans
from dttrl.analysis.checkpoint_choice import CHOICES, checkpoint_choices, choice_regrets
from dttrl.analysis.frames import write_frame
from dttrl.analysis.grouping import group_folders
from dttrl.analysis.runs import expand_runs, read_records
from dttrl.data.schemas import LABELS

TRIED = ("most_kept", "least_shared", "fewest_classes", "last_or_gain", "most_expected")
NEEDS = {"fewest_classes": "diversity", "most_expected": "label_probability"}
"""Column of the labels that a criterion reads; only where all runs have it."""
RUN = ["questions", "start", "method", "run", "seed"]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Regret of the choices of a checkpoint, by kind of run.")
    parser.add_argument("data", type=Path, help="folder with the packs reference, collapse and latent")
    parser.add_argument("tables", type=Path, help="folder of the table")
    options = parser.parse_args()
    reference, collapse, latent = (options.data / name for name in ("reference", "collapse", "latent"))
    variants = [(run, variant_of(run)) for run in runs(reference)]
    free = [run for run, variant in variants if variant in plans.METHODS and variant != "ttrl-gt"]
    gold = [run for run, variant in variants if variant == "ttrl-gt"]
    ablations = [run for run, variant in variants if variant not in plans.METHODS]
    elected = [run for run in runs(latent) if "latent" in plans.LATENT[variant_of(run)][0]]
    beside = [run for run in runs(latent) if run not in elected]
    parts = [
        regrets("label-free", free),
        regrets("trained with gold", gold),
        regrets("rate too high", runs(collapse)),
        regrets("label-free, or the start", free, start=True),
        regrets("ablations: the end or the start", ablations, start=True),
        regrets("latent-answer labels", elected),
        regrets("others beside them", beside),
    ]
    table = pd.concat(parts, ignore_index=True)
    write_frame(options.tables / "checkpoint-choice.parquet", table, overwrite=True)
    print(table.round(2).to_string())


def runs(pack: Path) -> list[Path]:
    """Return the runs of a pack."""
    return expand_runs([pack])


def variant_of(run: Path) -> str:
    """Return what stands between start and seed in a run's name."""
    return str(run).rpartition("#")[2].split(".", 1)[1].rpartition(".")[0]


def regrets(kind: str, found: list[Path], *, start: bool = False) -> pd.DataFrame:
    """Return the regrets of all choices over some runs."""
    table = checkpoint_choices(group_folders(found), start=start)
    votes = {}
    for path in found:
        labels = read_records(path, LABELS)
        if labels is not None:
            votes[str(path).rpartition("#")[2]] = labels.to_pandas().sort_values("step")
    marked = [tried(part, votes.get(part["run"].iloc[0])) for _, part in table.groupby(RUN, sort=False)]
    names = [name for name in TRIED if name not in NEEDS or all_know(NEEDS[name], votes, len(found))]
    table = choice_regrets(pd.concat(marked), choices=(*CHOICES, *names))
    return table.assign(kind=kind)[["kind", *table.columns]]


def all_know(column: str, votes: Mapping[str, pd.DataFrame], count: int) -> bool:
    """Return whether the labels of all runs have a column."""
    return len(votes) == count and all(known(column, labels) for labels in votes.values())


def known(column: str, labels: pd.DataFrame) -> bool:
    """Return whether labels have a column; packs of older runs have not all."""
    return column in labels and bool(labels[column].notna().any())


def tried(part: pd.DataFrame, votes: pd.DataFrame | None) -> pd.DataFrame:
    """Mark what other criteria would choose among the steps of a run: of equal ones the last."""
    counts = pd.Series(0.0, index=part.index)
    expected = pd.Series(0.0, index=part.index)
    if votes is not None:
        counts = part["step"].map(
            lambda step: (
                votes[votes["step"] <= step].drop_duplicates("query_id", keep="last")["diversity"].mean()
            )
        )
        if known("label_probability", votes):
            # Of the labels since the evaluation before.
            at = np.searchsorted(part["step"].to_numpy(), votes["step"].to_numpy())
            means = votes.groupby(at)["label_probability"].mean()
            expected = pd.Series(means.reindex(range(len(part))).to_numpy(), index=part.index)
    last = part["step"].max()
    ended = part.loc[part["last"], "gain"].item()
    steps = {
        "most_kept": best(part, part["kept"].fillna(1.0)),
        "least_shared": best(part, -part["shared"].fillna(0.0)),
        "fewest_classes": best(part, -counts.fillna(float("inf"))),
        # The last step unless its gain is negative, then the largest gain.
        "most_expected": best(part, expected.fillna(-1.0)),
        "last_or_gain": last if ended >= 0 else best(part, part["gain"]),
    }
    return part.assign(**{name: part["step"] == step for name, step in steps.items()})


def best(part: pd.DataFrame, value: pd.Series) -> int:
    """Return the step of the largest value, the last of several."""
    return int(part.loc[value == value.max(), "step"].max())


if __name__ == "__main__":
    main()
