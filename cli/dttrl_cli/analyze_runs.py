"""``dttrl analyze`` over the folders of training runs: shift of confidence, labels, methods side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.analysis_outputs import check_outputs, write_outputs
from dttrl_cli.console import Console, interval, number

if TYPE_CHECKING:
    from dttrl.analysis.accuracy import Estimate
    from dttrl.analysis.comparison import ComparisonRow
    from dttrl.analysis.label_quality import LabelQuality

EXAMPLES = {
    "distribution-shift": ("dttrl analyze distribution-shift runs/distri-0 runs/distri-1 --plot shift.svg",),
    "labels": ("dttrl analyze labels runs/ttrl-0 runs/distri-0 --plot labels.svg -o labels.csv",),
    "confidence": ("dttrl analyze confidence runs/first --measure topk --measure entropy --region all",),
    "compare": (
        "dttrl analyze compare runs/* --plot compare.svg -o compare.csv",
        "dttrl analyze compare 'data/reference#sums-wrong.*' --split train",
    ),
}

Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Run folders, finished or running, or runs of a pack: PACK#NAME, where * and ? match.",
        show_default=False,
    ),
]
Block = Annotated[int, typer.Option("--block", min=1, help="Steps of a block.")]
Repeats = Annotated[int, typer.Option("--repeats", min=100, help="Bootstrap draws.")]


def distribution_shift(
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
    output: options.Frame = None,
    plot: options.Plot = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Confidences block by block of training steps: where they lie, how far they moved, when they settle.

    Runs that differ only in their seed are pooled. Confidences come from the saved rollouts or, without them,
    from the history that distri-gmm keeps.
    """
    from dttrl.analysis import shift
    from dttrl.analysis.grouping import group_folders

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=runs)
    curves = [
        shift.shift_curve(group, size=block, tolerance=tolerance, seed=seed, repeats=repeats)
        for group in group_folders(runs)
    ]
    for curve in curves:
        rows = [
            [
                str(item.span), str(item.value_N.size), number(item.mean), number(item.std),
                *(number(value) for value in item.quantiles), _interval(item.shift),
                number(item.relative_shift), number(item.distance),
            ]
            for item in curve.blocks
        ]  # fmt: skip
        ended = f"settled from steps {curve.settled}" if curve.settled else "not settled"
        names = [f"{round(100 * q)} %" for q in shift.QUANTILES]
        console.table(
            f"{curve.group.title}: {ended}",
            ["steps", "n", "mean", "std", *names, "shift", "shift / std", "distance / std"],
            rows,
        )
    table = shift.shift_frame(curves)
    write_outputs(
        console, table, output, plot, lambda figures: figures.shift_panels(curves), overwrite=overwrite
    )
    console.data(table.to_pylist())


def labels(
    runs: Runs,
    block: Block = 15,
    bins: Annotated[int, typer.Option("--bins", min=1, help="Bins of the calibration.")] = 10,
    output: options.Frame = None,
    plot: options.Plot = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """How good the pseudo-labels were: accuracy, confusion with gold, calibration of the mixture, AUROC.

    What needs the rollouts themselves (rewards against correctness, P(correct | positive), calibration) is
    left out for runs that kept none.
    """
    from dttrl.analysis import label_quality
    from dttrl.analysis.grouping import group_folders

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=runs)
    with console.progress("labels", "questions") as progress:
        measured = [
            label_quality.label_quality(group, size=block, bins=bins, progress=progress.update)
            for group in group_folders(runs)
        ]
    for quality in measured:
        _show_labels(console, quality)
    table = label_quality.quality_frame(measured)
    write_outputs(
        console, table, output, plot, lambda figures: figures.label_panels(measured), overwrite=overwrite
    )
    calibration = [
        {"questions": q.group.questions, "start": q.group.start, "method": q.group.label, **vars(row)}
        for q in measured
        for row in q.calibration
    ]
    console.data({"rows": table.to_pylist(), "calibration": calibration})


def confidence(
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
    output: options.Frame = None,
    plot: options.Plot = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:  # fmt: skip
    """When confidence helps: AUROC against correctness by steps, question family, measure and region.

    Needs the rollouts of the runs. "Within" compares the rollouts of one question, which is what a vote can
    use; "all" compares the rollouts of a whole step, and also rewards knowing which questions are easy.
    """
    from typing import get_args

    from dttrl.analysis import confidence_quality
    from dttrl.analysis.grouping import group_folders
    from dttrl.confidence import Measure
    from dttrl.errors import InputError

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=runs)
    unknown = [name for name in measure or () if name not in get_args(Measure)]
    if unknown:
        raise InputError(f"--measure {unknown[0]}: not one of {', '.join(get_args(Measure))}")
    chosen: Any = measure or confidence_quality.MEASURES
    with console.progress("confidence", "questions") as progress:
        found = [
            item
            for group in group_folders(runs)
            for item in confidence_quality.confidence_quality(
                group, measures=chosen, regions=region or confidence_quality.REGIONS, size=block,
                every=every, progress=progress.update,
            )
        ]  # fmt: skip
    for title in dict.fromkeys(item.group.title for item in found):
        rows = [
            [
                item.source, item.measure, item.region, str(item.span), str(item.n), number(item.accuracy),
                number(item.within), number(item.pooled),
            ]
            for item in found
            if item.group.title == title
        ]  # fmt: skip
        console.table(
            f"{title}: AUROC of confidence against correctness",
            ["source", "measure", "region", "steps", "n", "accuracy", "within", "all"],
            rows,
        )
    frame = confidence_quality.separation_frame(found)
    write_outputs(
        console, frame, output, plot, lambda figures: figures.separation_panels(found), overwrite=overwrite
    )
    console.data(frame.to_pylist())


