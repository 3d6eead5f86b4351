"""``dttrl vote``: scored rollouts -> elected answers, by one or several voting methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.console import Console, interval, number

if TYPE_CHECKING:
    from dttrl.offline import MethodSummary, VoteSummary


EXAMPLES = (
    "dttrl vote scored.parquet --method all -o votes.parquet",
    "dttrl vote runs/first --method sc --method distrivoting:f=majority",
)


def vote(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Scored rollout files, folders of parts, or run folders.", show_default=False),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="Method with parameters, such as distrivoting:f=majority; 'all' for all; may be repeated. "
            "(default: distrivoting, or sc where there are no confidences)",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write one row a method and question, as Parquet."
        ),
    ] = None,
    list_methods: Annotated[
        bool, typer.Option("--list", help="List the methods with their parameters and stop.")
    ] = False,
    kind: options.StoredKind = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Elect an answer for every question of scored rollouts and compare the methods."""  # fmt: skip
    console = Console(quiet=quiet, json_output=json_output)
    if list_methods:
        _list(console)
        return
    from dttrl.answers.grading import Grader
    from dttrl.errors import InputError
    from dttrl.offline import has_confidence, vote_files
    from dttrl.rollout_files import RolloutFiles
    from dttrl.scoring import stored_kind

    if not files:
        raise InputError("vote needs at least one file of scored rollouts (or --list)")
    opened = RolloutFiles(files)
    confident = has_confidence(opened)
    methods = method or (["distrivoting"] if confident else ["sc"])
    if not method and not confident:
        console.note("dttrl: no confidences, only methods without weights are possible: majority vote (sc)")
    with (
        Grader(kind=kind or stored_kind(opened.metadata)) as grader,
        console.progress("vote", "rollouts", opened.num_rows) as progress,
    ):
        summary = vote_files(
            files, methods, grader=grader, output=output, overwrite=overwrite, progress=progress.update
        )
    for text in summary.notes:
        console.note(f"dttrl: {text}")
    _show(console, summary)
    if output is not None:
        console.result(f"Votes: {output}")
    console.data(_data(summary, output))


def _list(console: Console) -> None:
    from dttrl.voting.registry import METHODS

    rows = [
        [
            info.name,
            "yes" if info.needs_confidence else "no",
            " ".join(f"{name}={known.default}" for name, known in info.parameters.items()) or "-",
            info.summary,
        ]
        for info in METHODS.values()
    ]
    console.table("Voting methods", ["method", "confidence", "parameters", "what it is"], rows)
    console.table(
        "Parameters",
        ["method", "parameter", "may be", "default", "what it is"],
        [
            [info.name, name, known.form, str(known.default), known.meaning]
            for info in METHODS.values()
            for name, known in info.parameters.items()
        ],
    )
    console.data(
        [
            {
                "method": info.name,
                "summary": info.summary,
                "needs_confidence": info.needs_confidence,
                "parameters": {
                    name: {"default": known.default, "form": known.form, "meaning": known.meaning}
                    for name, known in info.parameters.items()
                },
            }
            for info in METHODS.values()
        ]
    )


def _show(console: Console, summary: VoteSummary) -> None:
    rows = [
        [
            method.method,
            f"{method.correct}/{method.with_gold}" if method.with_gold else "-",
            interval(method.accuracy, *_wilson(method)),
            number(method.majority_ratio),
            number(method.label_ratio),
            str(method.ties),
            str(sum(method.fallbacks.values())),
            str(method.unanswered),
        ]
        for method in summary.methods
    ]
    columns = [
        "method",
        "right",
        "accuracy",
        "majority ratio",
        "label ratio",
        "ties",
        "fallbacks",
        "no answer",
    ]
    console.table(f"Votes on {summary.questions} questions, {summary.rollouts} rollouts", columns, rows)
    if len(summary.methods) > 1:
        console.result(f"Methods disagree on {summary.split_questions} of {summary.questions} questions:")
        pairs = [
            [f"{first} / {second}", str(count)] for (first, second), count in summary.disagreements.items()
        ]
        console.table("Different answers", ["methods", "questions"], pairs)


def _wilson(method: MethodSummary) -> tuple[float, float]:
    from dttrl.analysis.accuracy import wilson_interval

    return wilson_interval(method.correct, method.with_gold)


def _data(summary: VoteSummary, output: Path | None) -> dict[str, Any]:
    methods = []
    for method in summary.methods:
        low, high = _wilson(method)
        methods.append(
            {
                "method": method.method,
                "questions": method.questions,
                "with_gold": method.with_gold,
                "correct": method.correct,
                "accuracy": method.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
                "majority_ratio": method.majority_ratio,
                "label_ratio": method.label_ratio,
                "ties": method.ties,
                "fallbacks": dict(method.fallbacks),
                "unanswered": method.unanswered,
            }
        )
    disagreements = [
        {"first": first, "second": second, "questions": count}
        for (first, second), count in summary.disagreements.items()
    ]
    return {
        "output": output,
        "questions": summary.questions,
        "rollouts": summary.rollouts,
        "methods": methods,
        "split_questions": summary.split_questions,
        "disagreements": disagreements,
        "notes": summary.notes,
    }
