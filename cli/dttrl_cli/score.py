"""``dttrl score``: rollouts -> answers, answer classes and confidences."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl.settings.commands import ScoreConfig
from dttrl.settings.files import load_config
from dttrl_cli import options
from dttrl_cli.console import Console, number
from dttrl_cli.fields import settings
from dttrl_cli.foreign import accepts_foreign

if TYPE_CHECKING:
    from dttrl.answers.explanation import Explanation
    from dttrl.answers.grading import Grader
    from dttrl.scoring.score import ScoreSummary

EXAMPLES = (
    "dttrl score rollouts.parquet -o scored.parquet --region last-step",
    "dttrl score rollouts.parquet -o scored.parquet --explain aime2024-3",
)
RULES = {
    "string": "spelling",
    "exact": "exact arithmetic and structure",
    "algebra": "algebra",
    "custom": "a custom grader",
    "unknown": "not decided (counted as different)",
}
"""How distinct pairs of answers are decided, in the order in which it is tried."""


def explain_question(output: Path, query: str, grader: Grader) -> list[Explanation]:
    """Explain the answers of one scored question; refuse a question that isn't there."""
    from dttrl.answers.explanation import explain_classes
    from dttrl.data.rollout_files import RolloutFiles
    from dttrl.errors import InputError
    from dttrl.scoring.scored_files import read_scored

    for scored in read_scored(RolloutFiles([output]), grader=grader):
        if query in scored.query_id:
            one = scored.take([scored.query_id.index(query)])
            answers = one.rows["answer"].to_pylist()
            return explain_classes(answers, one.class_RN[0], grader.for_source(one.source[0], query))
    raise InputError(f"--explain {query}: {output} has no question of that id")


def show_explanations(console: Console, query: str, explained: list[Explanation]) -> None:
    """Print one row a pair of answers."""
    rows = [
        [
            shorten(e.a),
            shorten(e.b),
            e.verdict.value,
            e.rule,
            f"{shorten(e.normalized_a)}   {shorten(e.normalized_b)}",
        ]
        for e in explained
    ]
    console.table(f"Answers of {query}", ["answer", "other answer", "equal", "why", "normalised"], rows)


def shorten(text: str) -> str:
    """Return a text of one line and at most 60 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


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
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="QUERY",
            help="Also print why the answers of this question are or are not equal.",
            show_default=False,
        ),
    ] = None,
    config: options.Config = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Find the final answer of every rollout, group equal answers, and measure the confidence."""
    from dttrl.answers.grading import Grader
    from dttrl.data.rollout_files import RolloutFiles
    from dttrl.errors import InputError
    from dttrl.scoring.score import score_files

    if output.suffix.lower() != ".parquet":
        raise InputError(f"--output {output}: rollouts are written as Parquet only; name it *.parquet")
    chosen = load_config(ScoreConfig, config, given)
    console = Console(quiet=quiet, json_output=json_output)
    total = RolloutFiles(rollouts).num_rows
    explained: list[Explanation] = []
    with Grader(kind=chosen.scoring.kind) as grader, console.progress("score", "rollouts", total) as progress:
        summary = score_files(
            rollouts, output, chosen.scoring, grader, overwrite=overwrite, progress=progress.update
        )
        if explain is not None:
            explained = explain_question(output, explain, grader)
    show_summary(console, output, summary)
    if explained:
        show_explanations(console, str(explain), explained)
    console.data(summary_data(output, summary, explained))


def notes(summary: ScoreSummary) -> list[str]:
    """Return the notes of the scoring, and what to look at where next to no answer was found."""
    from dttrl.analysis.run_summary import NO_ANSWERS
    from dttrl.scoring.score import NO_ANSWER

    without = summary.sources[NO_ANSWER] / summary.rollouts if summary.rollouts else 0.0
    if without <= NO_ANSWERS:
        return summary.notes
    advice = (
        f"no answer was found in {100 * without:.0f} % of the rollouts: look at --kind and --last-number, "
        "and at --max-new-tokens and --template of dttrl generate"
    )
    return [*summary.notes, advice]


def show_summary(console: Console, output: Path, summary: ScoreSummary) -> None:
    """Print the counts, and examples of answers that were taken as equal."""
    for text in notes(summary):
        console.note(f"dttrl: {text}")
    rows = [
        ["questions", str(summary.questions)],
        ["rollouts", str(summary.rollouts)],
        *([f"answer: {source}", str(count)] for source, count in sorted(summary.sources.items())),
        ["answer classes", str(summary.classes)],
        ["classes of several spellings", str(summary.merged)],
        *(
            [f"pairs by {text}", str(summary.grader.get(rule, 0))]
            for rule, text in RULES.items()
            if summary.grader.get(rule, 0) or rule == "unknown"
        ),
        ["workers killed", str(summary.grader.get("killed", 0))],
        ["rollouts without confidence", str(summary.without_confidence)],
        ["accuracy", number(summary.accuracy)],
    ]
    console.table(f"Scored {output}", ["", "value"], rows)
    if summary.examples:
        console.table(
            "Answers taken as equal (examples)",
            ["question", "spellings"],
            [[query, "   ".join(shorten(s) for s in spellings[:6])] for query, spellings in summary.examples],
        )
    if summary.gold_questions < summary.questions:
        console.result(f"Accuracy is over the {summary.gold_questions} questions that have a gold answer.")


def summary_data(output: Path, summary: ScoreSummary, explained: list[Explanation]) -> dict[str, Any]:
    """Return the result for machines."""
    return {
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
        "merged": summary.merged,
        "examples": [{"query_id": query, "spellings": spellings} for query, spellings in summary.examples],
        "explained": [asdict(e) | {"verdict": e.verdict.value} for e in explained],
        "notes": notes(summary),
    }
