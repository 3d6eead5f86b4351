"""What it costs to choose a checkpoint without gold answers: regret of several criteria, by kind of run.

    PYTHONPATH=.:cli python benchmarks/findings/checkpoint_choice.py data data/reference/tables

Reads the packs ``reference`` and ``collapse`` in the folder, and writes ``checkpoint-choice.parquet``. Beside
the choices of ``dttrl analyze checkpoints`` it has what else was tried, none of which reads gold answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import pyarrow as pa

import plan as plans
from dttrl.analysis.checkpoint_choice import CHOICES, checkpoint_choices, choice_regrets
from dttrl.analysis.frames import write_frame
from dttrl.analysis.grouping import group_folders
from dttrl.analysis.runs import expand_runs, read_records
from dttrl.data.schemas import LABELS

TRIED = ("most_kept", "least_shared", "fewest_classes", "last_or_gain")
RUN = ["questions", "start", "method", "run", "seed"]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Regret of the choices of a checkpoint, by kind of run.")
    parser.add_argument("data", type=Path, help="folder with the packs reference and collapse")
    parser.add_argument("tables", type=Path, help="folder of the table")
    options = parser.parse_args()
    reference, collapse = options.data / "reference", options.data / "collapse"
    variants = [
        (run, str(run).rpartition("#")[2].split(".", 1)[1].rpartition(".")[0]) for run in runs(reference)
    ]
    free = [run for run, variant in variants if variant in plans.METHODS and variant != "ttrl-gt"]
    gold = [run for run, variant in variants if variant == "ttrl-gt"]
    ablations = [run for run, variant in variants if variant not in plans.METHODS]
    parts = [
        regrets("label-free", free),
        regrets("trained with gold", gold),
        regrets("rate too high", runs(collapse)),
        regrets("label-free, or the start", free, start=True),
        regrets("ablations: the end or the start", ablations, start=True),
    ]
    table = pd.concat(parts, ignore_index=True)
    write_frame(options.tables / "checkpoint-choice.parquet", table, overwrite=True)
    print(table.round(2).to_string())


def runs(pack: Path) -> list[Path]:
    """Return the runs of a pack."""
    return expand_runs([pack])


def regrets(kind: str, found: list[Path], *, start: bool = False) -> pd.DataFrame:
    """Return the regrets of all choices over some runs."""
    table = checkpoint_choices(group_folders(found), start=start)
    classes = {}
    for path in found:
        labels = read_records(path, LABELS, columns=["step", "query_id", "diversity"])
        if labels is not None:
            classes[str(path).rpartition("#")[2]] = labels
    marked = [tried(part, classes) for _, part in table.groupby(RUN, sort=False)]
    names = [name for name in TRIED if name != "fewest_classes" or len(classes) == len(found)]
    table = choice_regrets(pd.concat(marked), choices=(*CHOICES, *names))
    return table.assign(kind=kind)[["kind", *table.columns]]


def tried(part: pd.DataFrame, classes: dict[str, pa.Table]) -> pd.DataFrame:
    """Mark what other criteria would choose among the steps of a run: of equal ones the last."""
    labels = classes.get(part["run"].iloc[0])
    counts = pd.Series(0.0, index=part.index)
    if labels is not None:
        votes = labels.to_pandas().sort_values("step")
        counts = part["step"].map(
            lambda step: (
                votes[votes["step"] <= step].drop_duplicates("query_id", keep="last")["diversity"].mean()
            )
        )
    last = part["step"].max()
    ended = part.loc[part["last"], "gain"].item()
    steps = {
        "most_kept": best(part, part["kept"].fillna(1.0)),
        "least_shared": best(part, -part["shared"].fillna(0.0)),
        "fewest_classes": best(part, -counts.fillna(float("inf"))),
        # The last step unless its gain is negative, then the largest gain.
        "last_or_gain": last if ended >= 0 else best(part, part["gain"]),
    }
    return part.assign(**{name: part["step"] == step for name, step in steps.items()})


def best(part: pd.DataFrame, value: pd.Series) -> int:
    """Return the step of the largest value, the last of several."""
    return int(part.loc[value == value.max(), "step"].max())


if __name__ == "__main__":
    main()