def compare(
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
    output: options.Frame = None,
    plot: options.Plot = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Methods side by side before and after training, with 95 % intervals over questions and runs.

    Runs that differ only in their seed are one row. A row is named by its method and by the settings in
    which it departs from most runs of its method. Accuracies are those of the first and the last evaluation.
    The difference from the baseline is taken seed by seed, over the seeds that both have.
    """
    from dttrl.analysis import comparison
    from dttrl.analysis.grouping import group_folders
    from dttrl.errors import InputError

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=runs)
    groups = group_folders(runs)
    rows = comparison.compare(groups, baseline=baseline, repeats=repeats, seed=seed)
    splits = list(dict.fromkeys(row.split for row in rows))
    if split is not None and split not in splits:
        raise InputError(f"--split {split}: the runs evaluated {', '.join(splits)}")
    rows = [row for row in rows if split in (None, row.split)]
    if len(groups) > 1 and all(math.isnan(row.against.value) for row in rows):
        console.note(f"dttrl: no other run shares questions and start with one called {baseline!r}")
    _show_comparison(console, rows, baseline)
    table = comparison.comparison_frame(rows)
    write_outputs(
        console, table, output, plot, lambda figures: figures.comparison_panels(rows), overwrite=overwrite
    )
    console.data(table.to_pylist())


COMMANDS: dict[str, Callable[..., None]] = {
    "distribution-shift": distribution_shift,
    "labels": labels,
    "confidence": confidence,
    "compare": compare,
}


def _show_labels(console: Console, quality: LabelQuality) -> None:
    rows = []
    for block in quality.blocks:
        means, votes, counts = block.means, block.confusion, block.rollouts
        rows.append(
            [
                str(block.span),
                number(means["label_accuracy"]),
                number(means["majority_accuracy"]),
                number(means["reward_accuracy"]),
                _counts(votes.kept, votes.repaired, votes.broken, votes.both_wrong),
                _counts(
                    counts.rewarded_right, counts.rewarded_wrong, counts.unrewarded_right,
                    counts.unrewarded_wrong,
                ),
                number(counts.right_if_positive),
                number(counts.right_if_negative),
                number(means["auroc"]),
                number(means["auroc_within"]),
            ]
        )  # fmt: skip
    console.table(
        f"{quality.group.title}, {len(quality.group.runs)} runs (labels: kept/repaired/broken/both wrong; "
        "rewards: right/wrong rewarded, right/wrong not)",
        [
            "steps", "label", "majority", "reward", "labels", "rewards", "right if positive",
            "right if negative", "AUROC", "within",
        ],
        rows,
    )  # fmt: skip
    if quality.calibration:
        console.table(
            f"Calibration of the mixture (mean distance {number(quality.calibration_error)})",
            ["P(positive)", "rollouts", "mean", "share right"],
            [
                [f"{row.low:.2f}-{row.high:.2f}", str(row.n), number(row.probability), number(row.right)]
                for row in quality.calibration
            ],
        )


def _show_comparison(console: Console, rows: Sequence[ComparisonRow], baseline: str) -> None:
    for place in dict.fromkeys((row.group.questions, row.group.start, row.split) for row in rows):
        shown = [row for row in rows if (row.group.questions, row.group.start, row.split) == place]
        questions, start, split = place
        console.table(
            f"{questions}, from {start}: {shown[0].questions} {split} questions, avg@{shown[0].n}",
            [
                "method", "runs", "before", "after", "change", "lowest-highest", f"against {baseline}",
                "maj before", "maj after", "majority ratio", "label accuracy",
            ],
            [
                [
                    row.group.label,
                    str(len(row.group.runs)),
                    _interval(row.before),
                    _interval(row.after),
                    _signed(row.change),
                    f"{row.lowest:.3f}-{row.highest:.3f}",
                    _signed(row.against),
                    number(row.maj_before),
                    number(row.maj_after),
                    f"{number(row.ratio_first, 2)} > {number(row.ratio_last, 2)}",
                    number(row.label_accuracy),
                ]
                for row in shown
            ],
        )  # fmt: skip


def _counts(*counts: int) -> str:
    """Join counts; a dash where nothing was counted, such as rewards of a run without its rollouts."""
    return "/".join(map(str, counts)) if any(counts) else "-"


def _interval(estimate: Estimate) -> str:
    return interval(estimate.value, estimate.low, estimate.high)


def _signed(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"
