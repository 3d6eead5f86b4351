"""From the archives of ``grid.py`` to a pack of runs small enough to be kept in the repository.

    python benchmarks/findings/collect.py ARCHIVES... data/reference

It holds what ``dttrl analyze`` reads: settings, the metrics of every step (the ones that the
analyses show, to five digits), evaluations (of the ablations the first and the last), labels of the methods
and, where rollouts were kept, the history of confidences to four decimals. Paths in the settings lose the
folders of the machine that they were trained on.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml

import plan as plans
from dttrl.analysis.runs import pack_runs
from dttrl.data.schemas import EVALUATIONS, HISTORY
from dttrl.data.tables import read_metadata, read_table, write_table

METRICS = (
    "step", "majority_ratio", "label_accuracy", "majority_accuracy", "reward_accuracy", "ground_truth_ratio",
    "diversity", "diversity_weight", "auroc", "auroc_within", "positive_rate", "fallbacks", "shift",
    "confidence_mean", "learning_rate", "expected_accuracy", "latent_separation", "latent_gain",
    "latent_none", "measure",
)  # fmt: skip


def main() -> None:
    """Unpack, thin, and say how large the result is."""
    parser = argparse.ArgumentParser(description="Make a small pack of what grid.py packed.")
    parser.add_argument(
        "archives", type=Path, nargs="+", help="folders with runs.tar.xz, and tables.tar.xz if any"
    )
    parser.add_argument("target", type=Path, help="folder of the pack")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for folder in options.archives:
            unpack(folder, "runs.tar.xz", Path(work))
            if any(folder.glob("tables.tar.xz*")):
                unpack(folder, "tables.tar.xz", Path(work))
        small = Path(work) / "small"
        for run in sorted((Path(work) / "runs").iterdir()):
            keep_run(run, small / run.name)
        pack_runs(sorted(small.iterdir()), options.target)
        tables = Path(work) / "tables"
        if tables.is_dir() and any(tables.iterdir()):
            (options.target / "tables").mkdir(parents=True, exist_ok=True)
            for path in sorted(tables.glob("*.parquet")):
                shutil.copy(path, options.target / "tables" / path.name)
    size = sum(path.stat().st_size for path in options.target.rglob("*") if path.is_file())
    print(f"{options.target}: {size / 2**20:.1f} MiB")


def unpack(folder: Path, name: str, target: Path) -> None:
    """Unpack an archive, whole or in numbered parts."""
    parts = sorted(folder.glob(f"{name}.[0-9]"))
    data = b"".join(part.read_bytes() for part in parts) if parts else (folder / name).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(target, filter="data")


def keep_run(run: Path, target: Path) -> None:
    """Copy a run, thinned."""
    target.mkdir(parents=True, exist_ok=True)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    for name in ("model", "questions", "heldout", "run"):
        parts = Path(settings[name]).parts
        settings[name] = "/".join(parts[parts.index("starts" if name != "run" else "runs") + 1 :])
    (target / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    with (target / "metrics.jsonl").open("w") as file:
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            kept = {name: rounded(record[name]) for name in METRICS if record.get(name) is not None}
            file.write(json.dumps(kept, separators=(",", ":")) + "\n")
    table, metadata = (
        read_table(run / "evaluations.parquet", EVALUATIONS),
        read_metadata(run / "evaluations.parquet"),
    )
    if (run / "history.parquet").is_file():
        history = read_table(run / "history.parquet", HISTORY)
        position = history.column_names.index("confidence")
        shorter = pc.round(history.column("confidence"), 4)
        history = history.set_column(position, history.schema.field(position), shorter)
        known = read_metadata(run / "history.parquet")
        write_table(target / "history.parquet", history, HISTORY, metadata=known, overwrite=True)
    method = run.name.split(".", 1)[1].rsplit(".", 1)[0]
    if method in plans.METHODS or method in plans.LATENT:
        shutil.copy(run / "labels.parquet", target / "labels.parquet")
    else:
        step = table.column("step")
        ends = pc.or_(pc.equal(step, pc.min(step)), pc.equal(step, pc.max(step)))
        table = table.filter(ends)
    write_table(target / "evaluations.parquet", table, EVALUATIONS, metadata=metadata, overwrite=True)


def rounded(value: Any) -> Any:
    """Return a number to five significant digits."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
