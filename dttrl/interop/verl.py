"""verl: the rollout dump of a training step (``STEP.jsonl``) and the Parquet file of its generation.

The dump has a line a rollout: ``input, output, score, step`` and, by version, ``gts``, ``uid`` and whatever
the reward function returned (``acc``, ``pred``). ``pred`` is left alone: what it holds where no answer was
found depends on the reward function, and the text is there. The generation has a row a question with the
column ``responses``. Neither has log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.data.row_files import fields_of, is_parquet, json_lines, parquet_rows
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, question_key

_NOT_SCORES = ("step", "index")
_GENERATION = ("prompt", "responses", "data_source", "reward_model", "extra_info")


def recognise(path: Path) -> bool:
    """Whether a file is a dump (``input, output, score`` and ``step``) or a generation (``responses``)."""
    fields = fields_of(path)
    if is_parquet(path):
        return {"prompt", "responses"} <= fields and "answer" not in fields
    return {"input", "output", "step"} <= fields


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the rollouts of a dump or of a generation; without a ``uid`` the prompt tells the question."""
    if is_parquet(path):
        score = options.score or ""
        for place, row in parquet_rows(path, (*_GENERATION, score, score.split(".")[0])):
            yield from responses(Fields(place, row), options)
        return
    for place, row in json_lines(path):
        yield dumped(Fields(place, row), options, findings)


def dumped(fields: Fields, options: ReadOptions, findings: Findings) -> Record:
    """Return the rollout of one line of a dump."""
    prompt = fields.chat("input")
    score = fields.score(options, findings, _NOT_SCORES)
    return Record(
        fields.place,
        fields.label("uid") or question_key(prompt),
        step=fields.whole("step"),
        source=fields.label("data_source"),
        prompt=prompt,
        gold=fields.label("gts"),
        text=fields.text("output"),
        confidence=score,
    )


def responses(fields: Fields, options: ReadOptions) -> Iterator[Record]:
    """Yield the rollouts of one row with ``responses``: all those of a question."""
    key, prompt = question_key(fields.need("prompt")), fields.chat("prompt")
    source, index = fields.label("data_source"), fields.label("extra_info.index")
    gold = fields.label("reward_model.ground_truth")
    texts = fields.texts("responses")
    scores = _scores(fields, len(texts), options.score)
    for number, text in enumerate(texts):
        yield Record(
            fields.place,
            key if index is None else f"{source or 'question'}-{index}",
            sample=number,
            source=source,
            prompt=prompt,
            gold=gold,
            text=text,
            confidence=scores[number],
        )


def _scores(fields: Fields, count: int, name: str | None) -> list[float | None]:
    """Return the score of each response: the field must hold a list of as many numbers."""
    if name is None:
        return [None] * count
    values = fields.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise InputError(f"{fields.place}: field {name!r} for --score is not a list of {count} numbers")
    return [fields.number(f"{name}.{index}") for index in range(count)]
