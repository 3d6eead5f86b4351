"""The published starts beside the lost ones: avg@16 before the first step, seed by seed.

    PYTHONPATH=.:cli python benchmarks/findings/compare_starts.py

evaluates every start of ``data/starts.tar.xz`` as a run does before its first step, and prints a Markdown
table with what the reference runs of the same seed had there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean

import plan as plans
import starts
from dttrl.analysis.runs import read_scores
from dttrl.data.questions import read_questions
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.evaluation import evaluation_summary, evaluation_table
from dttrl.training.observer import Observer
from dttrl.training.setup import open_workbench

PACK = starts.ROOT / "data" / "reference"
SPLITS = ("train", "heldout")


def main() -> None:
    """Print one row per start and split."""
    print("| start | questions | the 181 runs, seeds 0, 1, 2 | `starts.tar.xz` | difference |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        starts.gather(starts.ARCHIVE, Path(work))
        for name in plans.STARTS:
            rows = [(published(Path(work) / name, seed), reference(name, seed)) for seed in plans.SEEDS]
            for split in SPLITS:
                new, old = ([pair[side][split] for pair in rows] for side in (0, 1))
                cells = [", ".join(f"{value:.3f}" for value in values) for values in (old, new)]
                cells += [f"{fmean(new) - fmean(old):+.3f}"]
                print(f"| `{name}` | {split} | {' | '.join(cells)} |", flush=True)


def published(folder: Path, seed: int) -> dict[str, float]:
    """Return avg@16 of a start by split, evaluated as a run of this seed begins."""
    given = plans.BASE | {"method": "ttrl", "device": "cpu", "seed": str(seed)}
    given |= {"model": str(folder), "questions": str(folder / "questions.jsonl"), "run": str(folder / "run")}
    config = load_config(TrainConfig, None, {name.replace("-", "_"): value for name, value in given.items()})
    splits = {
        split: read_questions(folder / file)
        for split, file in zip(SPLITS, ("questions.jsonl", "heldout.jsonl"), strict=True)
    }
    bench = open_workbench(config, str(folder), splits)
    with bench.grader:
        return {
            split: float(evaluation_summary(evaluation_table(0, split, scored))["avg@16"])
            for split, scored in bench.evaluate(0, Observer())
        }


def reference(name: str, seed: int) -> dict[str, float]:
    """Return avg@16 by split before the first step of the reference run of ``ttrl``."""
    scores = read_scores(Path(f"{PACK}#{name}.ttrl.{seed}"))
    return {split: fmean(score.n_correct / score.n for score in scores[split][0]) for split in SPLITS}


if __name__ == "__main__":
    main()
