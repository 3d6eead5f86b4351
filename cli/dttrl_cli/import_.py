"""``dttrl import``: rollouts that another tool saved -> rollouts of ours."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dttrl_cli import options
from dttrl_cli.console import Console

if TYPE_CHECKING:
    from dttrl.interop.importing import ImportSummary

EXAMPLES = (
    "dttrl import verl rollouts/40.jsonl -o rollouts.parquet",
    "dttrl import openai batch_output.jsonl --questions questions.jsonl -o rollouts.parquet",
    "dttrl import columns table.csv --columns question=qid,answer=pred,confidence=score -o rollouts.parquet",
)


def import_(
    format_: Annotated[
        str | None,
        typer.Argument(metavar="FORMAT", help="Name of the format; --list has them.", show_default=False),
    ] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC...", help="Files of the tool, or folders of them.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Rollouts to write, as Parquet.", show_default=False
        ),
    ] = None,
    list_formats: Annotated[
        bool, typer.Option("--list", help="List the formats: how recognised, what they carry; and stop.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="ROLE=FIELD,...",
            help="Where things are: question, id, sample, answer, confidence, gold, text, step, source. "
            "For format columns; gold also for trl and lm-eval; question, sample, gold, answer for openai.",
            show_default=False,
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", metavar="FIELD", help="Keep this stored score as the confidence."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            "--questions", metavar="FILE", help="Question file: fills in prompts and reference answers by id."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", min=1, help="Log-probabilities a token that were asked for. (default: told from the file)"
        ),
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles (only plain data, in a process of its own).")
    ] = False,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Turn rollouts that another tool saved into rollouts for score, vote and analyze."""
    console = Console(quiet=quiet, json_output=json_output)
    if list_formats:
        _list(console)
        return
    from dttrl.data.questions import read_questions
    from dttrl.errors import InputError
    from dttrl.interop.fields import ReadOptions
    from dttrl.interop.formats import format_named
    from dttrl.interop.importing import import_files

    if format_ is None or not sources or output is None:
        raise InputError("import needs a format, at least one file and --output FILE (or --list)")
    entry = format_named(format_)
    known = None if questions is None else {entry.id: entry for entry in read_questions(questions)}
    chosen = ReadOptions(score=score, columns=roles(columns), k=k, allow_pickle=allow_pickle)
    with console.progress("import", "rollouts") as progress:
        summary = import_files(
            entry,
            sources,
            output,
            options=chosen,
            questions=known,
            overwrite=overwrite,
            progress=progress.update,
        )
    _show(console, summary, output)


def roles(text: str | None) -> dict[str, str]:
    """Read ``--columns``: "question=qid,answer=pred" -> {"question": "qid", "answer": "pred"}."""
    from dttrl.errors import InputError
    from dttrl.interop.fields import ROLES

    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        role, sign, name = (piece.strip() for piece in part.partition("="))
        if not sign or not name or role not in ROLES or role in found:
            raise InputError(
                f"--columns: {part.strip()!r} is not ROLE=FIELD; roles, once each: {', '.join(ROLES)}"
            )
        found[role] = name
    return found


def _list(console: Console) -> None:
    from dttrl.interop.formats import FORMATS

    keys = ("format", "summary", "recognised", "carries")
    rows = [(entry.name, entry.summary, entry.recognised, entry.carries) for entry in FORMATS.values()]
    shown = [[name, recognised, carries, summary] for name, summary, recognised, carries in rows]
    console.table("Formats", ["format", "recognised by", "carries", "what it is"], shown)
    console.data([dict(zip(keys, row, strict=True)) for row in rows])


def _show(console: Console, summary: ImportSummary, output: Path) -> None:
    for text in summary.notes:
        console.note(f"dttrl: {text}")
    rows = [
        ["files", str(summary.files)],
        ["questions", str(summary.questions)],
        ["rollouts", str(summary.rollouts)],
        ["model", summary.model or "-"],
        *([f"with {name}", str(count)] for name, count in summary.entries.items() if name != "query_id"),
    ]
    console.table(f"Imported {output} from {summary.format}", ["", "value"], rows)
    console.result(f"Possible: {summary.possible}.")
    console.data({"output": output, **asdict(summary)})
