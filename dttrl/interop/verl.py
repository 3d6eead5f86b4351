"""verl: the rollout dump of a training step (``STEP.jsonl``) and the Parquet file of its generation.

The dump has a line a rollout: ``input, output, score, step`` and, by version, ``gts``, ``uid`` and whatever
the reward function returned (``acc``, ``pred``). ``pred`` is left alone: what it holds where no answer was
found depends on the reward function, and the text is there. The generation has a row a question with the
column ``responses``. Neither has log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dttrl.errors import InputError
from dttrl.interop.records import (
    Findings,
    Place,
    ReadOptions,
    Record,
    chat_text,
    label,
    label_field,
    list_field,
    lookup,
    no_score,
    number_field,
    numbers,
    question_key,
    require,
    text_field,
    whole_field,
)
from dttrl.interop.sources import first_object, is_parquet, json_lines, parquet_fields, parquet_rows
from dttrl.validation import kind

_NOT_SCORES = ("step", "index")
_GENERATION = ("prompt", "responses", "data_source", "reward_model", "extra_info")


def recognise(path: Path) -> bool:
    """Whether a file is a dump (``input, output, score`` and ``step``) or a generation (``responses``)."""
    if is_parquet(path):
        fields = parquet_fields(path)
        return {"prompt", "responses"} <= set(fields) and "answer" not in fields
    row = first_object(path)
    return row is not None and {"input", "output", "step"} <= set(row)


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the rollouts of a dump or of a generation; without a ``uid`` the prompt tells the question."""
    if is_parquet(path):
        for place, row in parquet_rows(path, (*_GENERATION, *_top(options.score))):
            yield from responses(row, place, options, findings)
        return
    for place, row in json_lines(path):
        yield dumped(row, place, options, findings)


def dumped(row: dict[str, Any], place: Place, options: ReadOptions, findings: Findings) -> Record:
    """Return the rollout of one line of a dump."""
    findings.scores.update(dict.fromkeys(numbers(row, _NOT_SCORES)))
    prompt = chat_text(require(row, "input", place), "input", place)
    score = None
    if options.score is not None:
        score = number_field(row, options.score, place)
        if lookup(row, options.score) is None:
            raise no_score(options.score, place, numbers(row, _NOT_SCORES))
    return Record(
        place,
        label_field(row, "uid", place) or question_key(prompt),
        step=whole_field(row, "step", place),
        source=label_field(row, "data_source", place),
        prompt=prompt,
        gold=label_field(row, "gts", place),
        text=text_field(row, "output", place),
        confidence=score,
    )


def responses(
    row: dict[str, Any], place: Place, options: ReadOptions, findings: Findings
) -> Iterator[Record]:
    """Yield the rollouts of one row with ``responses``: all those of a question."""
    chat = require(row, "prompt", place)
    given = list_field(row, "responses", place)
    source = label_field(row, "data_source", place)
    index = label_field(row, "extra_info.index", place)
    gold = label(lookup(row, "reward_model.ground_truth"), "reward_model.ground_truth", place)
    scores = _scores(row, len(given), place, options)
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"{place}: field 'responses.{number}' is {kind(text)}, expected text")
        yield Record(
            place,
            question_key(chat) if index is None else f"{source or 'question'}-{index}",
            sample=number,
            source=source,
            prompt=chat_text(chat, "prompt", place),
            gold=gold,
            text=text,
            confidence=scores[number],
        )


def _scores(row: dict[str, Any], count: int, place: Place, options: ReadOptions) -> list[float | None]:
    """Return the score of each response: the field must hold a list of as many numbers."""
    if options.score is None:
        return [None] * count
    values = lookup(row, options.score)
    if not isinstance(values, list) or len(values) != count:
        raise InputError(f"{place}: field {options.score!r} for --score is not a list of {count} numbers")
    return [number_field({"x": value}, "x", place) for value in values]


def _top(score: str | None) -> tuple[str, ...]:
    return () if score is None else (score, score.split(".")[0])
