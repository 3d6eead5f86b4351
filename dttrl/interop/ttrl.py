"""TTRL: its questions (``prompt, answer, source, id``) with the sampled ``responses``, and its verl dumps.

TTRL trains through verl, so a step's dump is verl's. Its question files carry no rollouts by themselves; what
is read is a JSON lines or Parquet file of such rows to which a generation added ``responses`` (or ``output``,
``outputs``), a list of texts or one text. No log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dttrl.errors import InputError
from dttrl.interop import verl
from dttrl.interop.records import (
    Findings,
    Place,
    ReadOptions,
    Record,
    chat_text,
    label_field,
    question_key,
    require,
)
from dttrl.interop.sources import first_object, is_parquet, json_lines, parquet_fields, parquet_rows
from dttrl.validation import kind

_RESPONSES = ("responses", "outputs", "output")


def recognise(path: Path) -> bool:
    """Whether a file has TTRL's question fields and responses."""
    fields = set(parquet_fields(path)) if is_parquet(path) else set(first_object(path) or ())
    return {"prompt", "answer"} <= fields and bool(fields.intersection(_RESPONSES))


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the rollouts of TTRL's questions with responses, or of a dump of its trainer."""
    for place, row in parquet_rows(path) if is_parquet(path) else json_lines(path):
        if "input" in row and "prompt" not in row:
            yield verl.dumped(row, place, options, findings)
        elif "reward_model" in row and "answer" not in row:
            yield from verl.responses(row, place, options, findings)
        else:
            yield from _rollouts(row, place, options)


def _rollouts(row: dict[str, Any], place: Place, options: ReadOptions) -> Iterator[Record]:
    if options.score is not None:
        raise InputError(f"{place}: --score is for a verl dump, and this row is a question with responses")
    field = next((name for name in _RESPONSES if row.get(name) is not None), "responses")
    given = require(row, field, place)
    prompt = chat_text(require(row, "prompt", place), "prompt", place)
    for number, text in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(text, str):
            raise InputError(f"{place}: field '{field}.{number}' is {kind(text)}, expected text")
        yield Record(
            place,
            label_field(row, "id", place) or label_field(row, "unique_id", place) or question_key(prompt),
            source=label_field(row, "source", place),
            prompt=prompt,
            gold=label_field(row, "answer", place),
            text=text,
        )
