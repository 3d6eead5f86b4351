"""Runs that collapse: the quickstart at too high learning rates, as a pack (data/collapse).

    PYTHONPATH=.:cli python benchmarks/findings/collapse.py OUT data/collapse

About three minutes a run on one CPU core. Runs that OUT has already are not trained again. The pack has no
rollouts, and the metrics that ``collect.py`` keeps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import yaml

from collect import METRICS, rounded
from dttrl.analysis.runs import pack_runs
from dttrl_cli.app import main as dttrl_main

RUNS = (("ttrl", "1e-4", 0), ("distri-gmm", "1e-4", 0), ("ttrl", "5e-5", 1))
"""Method, learning rate, seed."""
EVERY = 5


def main() -> None:
    """Train what is not there, and pack it."""
    parser = argparse.ArgumentParser(description="Train and pack runs that collapse.")
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("target", type=Path, help="folder of the pack")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as small:
        for method, rate, seed in RUNS:
            run = options.out / f"quickstart.{method}-{rate}.{seed}"
            if not run.is_dir():
                train(run, method, rate, seed)
            keep(run, Path(small) / run.name)
        pack_runs(sorted(Path(small).iterdir()), options.target)


def train(run: Path, method: str, rate: str, seed: int) -> None:
    """Train one run; ends the program where that fails."""
    code = dttrl_main([
        "train", "--config", "data/quickstart/train.yaml", "--method", method, "--seed", str(seed),
        "--learning-rate", rate, "--eval-every", str(EVERY), "--checkpoint-every", "0",
        "--no-keep-rollouts", "--run", str(run),
    ])  # fmt: skip
    if code:
        sys.exit(code)


def keep(run: Path, target: Path) -> None:
    """Copy the records of a run without the folders of the machine that it was trained on."""
    target.mkdir()
    settings = yaml.safe_load((run / "config.yaml").read_text())
    for name in ("model", "questions", "heldout"):
        settings[name] = f"data/quickstart/{Path(settings[name]).name}"
    settings["run"] = run.name
    (target / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    lines = [{name: rounded(r[name]) for name in METRICS if r.get(name) is not None} for r in records]
    (target / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("labels", "evaluations"):
        shutil.copy(run / f"{name}.parquet", target)


if __name__ == "__main__":
    main()
