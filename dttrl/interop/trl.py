"""TRL: the completions that its trainers log, ``completions_STEP.parquet``.

Columns: ``step, prompt, completion``, one a reward function, ``advantage``, and extras. Prompt and completion
are text or chats. There are no log-probabilities; a reward may be taken as the score.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.data.row_files import fields_of, is_parquet, parquet_rows
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, question_key

_NOT_SCORES = ("step", "advantage")
GOLD = ("gold", "answer", "solution", "ground_truth")
"""Columns that a data set may pass through; the first that is there is the reference answer."""


def recognise(path: Path) -> bool:
    """Whether a Parquet file has ``step, prompt, completion``."""
    return is_parquet(path) and {"step", "prompt", "completion"} <= fields_of(path)


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the completions; those of one prompt in one step are a question's rollouts."""
    names = fields_of(path)
    gold = options.columns.get("gold") or next((name for name in GOLD if name in names), None)
    for place, row in parquet_rows(path):
        fields = Fields(place, row)
        key, score = question_key(fields.need("prompt")), fields.score(options, findings, _NOT_SCORES)
        yield Record(
            place,
            key,
            step=fields.whole("step"),
            prompt=fields.chat("prompt"),
            gold=fields.label(gold),
            text=fields.chat("completion"),
            confidence=score,
        )
