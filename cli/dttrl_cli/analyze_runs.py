"""``dttrl analyze`` over the folders of training runs: shift of confidence, labels, methods side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.analysis_outputs import Analysis, Cell, Columns, analysis, show, steps
from dttrl_cli.console import Console, number

if TYPE_CHECKING:
    from dttrl.analysis.label_quality import LabelQuality

Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Run folders, finished or running, or runs of a pack: PACK#NAME, where * and ? match.",
        show_default=False,
    ),
]
Block = Annotated[int, typer.Option("--block", min=1, help="Steps of a block.")]
Repeats = Annotated[int, typer.Option("--repeats", min=100, help="Bootstrap draws.")]


@analysis("dttrl analyze distribution-shift runs/distri-0 runs/distri-1 --plot shift.svg")
def distribution_shift(
    console: Console,
    runs: Runs,
    block: Block = 15,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0,
            help="Shift, in standard deviations of the first block, that counts as none.",
        ),
    ] = 0.1,
    repeats: Repeats = 2000,
    seed: options.Seed = 0,
) -> Analysis:
    """Confidences block by block of training steps: where they lie, how far they moved, when they settle.

    Runs that differ only in their seed are pooled. Confidences come from the saved rollouts or, without them,
    from the history that distri-gmm keeps.
    """
    import pandas as pd

    from dttrl.analysis import shift
    from dttrl.analysis.grouping import group_folders

    curves = [
        shift.shift_curve(group, size=block, tolerance=tolerance, seed=seed, repeats=repeats)
        for group in group_folders(runs)
    ]
    for curve in curves:
        settled = f"settled from steps {curve.settled}" if curve.settled else "not settled"
        columns: Columns = {
            "steps": steps, "n": "n", "mean": "mean", "std": "std",
            **{f"{round(100 * q)} %": f"q{round(100 * q):02d}" for q in shift.QUANTILES},
            "shift": "shift", "shift / std": "relative_shift", "distance / std": "distance",
        }  # fmt: skip
        show(console, f"{curve.group.title}: {settled}", curve.table, columns)
    table = pd.concat([curve.table for curve in curves], ignore_index=True)
    return Analysis(table, lambda figures: figures.shift_panels(curves))


@analysis("dttrl analyze labels runs/ttrl-0 runs/distri-0 --plot labels.svg -o labels.csv")
def labels(
    console: Console,
    runs: Runs,
    block: Block = 15,
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of the calibration.")] = 10,
) -> Analysis:
    """How good the pseudo-labels were: accuracy, confusion with gold, calibration, AUROC.

    The probability of a label (latent vote) and P(positive) of the mixture are held against what was right.
    What needs the rollouts themselves (rewards against correctness, P(correct | positive), calibration of the
    mixture) is left out for runs that kept none.
    """
    import pandas as pd

    from dttrl.analysis import label_quality
    from dttrl.analysis.grouping import group_folders

    with console.progress("labels", "questions") as progress:
        measured = [
            label_quality.label_quality(group, size=block, bins=bins, progress=progress.update)
            for group in group_folders(runs)
        ]
    for quality in measured:
        _show_labels(console, quality)
    calibrations = {
        name: [
            {**quality.group.columns, **row}
            for quality in measured
            for row in getattr(quality, name).to_dict("records")
        ]
        for name in ("calibration", "label_calibration")
    }
    return Analysis(
        pd.concat([quality.blocks for quality in measured], ignore_index=True),
        lambda figures: figures.label_panels(measured),
        lambda rows: {"rows": rows, **calibrations},
    )


@analysis("dttrl analyze confidence runs/first --measure topk --measure entropy --region all")
def confidence(
    console: Console,
    runs: Runs,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure", show_default=False,
            help="Token statistic; may be repeated. (default: topk, logprob, perplexity, entropy)",
        ),
    ] = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region", show_default=False, help="Tokens; may be repeated. (default: last-step, all)"
        ),
    ] = None,
    block: Block = 15,
    every: Annotated[int, typer.Option("--every", min=1, help="Read every so many saved steps.")] = 1,
) -> Analysis:  # fmt: skip
    """When confidence helps: AUROC against correctness by steps, question family, measure and region.

    Needs the rollouts of the runs. "Within" compares the rollouts of one question, which is what a vote can
    use; "all" compares the rollouts of a whole step, and also rewards knowing which questions are easy.
    """
    from typing import get_args

    import pandas as pd

    from dttrl.analysis import confidence_quality
    from dttrl.analysis.grouping import group_folders, title
    from dttrl.errors import InputError
    from dttrl.method.confidence import Measure

    unknown = [name for name in measure or () if name not in get_args(Measure)]
    if unknown:
        raise InputError(f"--measure {unknown[0]}: not one of {', '.join(get_args(Measure))}")
    chosen: Any = measure or confidence_quality.MEASURES
    with console.progress("confidence", "questions") as progress:
        found = pd.concat(
            [
                confidence_quality.confidence_quality(
                    group, measures=chosen, regions=region or confidence_quality.REGIONS, size=block,
                    every=every, progress=progress.update,
                )
                for group in group_folders(runs)
            ],
            ignore_index=True,
        )  # fmt: skip
    for names, part in found.groupby(["method", "questions", "start"], sort=False):
        columns: Columns = {
            "source": "source", "measure": "measure", "region": "region", "steps": steps, "n": "n",
            "accuracy": "accuracy", "within": "auroc_within", "all": "auroc",
        }  # fmt: skip
        show(console, f"{title(*names)}: AUROC of confidence against correctness", part, columns)
    return Analysis(found, lambda figures: figures.separation_panels(found))


@analysis(
    "dttrl analyze compare runs/* --plot compare.svg -o compare.csv",
    "dttrl analyze compare 'data/reference#sums-wrong.*' --split train",
)
def compare(
    console: Console,
    runs: Runs,
    baseline: Annotated[
        str,
        typer.Option("--baseline", help="Method, as its row is called, that the others are held against."),
    ] = "ttrl",
    split: Annotated[
        str | None,
        typer.Option("--split", help="Only these questions: train or heldout.", show_default=False),
    ] = None,
    repeats: Repeats = 2000,
    seed: options.Seed = 0,
) -> Analysis:
    """Methods side by side before and after training, with 95 % intervals over questions and runs.

    Runs that differ only in their seed are one row. A row is named by its method and by the settings in
    which it departs from most runs of its method. Accuracies are those of the first and the last evaluation.
    The difference from the baseline is taken seed by seed, over the seeds that both have.
    """
    from dttrl.analysis import comparison
    from dttrl.analysis.grouping import group_folders
    from dttrl.errors import InputError

    groups = group_folders(runs)
    table = comparison.compare(groups, baseline=baseline, repeats=repeats, seed=seed)
    if split is not None:
        splits = table["split"].unique()
        if split not in splits:
            raise InputError(f"--split {split}: the runs evaluated {', '.join(splits)}")
        table = table[table["split"] == split]
    if len(groups) > 1 and table["against"].isna().all():
        console.note(f"dttrl: no other run shares questions and start with one called {baseline!r}")
    for (questions, start, part), shown in table.groupby(["questions", "start", "split"], sort=False):
        count, n = shown["question_count"].iloc[0], shown["n"].iloc[0]
        columns: Columns = {
            "method": "method", "runs": "runs", "before": "before", "after": "after",
            "change": lambda row: _signed(row, "change"),
            "lowest-highest": lambda row: f"{row['lowest']:.3f}-{row['highest']:.3f}",
            f"against {baseline}": lambda row: _signed(row, "against"),
            "maj before": "maj_before", "maj after": "maj_after",
            "majority ratio": lambda row: f"{number(row['ratio_first'], 2)} > {number(row['ratio_last'], 2)}",
            "label accuracy": "label_accuracy",
        }  # fmt: skip
        show(console, f"{questions}, from {start}: {count} {part} questions, avg@{n}", shown, columns)
    return Analysis(table, lambda figures: figures.comparison_panels(table))


COMMANDS = (distribution_shift, labels, confidence, compare)


def _show_labels(console: Console, quality: LabelQuality) -> None:
    def counts(*names: str) -> Cell:
        """Join counts; a dash where nothing was counted, such as rewards of a run without its rollouts."""
        return lambda row: "/".join(str(row[n]) for n in names) if any(row[n] for n in names) else "-"

    columns: Columns = {
        "steps": steps,
        "label": "label_accuracy", "expected": "expected_accuracy",
        "majority": "majority_accuracy", "reward": "reward_accuracy",
        "labels": counts("labels_kept", "labels_repaired", "labels_broken", "labels_both_wrong"),
        "rewards": counts(*(name for name in quality.blocks if "rewarded" in name)),
        "right if positive": "right_if_positive", "right if negative": "right_if_negative",
        "AUROC": "auroc", "within": "auroc_within",
    }  # fmt: skip
    title = (
        f"{quality.group.title}, {len(quality.group.runs)} runs (labels: kept/repaired/broken/both wrong; "
        "rewards: right/wrong rewarded, right/wrong not)"
    )
    show(console, title, quality.blocks, columns)
    first = quality.blocks.iloc[0]
    brier = f", Brier score {number(first['label_brier'])}"
    for table, heading, of, counted, error, more in (
        (quality.label_calibration, "the labels", "P(label)", "labels", "label_calibration_error", brier),
        (quality.calibration, "the mixture", "P(positive)", "rollouts", "calibration_error", ""),
    ):
        if len(table):
            title = f"Calibration of {heading} (mean distance {number(first[error])}{more})"
            columns = {
                of: lambda row: f"{row['low']:.2f}-{row['high']:.2f}",
                counted: "n", "mean": "probability", "share right": "right",
            }  # fmt: skip
            show(console, title, table, columns)


def _signed(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    return "-" if math.isnan(value) else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
