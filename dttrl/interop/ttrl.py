"""TTRL: its questions (``prompt, answer, source, id``) with the sampled ``responses``, and its verl dumps.

TTRL trains through verl, so a step's dump is verl's. Its question files carry no rollouts by themselves; what
is read is a JSON lines or Parquet file of such rows to which a generation added ``responses`` (or ``output``,
``outputs``), a list of texts or one text. No log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.data.row_files import fields_of, is_parquet, json_lines, parquet_rows
from dttrl.errors import InputError
from dttrl.interop import verl
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, question_key, texts

_RESPONSES = ("responses", "outputs", "output")


def recognise(path: Path) -> bool:
    """Whether a file has TTRL's question fields and responses."""
    fields = fields_of(path)
    return {"prompt", "answer"} <= fields and bool(fields.intersection(_RESPONSES))


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the rollouts of TTRL's questions with responses, or of a dump of its trainer."""
    for place, row in parquet_rows(path) if is_parquet(path) else json_lines(path):
        fields = Fields(place, row)
        if "input" in row and "prompt" not in row:
            yield verl.dumped(fields, options, findings)
        elif "reward_model" in row and "answer" not in row:
            yield from verl.responses(fields, options)
        else:
            yield from _rollouts(fields, options)


def _rollouts(fields: Fields, options: ReadOptions) -> Iterator[Record]:
    place = fields.place
    if options.score is not None:
        raise InputError(f"{place}: --score is for a verl dump, and this row is a question with responses")
    name = next((name for name in _RESPONSES if fields.get(name) is not None), "responses")
    given = fields.need(name)
    prompt = fields.chat("prompt")
    for text in texts(given if isinstance(given, list) else [given], name, place):
        yield Record(
            place,
            fields.label("id") or fields.label("unique_id") or question_key(prompt),
            source=fields.label("source"),
            prompt=prompt,
            gold=fields.label("answer"),
            text=text,
        )
