"""``dttrl analyze``: tables and figures of finished work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import analyze_runs, options
from dttrl_cli.analysis_outputs import check_outputs, write_outputs
from dttrl_cli.console import Console, interval, number

if TYPE_CHECKING:
    from dttrl.analysis.accuracy import Accuracy, Estimate
    from dttrl.analysis.budget import Cell
    from dttrl.analysis.measured import Measured

MAJORITY_EXAMPLES = (
    "dttrl analyze majority-ratio runs/ttrl-0 runs/ttrl-1 runs/distri-0 runs/distri-1 --plot figure.svg",
    "dttrl analyze majority-ratio runs/first -o curve.csv",
)
ACCURACY_EXAMPLES = (
    "dttrl analyze accuracy scored.parquet",
    "dttrl analyze accuracy runs/first --k 1 --k 8 --json",
)

BUDGET_EXAMPLES = (
    "dttrl analyze budget-scaling hmmt.parquet brumo.parquet --plot budget.svg -o budget.csv",
    "dttrl analyze budget-scaling scored.parquet -m sc -m distrivoting --budget 4 --budget 16",
)

app = typer.Typer(help="Tables and figures of finished work.", no_args_is_help=True)


@app.command("majority-ratio", epilog=options.examples(MAJORITY_EXAMPLES))
def majority_ratio(
    runs: analyze_runs.Runs,
    output: options.Frame = None,
    plot: options.Plot = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Majority ratio and accuracy over the steps of runs: what consistency does to correctness.

    Runs that differ only in their seed become one curve: the mean, with the lowest and highest run. The
    accuracies are those of the evaluations, of the training questions and of the held-out ones, and are left
    out where no run has gold answers.
    """
    from dttrl.analysis import majority
    from dttrl.analysis.runs import expand_runs

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=runs)
    groups = majority.group_runs([majority.read_run(run) for run in expand_runs(runs)])
    table = majority.frame(groups)
    shown = [name for name in majority.MEASURES if any(group.knows(name) for group in groups)]
    for group in groups:
        several = len(group.runs) > 1
        rows = [
            [
                str(step),
                *(([str(count)]) if several else []),
                *(
                    interval(*(float(part[name][i]) for part in (group.mean, group.low, group.high)))
                    if several
                    else number(float(group.mean[name][i]))
                    for name in shown
                ),
            ]
            for i, (step, count) in enumerate(zip(group.step_S.tolist(), group.count_S.tolist(), strict=True))
        ]
        names = [majority.TITLES[name] for name in shown]
        title = group.label + (f", {len(group.runs)} runs: mean (lowest-highest)" if several else "")
        console.table(title, ["step", *(["runs"] if several else []), *names], rows)
    write_outputs(
        console, table, output, plot, lambda figures: figures.accuracy_majority(groups), overwrite=overwrite
    )
    console.data(table.to_pylist())


