"""What each setting of the labels does, on the same rollouts: finished runs labelled again, step by step.

    python benchmarks/findings/label_ablations.py RUN... -o data/reference/tables/label-ablations.parquet

The runs must have kept their rollouts (``grid.py`` packs those of a few runs in ``rollouts.tar.xz``). A
training run with another setting drifts away from the first one; here every variant labels the same steps, so
that a difference is the labels' alone. The accuracy of a variant's labels over all steps and questions with a
gold answer, and its difference from ``distri-gmm`` as it is, with 95 % intervals over questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.analysis.accuracy import clustered_bootstrap
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.rng import derive
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.replay import Trained, run_steps, written_labels
from dttrl.training.run_folder import find_config

BASE = "distri-gmm"
VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    BASE: (BASE, {}),
    "ttrl (plain vote)": ("ttrl", {}),
    "centred per question": (BASE, {"centre": "question"}),
    "no shift correction": (BASE, {"shift_correction": False}),
    "no history (the step's own mixture)": (BASE, {"label": "progressive:window=0"}),
    "history of 5 steps": (BASE, {"label": "progressive:window=5"}),
    "at least 3 positives": (BASE, {"label": "progressive:min=3"}),
    "at least 6 positives": (BASE, {"label": "progressive:min=6"}),
    "hierarchical vote": (BASE, {"label": "progressive:f=hierarchical"}),
    "hierarchical vote, guard off": (BASE, {"label": "progressive:f=hierarchical,reject=always"}),
    "hierarchical vote, no reject": (BASE, {"label": "progressive:f=hierarchical,reject=off"}),
    "centred, hierarchical vote": (BASE, {"centre": "question", "label": "progressive:f=hierarchical"}),
}


def main() -> None:
    """Label, compare, write and print."""
    parser = argparse.ArgumentParser(description="Label finished runs again under other settings.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with rollouts")
    parser.add_argument("-o", "--output", type=Path, required=True, help="Parquet file")
    options = parser.parse_args()
    records = [record for run in options.runs for record in relabelled(run)]
    pq.write_table(pa.Table.from_pylist(records), options.output)
    for record in records:
        print(
            "{run:28} {variant:38} {accuracy:.3f}  {difference:+.3f} ({low:+.3f} to {high:+.3f})  "
            "plain votes for want of a label {fallbacks:.2f}".format(**record)
        )


def relabelled(run: Path) -> list[dict[str, object]]:
    """Return a record a variant for one run."""
    config = load_config(TrainConfig, find_config(run), {"run": run}, lenient=True)
    standing = {
        name: Trained(method, config.but(method=method, **changed))
        for name, (method, changed) in VARIANTS.items()
    }
    right: dict[str, list[float]] = {name: [] for name in VARIANTS}
    fallbacks: dict[str, list[bool]] = {name: [] for name in VARIANTS}
    questions: list[str] = []
    with Grader() as grader:
        for block in run_steps(RolloutFiles([run]), grader, written_labels(run)):
            questions += block.query_id
            for name, method in standing.items():
                method.vote(block, np.empty(0))
                assert method.labels is not None
                right[name] += [
                    np.nan if x is None else x for x in method.labels["label_correct"].to_pylist()
                ]
                fallbacks[name] += [bool(x) for x in method.labels["fallback"].to_pylist()]
    records: list[dict[str, object]] = []
    base = np.array(right[BASE], dtype=float)
    for name, values in right.items():
        found = np.array(values, dtype=float)
        estimate = clustered_bootstrap(found - base, questions, rng=derive(0, purpose=f"ablation:{name}"))
        records.append(
            {
                "run": run.name,
                "variant": name,
                "labels": len(values),
                "accuracy": float(np.nanmean(found)),
                "difference": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "fallbacks": float(np.mean(fallbacks[name])),
            }
        )
    return records


if __name__ == "__main__":
    main()
