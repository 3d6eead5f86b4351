"""``dttrl vote``: scored rollouts -> elected answers, by one or several voting methods."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.console import Console, interval, number
from dttrl_cli.foreign import accepts_foreign

if TYPE_CHECKING:
    from dttrl.scoring.summary import VoteSummary
    from dttrl.training.replay import Replayed


class ClassesOption(StrEnum):
    """What votes together."""

    EQUIVALENT = "equivalent"
    RAW = "raw"


EXAMPLES = (
    "dttrl vote scored.parquet --method all -o votes.parquet",
    "dttrl vote scored.parquet -m sc -m mob:m=sqrt -m deepconf:top=0.5 --disagreements",
    "dttrl vote runs/first --method wsc",
)


@accepts_foreign("files", scored=True)
def vote(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Scored rollout files, folders of parts, run folders, or other tools' files.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="Method with parameters, such as distrivoting:f=majority; 'all' for all; may be repeated. "
            "On a run also ttrl, distri-gmm, ...: labels as that method would have given them. "
            "(default: sc, latent and, with confidences, distrivoting; on a run sc, latent and its own)",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write one row a method and question, as Parquet."
        ),
    ] = None,
    disagreements: Annotated[
        bool,
        typer.Option("--disagreements", help="List the questions on which methods differ, with tallies."),
    ] = False,
    classes: Annotated[
        ClassesOption,
        typer.Option("--classes", help="What votes together: equivalent answers, or equal strings only."),
    ] = ClassesOption.EQUIVALENT,
    confidence: Annotated[
        str, typer.Option("--confidence", metavar="COLUMN", help="Column of the confidences.")
    ] = "confidence",
    list_methods: Annotated[
        bool, typer.Option("--list", help="List the methods with their parameters and stop.")
    ] = False,
    kind: options.StoredKind = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Elect an answer for every question of scored rollouts and compare the methods.

    A run folder is replayed step by step, with its history of confidences.
    """
    console = Console(quiet=quiet, json_output=json_output)
    if list_methods:
        _list(console)
        return
    summary, replayed = _elect(
        console, files or [], method or [], classes=classes, confidence=confidence, kind=kind,
        output=output, overwrite=overwrite, keep_disagreements=disagreements,
    )  # fmt: skip
    for text in summary.notes:
        console.note(f"dttrl: {text}")
    _show(console, summary, seed)
    if replayed is not None:
        console.result(replayed.sentence)
    if disagreements:
        _show_disagreements(console, summary)
    if output is not None:
        console.result(f"Votes: {output}")
    console.data(_data(summary, output, seed, replayed))


def _elect(
    console: Console,
    files: list[Path],
    methods: list[str],
    *,
    classes: ClassesOption,
    confidence: str,
    kind: str | None,
    **keywords: Any,
) -> tuple[VoteSummary, Replayed | None]:
    """Replay a run, or vote on files."""
    from dttrl.answers.grading import Grader
    from dttrl.data.rollout_files import RolloutFiles
    from dttrl.errors import InputError
    from dttrl.scoring.score import stored_kind
    from dttrl.scoring.vote import vote_files
    from dttrl.training.replay import is_run, replay_run

    if not files:
        raise InputError("vote needs at least one file of scored rollouts (or --list)")
    opened = RolloutFiles(files)
    with (
        Grader(kind=kind or stored_kind(opened.metadata)) as grader,
        console.progress("vote", "rollouts", opened.num_rows) as progress,
    ):
        keywords |= {"grader": grader, "progress": progress.update}
        as_scored = classes == "equivalent" and confidence == "confidence"
        if len(files) == 1 and is_run(files[0]) and as_scored:
            return replay_run(files[0], methods, **keywords)
        keywords |= {"classes": classes.value, "confidence": confidence}
        return vote_files(files, methods, **keywords), None


def _list(console: Console) -> None:
    from dttrl.method.voting.registry import METHODS

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


def _show(console: Console, summary: VoteSummary, seed: int) -> None:
    from dttrl.analysis.accuracy import vote_interval

    rows = [
        [
            method.method,
            f"{method.correct}/{method.with_gold}" if method.with_gold else "-",
            interval(method.accuracy, *vote_interval(method, seed=seed)),
            number(method.expected_accuracy),
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
        "expected",
        "label ratio",
        "ties",
        "fallbacks",
        "no answer",
    ]
    ratio = number(summary.methods[0].majority_ratio if summary.methods else None)
    title = f"Votes on {summary.questions} questions, {summary.rollouts} rollouts (majority ratio {ratio})"
    console.table(title, columns, rows)
    if summary.methods and not summary.methods[0].with_gold:
        console.result("No gold answers: the expected accuracy is the latent vote's own estimate.")
    if len(summary.methods) > 1:
        console.result(f"Methods disagree on {summary.split_questions} of {summary.questions} questions:")
        pairs = [
            [f"{first} / {second}", str(count)] for (first, second), count in summary.disagreements.items()
        ]
        console.table("Different answers", ["methods", "questions"], pairs)


def _show_disagreements(console: Console, summary: VoteSummary) -> None:
    for split in summary.split:
        place = split.query_id if split.step is None else f"{split.query_id}, step {split.step}"
        rows = [
            [
                tally.answer,
                str(tally.count),
                number(tally.confidence),
                "yes" if tally.right else "no" if split.gold is not None else "-",
                ", ".join(tally.methods) or "-",
            ]
            for tally in split.tallies
        ]
        console.table(place, ["answer", "rollouts", "confidence", "right", "elected by"], rows)


def _data(summary: VoteSummary, output: Path | None, seed: int, replayed: Replayed | None) -> dict[str, Any]:
    from dttrl.analysis.accuracy import vote_interval

    methods = []
    for method in summary.methods:
        low, high = vote_interval(method, seed=seed)
        methods.append(
            {
                "method": method.method,
                "questions": method.questions,
                "with_gold": method.with_gold,
                "correct": method.correct,
                "accuracy": method.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
                "expected_accuracy": method.expected_accuracy,
                "majority_ratio": method.majority_ratio,
                "label_ratio": method.label_ratio,
                "ties": method.ties,
                "fallbacks": dict(method.fallbacks),
                "unanswered": method.unanswered,
            }
        )
    pairs = [
        {"first": first, "second": second, "questions": count}
        for (first, second), count in summary.disagreements.items()
    ]
    result: dict[str, Any] = {
        "output": output,
        "questions": summary.questions,
        "rollouts": summary.rollouts,
        "methods": methods,
        "split_questions": summary.split_questions,
        "disagreements": pairs,
        "notes": summary.notes,
    }
    if summary.split:
        result["split"] = [asdict(split) for split in summary.split]
    if replayed is not None:
        result["replayed"] = asdict(replayed)
    return result