@app.command("accuracy", epilog=options.examples(ACCURACY_EXAMPLES))
def accuracy(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Scored rollout files, folders of parts, run folders, runs of a pack (PACK#NAME).",
            show_default=False,
        ),
    ],
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k", min=1, help="k of pass@k; may be repeated. (default: 1, 4, 16, ...)", show_default=False
        ),
    ] = None,
    all_steps: Annotated[
        bool,
        typer.Option("--all-steps", help="Every evaluated step of a run, not only the first and the last."),
    ] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=100, help="Bootstrap draws.")] = 2000,
    kind: options.StoredKind = None,
    output: options.Frame = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Average accuracy (avg@n), majority vote (maj@n) and pass@k, with 95 % intervals over questions."""
    from dttrl.analysis.measured import measure_paths, measured_frame

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, None, overwrite=overwrite, inputs=paths)
    with console.progress("accuracy", "questions") as progress:
        measured = measure_paths(
            paths, ks=k, kind=kind, all_steps=all_steps, repeats=repeats, seed=seed, progress=progress.update
        )
    _show_accuracy(console, measured)
    table = measured_frame(measured)
    write_outputs(console, table, output, overwrite=overwrite)
    console.data(table.to_pylist())


@app.command("budget-scaling", epilog=options.examples(BUDGET_EXAMPLES))
def budget_scaling(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Scored rollouts, a file or folder of parts a benchmark.", show_default=False),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", show_default=False,
            help="Voting method with parameters, or 'all'; may be repeated. (default: the paper's six)",
        ),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            "--budget", min=1, show_default=False,
            help="Rollouts that vote; may be repeated. (default: 8, 16, ... 256 as far as the samples reach)",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Draws of each budget.")] = 64,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Threads.")] = 2,
    kind: options.StoredKind = None,
    output: options.Frame = None,
    plot: options.Plot = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:  # fmt: skip
    """Accuracy of voting methods against the voting budget, with 95 % intervals over questions and repeats.

    Each budget is drawn without replacement from the saved samples; all methods vote on the same draws.
    """
    from dttrl.analysis.budget import PAPER_METHODS, budget_frame, budget_table, read_benchmark

    console = Console(quiet=quiet, json_output=json_output)
    check_outputs(output, plot, overwrite=overwrite, inputs=paths)
    methods = method or PAPER_METHODS
    benchmarks = [read_benchmark(path, methods=methods, kind=kind) for path in dict.fromkeys(paths)]
    with console.progress("budget-scaling", "votes") as progress:
        table = budget_table(
            benchmarks, methods=methods, budgets=budget, repeats=repeats, seed=seed, workers=workers,
            progress=progress.update,
        )  # fmt: skip
    for text in table.notes:
        console.note(f"dttrl: {text}")
    _show_budget(console, table.cells)
    frame = budget_frame(table)
    write_outputs(
        console, frame, output, plot, lambda figures: figures.budget_panels(table.cells), overwrite=overwrite
    )
    console.data({"cells": frame.to_pylist(), "notes": table.notes})


def _show_budget(console: Console, cells: Sequence[Cell]) -> None:
    """The paper's table: budget and method down, benchmarks across, in per cent."""
    names = list(dict.fromkeys(cell.benchmark for cell in cells))
    found = {(cell.budget, cell.method, cell.benchmark): cell.accuracy for cell in cells}
    rows = []
    for budget in sorted({cell.budget for cell in cells}):
        for method in dict.fromkeys(cell.method for cell in cells if cell.budget == budget):
            accuracies = [found.get((budget, method, name)) for name in names]
            rows.append([str(budget), method, *(_percent(accuracy) for accuracy in accuracies)])
    repeats = max(cell.repeats for cell in cells)
    console.table(
        f"Accuracy in % (95 % interval over questions and {repeats} draws)",
        ["budget", "method", *names],
        rows,
    )


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{100 * estimate.value:.2f} ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})"


def _show_accuracy(console: Console, measured: Sequence[Measured]) -> None:
    ks = sorted({k for item in measured for k in item.accuracy.pass_at if k > 1})
    rows = [
        [
            item.name,
            "-" if item.step is None else str(item.step),
            str(item.accuracy.questions),
            item.accuracy.n_label,
            _interval(item.accuracy.average),
            _interval(item.accuracy.majority),
            *(_pass(item.accuracy, k) for k in ks),
            number(item.accuracy.majority_ratio),
        ]
        for item in measured
    ]
    columns = ["", "step", "questions", "n", "avg@n", "maj@n", *(f"pass@{k}" for k in ks), "majority ratio"]
    console.table("Accuracy (95 % interval over questions)", columns, rows)
    for item in measured:
        if item.without_gold:
            console.note(
                f"dttrl: {item.name}: {item.without_gold} questions have no gold answer and are left out"
            )


def _interval(estimate: Estimate) -> str:
    return interval(estimate.value, estimate.low, estimate.high)


def _pass(accuracy: Accuracy, k: int) -> str:
    estimate: Any = accuracy.pass_at.get(k)
    return "-" if estimate is None or math.isnan(estimate.value) else _interval(estimate)


for _name, _command in analyze_runs.COMMANDS.items():
    app.command(_name, epilog=options.examples(analyze_runs.EXAMPLES[_name]))(_command)
