"""``dttrl analyze`` over the folders of training runs: shift of confidence, labels, methods side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.analysis_outputs import Analysis, analysis, estimate, records
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
    from dttrl.analysis.blocks import spans_of
    from dttrl.analysis.grouping import group_folders

    curves = [
        shift.shift_curve(group, size=block, tolerance=tolerance, seed=seed, repeats=repeats)
        for group in group_folders(runs)
    ]
    for curve in curves:
        settled = f"settled from steps {curve.settled}" if curve.settled else "not settled"
        quantiles = [f"q{round(100 * q):02d}" for q in shift.QUANTILES]
        console.table(
            f"{curve.group.title}: {settled}",
            [
                "steps", "n", "mean", "std", *(f"{round(100 * q)} %" for q in shift.QUANTILES), "shift",
                "shift / std", "distance / std",
            ],
            [
                [
                    str(span), str(row["n"]), *(number(row[name]) for name in ("mean", "std", *quantiles)),
                    estimate(row, "shift"), number(row["relative_shift"]), number(row["distance"]),
                ]
                for span, row in zip(spans_of(curve.table), records(curve.table), strict=True)
            ],
        )  # fmt: skip
    table = pd.concat([curve.table for curve in curves], ignore_index=True)
    return Analysis(table, lambda figures: figures.shift_panels(curves))


@analysis("dttrl analyze labels runs/ttrl-0 runs/distri-0 --plot labels.svg -o labels.csv")
def labels(
    console: Console,
    runs: Runs,
    block: Block = 15,
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of the calibration.")] = 10,
) -> Analysis:
    """How good the pseudo-labels were: accuracy, confusion with gold, calibration of the mixture, AUROC.

    What needs the rollouts themselves (rewards against correctness, P(correct | positive), calibration) is
    left out for runs that kept none.
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
    calibration = [
        {**quality.group.columns, **row} for quality in measured for row in records(quality.calibration)
    ]
    return Analysis(
        pd.concat([quality.blocks for quality in measured], ignore_index=True),
        lambda figures: figures.label_panels(measured),
        lambda rows: {"rows": rows, "calibration": calibration},
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
    from dttrl.analysis.blocks import spans_of
    from dttrl.analysis.grouping import group_folders, title
    from dttrl.confidence import Measure
    from dttrl.errors import InputError

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
        console.table(
            f"{title(*names)}: AUROC of confidence against correctness",
            ["source", "measure", "region", "steps", "n", "accuracy", "within", "all"],
            [
                [
                    row["source"], row["measure"], row["region"], str(span), str(row["n"]),
                    *(number(row[name]) for name in ("accuracy", "auroc_within", "auroc")),
                ]
                for span, row in zip(spans_of(part), records(part), strict=True)
            ],
        )  # fmt: skip
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
        first = shown.iloc[0]
        console.table(
            f"{questions}, from {start}: {first['question_count']} {part} questions, avg@{first['n']}",
            [
                "method", "runs", "before", "after", "change", "lowest-highest", f"against {baseline}",
                "maj before", "maj after", "majority ratio", "label accuracy",
            ],
            [
                [
                    row["method"], str(row["runs"]), estimate(row, "before"), estimate(row, "after"),
                    _signed(row, "change"), f"{row['lowest']:.3f}-{row['highest']:.3f}",
                    _signed(row, "against"), number(row["maj_before"]), number(row["maj_after"]),
                    f"{number(row['ratio_first'], 2)} > {number(row['ratio_last'], 2)}",
                    number(row["label_accuracy"]),
                ]
                for row in records(shown)
            ],
        )  # fmt: skip
    return Analysis(table, lambda figures: figures.comparison_panels(table))


COMMANDS = (distribution_shift, labels, confidence, compare)


def _show_labels(console: Console, quality: LabelQuality) -> None:
    from dttrl.analysis.blocks import spans_of

    def counts(row: dict[str, Any], *names: str) -> str:
        """Join counts; a dash where nothing was counted, such as rewards of a run without its rollouts."""
        found = [row[name] for name in names]
        return "/".join(map(str, found)) if any(found) else "-"

    console.table(
        f"{quality.group.title}, {len(quality.group.runs)} runs (labels: kept/repaired/broken/both wrong; "
        "rewards: right/wrong rewarded, right/wrong not)",
        [
            "steps", "label", "majority", "reward", "labels", "rewards", "right if positive",
            "right if negative", "AUROC", "within",
        ],
        [
            [
                str(span),
                *(number(row[f"{name}_accuracy"]) for name in ("label", "majority", "reward")),
                counts(row, *(f"labels_{name}" for name in ("kept", "repaired", "broken", "both_wrong"))),
                counts(row, *(name for name in row if name.startswith(("rollouts_rew", "rollouts_unrew")))),
                *(number(row[f"right_if_{name}"]) for name in ("positive", "negative")),
                number(row["auroc"]),
                number(row["auroc_within"]),
            ]
            for span, row in zip(spans_of(quality.blocks), records(quality.blocks), strict=True)
        ],
    )  # fmt: skip
    if len(quality.calibration):
        console.table(
            f"Calibration of the mixture (mean distance {number(quality.blocks['calibration_error'][0])})",
            ["P(positive)", "rollouts", "mean", "share right"],
            [
                [
                    f"{row['low']:.2f}-{row['high']:.2f}", str(row["n"]), number(row["probability"]),
                    number(row["right"]),
                ]
                for row in records(quality.calibration)
            ],
        )  # fmt: skip


def _signed(row: dict[str, Any], name: str) -> str:
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    return "-" if math.isnan(value) else f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
