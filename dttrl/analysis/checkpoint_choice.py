"""Which checkpoint of a run to keep: the choice without gold answers, beside others and what each costs.

A choice is between the evaluated steps after the first update; where nothing was evaluated, between the
steps at which an evaluation would have been due. The *regret* of a step is how many points its avg@n lies
below that of the best one of the run, which no choice can know: evaluations are samples, so that even two
equal checkpoints differ by about a point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dttrl.analysis.accuracy import avg_at_n, clustered_bootstrap
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import read_config, read_records, read_scores
from dttrl.data.schemas import EVALUATIONS, LABELS
from dttrl.errors import InputError
from dttrl.method.first_votes import COLUMNS, Standing, best_standing, standings_of
from dttrl.rng import derive

CHOICES = {
    "first_votes": "first votes",
    "last": "last",
    "highest_ratio": "highest majority ratio",
    "gold": "gold",
}
"""The choices, and how people are shown them; ``gold``: the best held-out evaluation, else of training."""
SPLITS = ("train", "heldout")


def checkpoint_choices(groups: Sequence[RunGroup], *, start: bool = False) -> pd.DataFrame:
    """Return a row for each run and checkpoint: its standing, avg@n, regret in points, and who chose it.

    ``start``: the model before training may be chosen, too. Raises InputError for a run without any vote.
    """
    rows = [
        {**group.columns, "run": run.name.rpartition("#")[2], "seed": seed, **row}
        for group in groups
        for run, seed in zip(group.runs, group.seeds, strict=True)
        for row in _rows(run, start=start)
    ]
    return frame(rows)


def choice_regrets(
    table: pd.DataFrame, *, choices: Iterable[str] = CHOICES, seed: int = 0, repeats: int = 2000
) -> pd.DataFrame:
    """Return a row for each split and choice: mean regret in points over the runs that had a choice.

    ``choices`` are columns that mark the chosen step of every run. ``against_last`` is the difference from
    always keeping the last checkpoint. Intervals draw pairs of start and seed, as their runs are alike.
    """
    rows = []
    for split in SPLITS:
        known = table[table[f"regret_{split}"].notna()]
        several = known[known.groupby(_RUN)["step"].transform("size") > 1]
        last = several[several["last"]].set_index(_RUN)[f"regret_{split}"]
        for name in choices:
            chosen = several[several[name]].set_index(_RUN)[f"regret_{split}"]
            if chosen.empty:
                continue
            clusters = ["/".join(map(str, (*key[:2], key[-1]))) for key in chosen.index]
            rng = derive(seed, query=split, purpose="checkpoint-choice")
            against = chosen - last.reindex(chosen.index)
            rows.append(
                {
                    "split": split,
                    "choice": name,
                    "runs": len(chosen),
                    "regret": clustered_bootstrap(chosen, clusters, rng=rng, repeats=repeats),
                    "worst": float(chosen.max()),
                    "against_last": clustered_bootstrap(against, clusters, rng=rng, repeats=repeats),
                }
            )
    return frame(rows)


def run_standings(run: Path, *, start: bool = False) -> list[Standing]:
    """Return the standings of a run's checkpoints; [] where it has no vote of a training question."""
    votes = _votes(run)
    if votes is None:
        return []
    settings = read_config(run)
    steps = {step for scores in read_scores(run).values() for step in scores if step}
    if not steps:
        end, every = pc.max(votes["step"]).as_py(), settings["eval_every"]
        steps = {step for step in range(1, end + 1) if step == end or (every and step % every == 0)}
    return standings_of(votes, steps | {0} if start else steps, kind=settings["kind"])


def evaluated_accuracy(run: Path, split: str) -> dict[int, float]:
    """Return avg@n of a split by evaluated step."""
    return {
        step: avg_at_n([score.n_correct for score in scores], [score.n for score in scores])
        for step, scores in read_scores(run).get(split, {}).items()
    }


_RUN = ["questions", "start", "method", "run", "seed"]


def _rows(run: Path, *, start: bool) -> list[dict[str, Any]]:
    found = run_standings(run, start=start)
    if not found:
        raise InputError(f"{run}: the run has no votes yet (neither labels nor evaluations after a step)")
    accuracy = {split: evaluated_accuracy(run, split) for split in SPLITS}
    steps = [standing.step for standing in found]
    value_S = {split: [accuracy[split].get(step, math.nan) for step in steps] for split in SPLITS}
    best = {
        split: max((v for v in value_S[split] if not math.isnan(v)), default=math.nan) for split in SPLITS
    }
    judge = next((split for split in ("heldout", "train") if not math.isnan(best[split])), None)
    chosen = {
        "first_votes": best_standing(found).step,
        "last": steps[-1],
        "highest_ratio": max(found, key=lambda s: (_or_least(s.majority_ratio), s.step)).step,
        "gold": None if judge is None else steps[value_S[judge].index(best[judge])],
    }
    return [
        {
            "step": standing.step,
            "again": standing.again,
            "kept": standing.kept,
            "gain": standing.gain,
            "majority_ratio": standing.majority_ratio,
            "shared": standing.shared,
            **{f"avg_{split}": value_S[split][i] for split in SPLITS},
            **{f"regret_{split}": 100.0 * (best[split] - value_S[split][i]) for split in SPLITS},
            **{name: standing.step == step for name, step in chosen.items()},
        }
        for i, standing in enumerate(found)
    ]


def _votes(run: Path) -> pa.Table | None:
    """Return the votes of training; of a run whose labels were not kept, those of its evaluations."""
    labels = read_records(run, LABELS, columns=COLUMNS)
    if labels is not None and labels.num_rows:
        return labels
    evaluations = read_records(run, EVALUATIONS)
    if evaluations is None:
        return None
    trained = evaluations.filter(pc.equal(evaluations["split"], "train"))
    return trained.rename_columns({"answer": "majority_answer"}).select(COLUMNS) if len(trained) else None


def _or_least(value: float) -> float:
    return -math.inf if math.isnan(value) else value
