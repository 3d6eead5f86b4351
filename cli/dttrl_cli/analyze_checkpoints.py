"""``dttrl analyze checkpoints``: which checkpoint to keep without gold answers, and what the choice costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.analysis_outputs import Analysis, Columns, analysis, show
from dttrl_cli.analyze_runs import Repeats, Runs
from dttrl_cli.console import Console, number

if TYPE_CHECKING:
    import pandas as pd


@analysis(
    "dttrl analyze checkpoints runs/first",
    "dttrl analyze checkpoints data/collapse 'data/reference#*.ttrl.?' -o checkpoints.csv",
    plot=False,
)
def checkpoints(
    console: Console,
    runs: Runs,
    start: Annotated[
        bool, typer.Option("--start", help="The model before training may be chosen, too.")
    ] = False,
    repeats: Repeats = 2000,
    seed: options.Seed = 0,
) -> Analysis:
    """Which checkpoint to keep without gold answers: the one that keeps most to the first votes.

    Gain: by how much the share of rollouts that give the answer of a question's first vote has grown, mean
    over the questions. The share counts as 0 where another answer has the majority. The choice is the largest
    gain, the latest of several. With few votes (under 16) it leans to early steps. Kept: share of questions
    whose majority answer is still the first. Shared: share whose majority answer is that of another question,
    too. Neither is read by the choice.

    With gold answers the regret is shown beside that of the last step, of the highest majority ratio and of
    the best evaluation: the points of avg@n that a choice lies below the best step of its run. --json prints
    rows (a run's step each) and choices (the regrets, for each split).
    """
    from dttrl.analysis import checkpoint_choice
    from dttrl.analysis.frames import arrow
    from dttrl.analysis.grouping import group_folders, title

    table = checkpoint_choice.checkpoint_choices(group_folders(runs), start=start)
    choices = checkpoint_choice.CHOICES
    for names, part in table.groupby(["questions", "start", "method"], sort=False):
        columns: Columns = {
            "seed": "seed", "step": "step", "voted again": "again", "kept": "kept",
            "gain": lambda row: f"{row['gain']:+.3f}", "majority ratio": "majority_ratio",
            "shared": "shared",
            **{
                f"{split} avg@n": f"avg_{split}"
                for split in checkpoint_choice.SPLITS if part[f"avg_{split}"].notna().any()
            },
            "chosen by": lambda row: ", ".join(choices[name] for name in choices if row[name]) or "-",
        }  # fmt: skip
        questions, begun, method = names
        show(console, title(method, questions, begun), part, columns)
    regrets = checkpoint_choice.choice_regrets(table, seed=seed, repeats=repeats)
    if len(regrets):
        shown: Columns = {
            "questions": "split", "chosen by": lambda row: choices[row["choice"]], "runs": "runs",
            "regret": lambda row: _points(row, "regret"), "worst": lambda row: number(row["worst"], 1),
            "against last": lambda row: _points(row, "against_last", sign=True),
        }  # fmt: skip
        show(console, "Regret in points of avg@n, mean over the runs with a choice", regrets, shown)
    console.result(_sentence(table, regrets))
    return Analysis(
        table, json=lambda rows: {"rows": rows, "choices": arrow(regrets).to_pylist() if len(regrets) else []}
    )


COMMANDS = (checkpoints,)


def _sentence(table: pd.DataFrame, regrets: pd.DataFrame) -> str:
    """Say which step to keep of one run, or of many what the choice cost."""
    chosen, last = table[table["first_votes"]], table[table["last"]]
    if len(chosen) == 1:
        best, end = chosen.iloc[0], last.iloc[0]
        text = f"Without gold answers: keep step {best['step']} (gain {best['gain']:+.3f})."
        if best["step"] != end["step"]:
            text = f"{text[:-1]}, not the last, step {end['step']} ({end['gain']:+.3f})."
        if end["gain"] < 0:
            text += " The run has left its first votes; the model before training may be better still."
        return text
    other = int((chosen["step"].to_numpy() != last["step"].to_numpy()).sum())
    text = f"Without gold answers another step than the last is kept in {other} of {len(chosen)} runs."
    if len(regrets):
        split = regrets["split"].iloc[-1]
        cost = regrets[regrets["split"] == split].set_index("choice")["regret"]
        text += (
            f" On {split} questions that costs {cost['first_votes']:.2f} points, the last step "
            f"{cost['last']:.2f}, the highest majority ratio {cost['highest_ratio']:.2f}."
        )
    return text


def _points(row: Mapping[str, Any], name: str, *, sign: bool = False) -> str:
    value, low, high = (f"{row[name + end]:{'+' if sign else ''}.2f}" for end in ("", "_low", "_high"))
    return value if low == high else f"{value} ({low} to {high})"
