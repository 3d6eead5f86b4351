"""``dttrl advise``: which confidence tells right from wrong, and how to vote and train with it."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl_cli import options
from dttrl_cli.console import Console, interval, number
from dttrl_cli.foreign import accepts_foreign

if TYPE_CHECKING:
    from dttrl.analysis.advice import Advice

EXAMPLES = ("dttrl advise rollouts.parquet", "dttrl advise runs/first --json")


@accepts_foreign("files", scored=True)
def advise(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Rollout files, scored or not, folders of parts, run folders, or other tools' files.",
            show_default=False,
        ),
    ],
    kind: options.StoredKind = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Say which measure of confidence tells right from wrong, and how to vote and train with it.

    No gold answers are needed; where they are, they are shown beside. Measures come from the token
    statistics of the rollouts. Without these the stored confidence is judged alone.
    """
    console = Console(quiet=quiet, json_output=json_output)
    with ExitStack() as stack:
        advice, settings = _advice(console, files, kind, stack)
    for text in advice.notes:
        console.note(f"dttrl: {text}")
    _show(console, advice, seed)
    commands = _commands(advice, context.params["files"], settings)
    console.result(advice.sentence)
    for command in commands:
        console.result(f"  {command}")
    console.data(_data(advice, commands, seed))


def _advice(
    console: Console, files: list[Path], kind: str | None, stack: ExitStack
) -> tuple[Advice, dict[str, Any]]:
    """Return the advice, and the measure and region with which the files were scored."""
    from dttrl.analysis.advice import advise as advise_on
    from dttrl.analysis.runs import is_run, rollout_files
    from dttrl.answers.grading import Grader
    from dttrl.data.rollout_files import RolloutFiles
    from dttrl.errors import InputError
    from dttrl.scoring.score import score_files, stored_kind
    from dttrl.settings.sections import Scoring

    for path in files:
        if is_run(path) and not rollout_files(path):
            raise InputError(f"{path}: kept no rollouts; train with --keep-rollouts to judge confidences")
    opened = RolloutFiles(files)
    settings = {name: opened.metadata.get(name) for name in ("measure", "region")}
    grader = stack.enter_context(Grader(kind=kind or stored_kind(opened.metadata)))
    if "answer" not in opened.column_names and "text" in opened.column_names:
        console.note("dttrl: not scored yet: answers are found on the way")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dttrl-advise-"))
        scored = Path(folder) / "scored.parquet"
        score_files(files, scored, Scoring(), grader)
        opened, settings = RolloutFiles([scored]), {}
    with console.progress("advise", "rollouts", opened.num_rows) as progress:
        return advise_on(opened, grader=grader, progress=progress.update), settings


def _show(console: Console, advice: Advice, seed: int) -> None:
    from dttrl.analysis.accuracy import vote_interval

    votes = advice.votes
    rows = [
        [
            *each.name.partition(":")[::2],
            str(each.contrasts),
            f"{each.gain:+.1f}",
            number(each.separation, 2),
            number(each.auroc_vote),
            number(each.auroc_gold),
        ]
        for each in advice.measures
    ]
    columns = ["measure", "region", "contrasts", "gain", "separation", "AUROC: vote", "gold"]
    title = f"Confidence on {votes.questions} questions, {votes.rollouts} rollouts (gain in nats)"
    if rows:
        console.table(title, columns, rows)
    rows = [
        [
            method.method,
            str(advice.changed(method)),
            number(method.expected_accuracy),
            interval(method.accuracy, *vote_interval(method, seed=seed)),
        ]
        for method in votes.methods
    ]
    with_best = f" with {advice.measures[0].name}" if advice.measures else ""
    console.table(f"Votes{with_best}", ["method", "changed votes", "expected", "accuracy"], rows)


def _commands(advice: Advice, files: list[Path], settings: dict[str, Any]) -> list[str]:
    """Return the commands that follow the advice."""
    from dttrl.analysis.runs import is_run, read_config

    named = shlex.join(map(str, files))
    model, questions, run = "MODEL", "QUESTIONS", False
    if len(files) == 1 and is_run(files[0]):
        config, run = read_config(files[0]), True
        model, questions = shlex.quote(str(config["model"])), shlex.quote(str(config["questions"]))
    chosen = advice.chosen
    if chosen is None:
        vote, train = [f"dttrl vote {named} --method sc"], "--method ttrl"
    else:
        flags = " ".join(f"--{name} {value}" for name, value in chosen.settings.items())
        vote, train = [f"dttrl vote {named} --method latent"], f"--method ttrl-latent {flags}"
        if flags and settings != chosen.settings:
            # A run is voted on as it was scored: its rollouts are files of their own.
            rollouts = shlex.quote(str(files[0] / "rollouts")) if run else named
            vote = [
                f"dttrl score {rollouts} -o scored.parquet {flags}",
                "dttrl vote scored.parquet --method latent",
            ]
        elif not flags:
            return vote
    return [*vote, f"dttrl train {model} {questions} {train}"]


def _data(advice: Advice, commands: list[str], seed: int) -> dict[str, Any]:
    from dttrl.analysis.accuracy import vote_interval

    methods = []
    for method in advice.votes.methods:
        low, high = vote_interval(method, seed=seed)
        methods.append(
            {
                "method": method.method,
                "changed": advice.changed(method),
                "expected_accuracy": method.expected_accuracy,
                "with_gold": method.with_gold,
                "correct": method.correct,
                "accuracy": method.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
            }
        )
    return {
        "questions": advice.votes.questions,
        "rollouts": advice.votes.rollouts,
        "measures": [asdict(each) for each in advice.measures],
        "chosen": None if advice.chosen is None else advice.chosen.name,
        "methods": methods,
        "sentence": advice.sentence,
        "commands": commands,
        "notes": list(advice.notes),
    }
