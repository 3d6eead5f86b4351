"""``dttrl analyze``: tables and figures of finished work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dttrl_cli import analyze_checkpoints, analyze_runs, options
from dttrl_cli.analysis_outputs import Analysis, analysis, show
from dttrl_cli.console import Console

app = typer.Typer(help="Tables and figures of finished work.", no_args_is_help=True)


@analysis(
    "dttrl analyze majority-ratio runs/ttrl-0 runs/ttrl-1 runs/distri-0 runs/distri-1 --plot figure.svg",
    "dttrl analyze majority-ratio runs/first -o curve.csv",
)
def majority_ratio(console: Console, runs: analyze_runs.Runs) -> Analysis:
    """Majority ratio and accuracy over the steps of runs: what consistency does to correctness.

    Runs that differ only in their seed become one curve: the mean, with the lowest and highest run. The
    accuracies are those of the evaluations, of the training questions and of the held-out ones, and are left
    out where no run has gold answers.
    """
    from dttrl.analysis.majority_ratio import TITLES, known_measures, majority_ratios

    table = majority_ratios(runs)
    measures = known_measures(table)
    for label, group in table.groupby("method", sort=False):
        count, title = group["runs"].max(), str(label)
        columns = {"step": "step"} | {TITLES[name]: name for name in measures}
        if count > 1:
            title += f", {count} runs: mean (lowest-highest)"
            columns = {"step": "step", "runs": "runs"} | columns
        show(console, title, group if count > 1 else group[list(columns.values())], columns)
    return Analysis(table, lambda figures: figures.accuracy_majority(table))


@analysis(
    "dttrl analyze accuracy scored.parquet",
    "dttrl analyze accuracy runs/first --k 1 --k 8 --json",
    plot=False,
)
def accuracy(
    console: Console,
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
    seed: options.Seed = 0,
) -> Analysis:
    """Average accuracy (avg@n), majority vote (maj@n) and pass@k, with 95 % intervals over questions."""
    from dttrl.analysis.accuracy import n_label
    from dttrl.analysis.measured import measure_paths

    with console.progress("accuracy", "questions") as progress:
        table = measure_paths(
            paths, ks=k, kind=kind, all_steps=all_steps, repeats=repeats, seed=seed, progress=progress.update
        )
    passes = [name for name in table if name.removeprefix("pass_").isdigit() and name != "pass_1"]
    show(
        console,
        "Accuracy (95 % interval over questions)",
        table.assign(step=table["step"].astype("string").fillna("-")),
        {
            "": "name",
            "step": "step",
            "questions": "questions",
            "n": lambda row: n_label(row["n_low"], row["n_high"]),
            "avg@n": "avg",
            "maj@n": "maj",
            **{name.replace("_", "@"): name for name in passes},
            "majority ratio": "majority_ratio",
        },
    )
    for name, missing in zip(table["name"], table["without_gold"], strict=True):
        if missing:
            console.note(f"dttrl: {name}: {missing} questions have no gold answer and are left out")
    return Analysis(table)


@analysis(
    "dttrl analyze budget-scaling hmmt.parquet brumo.parquet --plot budget.svg -o budget.csv",
    "dttrl analyze budget-scaling scored.parquet -m sc -m distrivoting --budget 4 --budget 16",
)
def budget_scaling(
    console: Console,
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
    seed: options.Seed = 0,
) -> Analysis:  # fmt: skip
    """Accuracy of voting methods against the voting budget, with 95 % intervals over questions and repeats.

    Each budget is drawn without replacement from the saved samples; all methods vote on the same draws.
    """
    from dttrl.analysis.budget import PAPER_METHODS, budget_table, read_benchmark

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
    return Analysis(
        table.cells,
        lambda figures: figures.budget_panels(table.cells),
        lambda rows: {"cells": rows, "notes": table.notes},
    )


@analysis(
    "dttrl analyze stopping scored.parquet brumo.parquet",
    "dttrl analyze stopping scored.parquet --samples 16..64 --until 0.99 --repeats 16",
    plot=False,
)
def stopping(
    console: Console,
    paths: Annotated[
        list[Path],
        typer.Argument(help="Scored rollouts, a file or folder of parts a benchmark.", show_default=False),
    ],
    samples: Annotated[
        str | None,
        typer.Option(
            "--samples", metavar="LOW..HIGH", show_default=False,
            help="Range of rollouts, as of generate. (default: 8 to what every question has)",
        ),
    ] = None,
    until: Annotated[
        list[float] | None,
        typer.Option(
            "--until", show_default=False,
            help="Probability at which a question stops; may be repeated. (default: 0.8, 0.875, 0.95, 0.99)",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Orders of the rollouts; the first is the samples' own.")
    ] = 1,
    kind: options.StoredKind = None,
    seed: options.Seed = 0,
) -> Analysis:  # fmt: skip
    """What stopping when sure would have saved on complete rollouts, and what it would have cost.

    Questions take their rollouts in blocks as in `dttrl generate --samples 8..64`.
    The shares are of the rollouts and tokens of all questions.
    """
    from dttrl.analysis.stopping import stopping_table

    with console.progress("stopping", "simulations") as progress:
        table = stopping_table(
            paths, samples=samples, thresholds=until, repeats=repeats, kind=kind, seed=seed,
            progress=progress.update,
        )  # fmt: skip
    show(
        console,
        "Stopping when sure",
        table,
        {
            "file": "file",
            "questions": "questions",
            "samples": "samples",
            "until": lambda row: f"{row['until']:g}",
            "sc, all": "plain",
            "latent, all": "accuracy",
            "latent, stopped": "accuracy_stopped",
            "stopped": "stopped",
            "rollouts spent": "rollouts",
            "tokens spent": "tokens",
        },
    )
    return Analysis(table)


for _command in (
    majority_ratio, accuracy, budget_scaling, stopping, *analyze_runs.COMMANDS, *analyze_checkpoints.COMMANDS,
):  # fmt: skip
    _command(app)


def _show_budget(console: Console, cells: Any) -> None:
    """The paper's table: budget and method down, benchmarks across, in per cent."""
    names = list(cells["benchmark"].unique())
    rows = []
    for budget, of_budget in cells.groupby("budget"):
        for method, of_method in of_budget.groupby("method", sort=False):
            found = {cell["benchmark"]: cell for cell in of_method.to_dict("records")}
            rows.append([str(budget), method, *(_percent(found.get(name)) for name in names)])
    repeats = cells["repeats"].max()
    console.table(
        f"Accuracy in % (95 % interval over questions and {repeats} draws)",
        ["budget", "method", *names],
        rows,
    )


def _percent(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    value, low, high = (100 * cell[f"accuracy{end}"] for end in ("", "_low", "_high"))
    return f"{value:.2f} ({low:.1f}-{high:.1f})"
