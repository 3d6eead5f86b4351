"""TRL: the completions that its trainers log, ``completions_STEP.parquet``.

Columns: ``step, prompt, completion``, one a reward function, ``advantage``, and extras. Prompt and completion
are text or chats. There are no log-probabilities; a reward may be taken as the score.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.interop.records import (
    Findings,
    ReadOptions,
    Record,
    chat_text,
    label_field,
    lookup,
    no_score,
    number_field,
    numbers,
    question_key,
    require,
    whole_field,
)
from dttrl.interop.sources import is_parquet, parquet_fields, parquet_rows

GOLD = ("gold", "answer", "solution", "ground_truth")
"""Columns that a data set may pass through; the first that is there is the reference answer."""


def recognise(path: Path) -> bool:
    """Whether a Parquet file has ``step, prompt, completion``."""
    return is_parquet(path) and {"step", "prompt", "completion"} <= set(parquet_fields(path))


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the completions; those of one prompt in one step are a question's rollouts."""
    gold = options.columns.get("gold") or next((n for n in GOLD if n in parquet_fields(path)), None)
    for place, row in parquet_rows(path):
        prompt = require(row, "prompt", place)
        known = numbers(row, ("step", "advantage"))
        findings.scores.update(dict.fromkeys(known))
        if options.score is not None and lookup(row, options.score) is None and options.score not in row:
            raise no_score(options.score, place, known)
        yield Record(
            place,
            question_key(prompt),
            step=whole_field(row, "step", place),
            prompt=chat_text(prompt, "prompt", place),
            gold=None if gold is None else label_field(row, gold, place),
            text=chat_text(require(row, "completion", place), "completion", place),
            confidence=None if options.score is None else number_field(row, options.score, place),
        )
