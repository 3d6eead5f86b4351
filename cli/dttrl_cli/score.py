"""``dttrl score``: rollouts -> answers, answer classes and confidences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dttrl.config import ScoreConfig, load_config
from dttrl_cli import options
from dttrl_cli.console import Console, number
from dttrl_cli.fields import settings
from dttrl_cli.foreign import accepts_foreign

EXAMPLES = ("dttrl score rollouts.parquet -o scored.parquet --region last-step",)


@accepts_foreign("rollouts", scored=False)
@settings(ScoreConfig)
def score(
    rollouts: Annotated[
        list[Path],
        typer.Argument(help="Rollout files, folders of parts, or other tools' files.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Scored rollouts to write.", show_default=False),
    ],
    given: dict[str, Any],
    config: options.Config = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Find the final answer of every rollout, group equal answers, and measure the confidence."""
    from dttrl.answers.grading import Grader
    from dttrl.confidence import Region
    from dttrl.rollout_files import RolloutFiles
    from dttrl.scoring import score_files

    chosen = load_config(ScoreConfig, config, given)
    console = Console(quiet=quiet, json_output=json_output)
    total = RolloutFiles(rollouts).num_rows
    with Grader(kind=chosen.kind) as grader, console.progress("score", "rollouts", total) as progress:
        summary = score_files(
            rollouts,
            output,
            grader=grader,
            region=Region.parse(chosen.region),
            measure=chosen.measure,
            kind=chosen.kind,
            last_number=chosen.last_number,
            overwrite=overwrite,
            progress=progress.update,
        )
    for text in summary.notes:
        console.note(f"dttrl: {text}")
    rows = [
        ["questions", str(summary.questions)],
        ["rollouts", str(summary.rollouts)],
        *([f"answer: {source}", str(count)] for source, count in sorted(summary.sources.items())),
        ["answer classes", str(summary.classes)],
        ["comparisons not decided", str(summary.grader.get("unknown", 0))],
        ["rollouts without confidence", str(summary.without_confidence)],
        ["accuracy", number(summary.accuracy)],
    ]
    console.table(f"Scored {output}", ["", "value"], rows)
    if summary.gold_questions < summary.questions:
        console.result(f"Accuracy is over the {summary.gold_questions} questions that have a gold answer.")
    console.data(
        {
            "output": output,
            "questions": summary.questions,
            "rollouts": summary.rollouts,
            "answers": dict(summary.sources),
            "classes": summary.classes,
            "without_confidence": summary.without_confidence,
            "gold_questions": summary.gold_questions,
            "correct_rollouts": summary.correct_rollouts,
            "gold_rollouts": summary.gold_rollouts,
            "accuracy": summary.accuracy,
            "grader": summary.grader,
            "notes": summary.notes,
        }
    )
