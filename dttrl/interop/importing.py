"""Import: files of another tool -> one ROLLOUTS file, sorted by (step, query_id, sample_id), as a stream."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dttrl.data.questions import Question
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import TableWriter, sanitize
from dttrl.data.validation import check_distinct, one_line
from dttrl.errors import InputError
from dttrl.interop.fields import Findings, ReadOptions, Record
from dttrl.interop.formats import Format
from dttrl.interop.spill import Spill

_EVERY = 256  # records between two calls of the progress


@dataclass
class ImportSummary:
    """What was imported, and what can be done with it."""

    format: str
    files: int = 0
    questions: int = 0
    rollouts: int = 0
    columns: list[str] = field(default_factory=list)
    model: str | None = None
    k: int | None = None
    entries: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    possible: str = ""


def expand(sources: Sequence[Path], entry: Format) -> list[Path]:
    """Return the files behind the arguments; a folder stands for those in it with the endings of the format.

    Of a folder's files only those are taken that the format recognises (for ``columns``, all).
    """
    files: list[Path] = []
    for source in sources:
        if not source.exists():
            raise InputError(f"{source}: no such file or folder")
        if not source.is_dir():
            files.append(source)
            continue
        inside = sorted(
            path
            for ending in entry.endings
            for path in source.rglob(f"*{ending}")
            if path.is_file() and (entry.name == "columns" or entry.recognise(path))
        )
        if not inside:
            raise InputError(f"{source}: no files of format {entry.name} ({entry.recognised}) in this folder")
        files += inside
    check_distinct(files)
    if not files:
        raise InputError("no files to import were given")
    return files


def import_files(
    entry: Format,
    sources: Sequence[Path],
    output: Path,
    *,
    options: ReadOptions | None = None,
    questions: Mapping[str, Question] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ImportSummary:
    """Import files and folders of one format into ``output``.

    ``questions`` (by id) fill in prompt, reference answer and source where the files have none. Raises
    InputError that names file, line or row, and field; nothing is written then. Held in memory: a row (or a
    line) of the input, a block of rows of the output, and what ``spill`` says.
    """
    options = options or ReadOptions()
    entry.check(options)
    paths = expand(sources, entry)
    findings = Findings()
    models: dict[str, str] = {}
    unknown = 0
    TableWriter(output, ROLLOUTS.fields, metadata={}, overwrite=overwrite)  # refuses a bad output up front
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({one_line(error)})") from error
    spilled = output.with_name(f"{output.name}.spill-{os.getpid()}")
    exact = entry.name == "columns" and "sample" in options.columns
    with Spill(spilled, exact_samples=exact, same_prompts=not entry.prompts_vary) as spill:
        for path in paths:
            for record in entry.read(path, options, findings):
                record.query_id = sanitize(record.query_id)
                if questions is not None:
                    unknown += not _fill(record, questions)
                _one_model(record, models)
                spill.add(record)
                if progress is not None and spill.num_rows % _EVERY == 0:
                    progress(spill.num_rows)
        if not spill.num_rows:
            raise InputError(f"{paths[0]}: holds no rollouts of format {entry.name}")
        schema = spill.schema()
        metadata = _metadata(entry, options, findings, models, spill.present)
        with TableWriter(output, schema, metadata=metadata, overwrite=overwrite) as writer:
            for table in spill.tables(schema):
                writer.write(table)
        if progress is not None:
            progress(spill.num_rows)
        summary = ImportSummary(
            entry.name,
            files=len(paths),
            questions=len(spill.questions),
            rollouts=spill.num_rows,
            columns=list(schema.names),
            model=metadata.get("model"),
            k=metadata.get("k"),
            entries={name: count for name, count in spill.present.items() if count},
        )
    _explain(summary, options, findings, unknown)
    return summary


def _fill(record: Record, questions: Mapping[str, Question]) -> bool:
    """Complete a record from the question of its id; False where there is none."""
    question = questions.get(record.query_id)
    if question is None:
        return False
    record.prompt = question.prompt if record.prompt is None else record.prompt
    record.gold = question.answer if record.gold is None else record.gold
    record.source = question.source if record.source is None else record.source
    return True


def _one_model(record: Record, models: dict[str, str]) -> None:
    if record.model is None:
        return
    models.setdefault(record.model, str(record.place))
    if len(models) > 1:
        (first, there), (second, here) = list(models.items())[:2]
        raise InputError(
            f"{here}: model {one_line(second)!r}, but {one_line(first)!r} at {there}; import them one by one"
        )


def _metadata(
    entry: Format,
    options: ReadOptions,
    findings: Findings,
    models: Mapping[str, str],
    present: Mapping[str, int],
) -> dict[str, Any]:
    """Return the file's metadata: where it came from and what its numbers mean."""
    metadata: dict[str, Any] = {"imported_from": entry.name}
    if models:
        metadata["model"] = next(iter(models))
    if present["token_confidence"]:
        metadata["k"] = options.k or findings.facts.get("k")
        # A server says neither; OpenAI's and vLLM's defaults are the model's own, before temperature.
        metadata["logprobs_mode"] = findings.facts.get("logprobs_mode", "as the server gave them")
    if present["confidence"]:
        metadata["measure"] = f"score:{options.score or options.columns.get('confidence')}"
    return {name: value for name, value in metadata.items() if value is not None}


def _explain(summary: ImportSummary, options: ReadOptions, findings: Findings, unknown: int) -> None:
    """Say what the rollouts carry, and which votes are possible with it."""
    counts = Counter(summary.entries)
    for text, count in findings.remarks.items():
        summary.notes.append(f"{text} ({count})")
    if unknown:
        summary.notes.append(f"{unknown} rollouts answer a question that --questions does not have")
    if counts["token_confidence"]:
        summary.possible = "token confidences: all methods, after dttrl score"
        lacking = summary.rollouts - counts["token_confidence"]
        if lacking:
            summary.notes.append(f"{lacking} rollouts have no token confidences; they do not weigh in votes")
        if counts["token_offset"] < counts["token_confidence"]:
            summary.notes.append(
                "no character offsets of the tokens (the bytes are not given or not those of the text):"
                " dttrl score takes all tokens for the region last-step"
            )
    elif counts["token_logprob"]:
        summary.possible = (
            "log-probabilities of the tokens: all methods, after dttrl score --measure perplexity"
        )
    elif counts["confidence"]:
        name = options.score or options.columns.get("confidence")
        summary.possible = f"column confidence holds {name}: methods with weights, best-of-n and MoB use it"
    else:
        fields = f" (fields: {', '.join(findings.scores)})" if findings.scores else ""
        summary.possible = "no confidence: votes without weights (sc, latent)" + (
            f"; best-of-n and MoB on a stored score need --score FIELD{fields}" if fields else ""
        )
    if not counts["gold"]:
        summary.notes.append(
            "no reference answers: votes have no accuracy (--questions FILE adds them by id)"
        )
