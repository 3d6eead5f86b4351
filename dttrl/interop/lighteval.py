"""lighteval: ``details_TASK_DATE.parquet``, a row a document with ``doc, model_response, metric``.

``model_response.text`` has a text a sample, ``doc.choices`` at ``doc.gold_index`` is the reference answer.
``model_response.logprobs`` belongs to the choices of a log-likelihood task, not to the tokens of a text, so
there is no confidence. ``text_post_processed`` (reasoning removed) is not used: the answer is looked for
after the reasoning anyway.
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
    object_field,
    question_key,
    reference,
)
from dttrl.interop.sources import is_parquet, parquet_fields, parquet_rows
from dttrl.validation import kind

_COLUMNS = ("doc", "metric", "model_response")


def recognise(path: Path) -> bool:
    """Whether a Parquet file has the columns ``doc`` and ``model_response``."""
    return is_parquet(path) and {"doc", "model_response"} <= set(parquet_fields(path))


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the texts of each document."""
    for place, row in parquet_rows(path, _COLUMNS):
        yield from _document(row, place, options, findings)


def _document(
    row: dict[str, Any], place: Place, options: ReadOptions, findings: Findings
) -> Iterator[Record]:
    doc = object_field(row, "doc", place)
    texts = list_field(row, "model_response.text", place)
    metric = row.get("metric") if isinstance(row.get("metric"), dict) else {}
    findings.scores.update(dict.fromkeys(numbers(metric or {})))
    query = chat_text(doc.get("query"), "doc.query", place)
    task = label_field(row, "doc.task_name", place)
    number = label_field(row, "doc.id", place)
    score = None
    if options.score is not None:
        score = number_field(metric, options.score, place)
        if lookup(metric, options.score) is None:
            raise no_score(options.score, place, numbers(metric or {}))
        if len(texts) > 1:
            raise InputError(
                f"{place}: metric {options.score!r} is one value for {len(texts)} texts, so it cannot be the"
                " score of each; leave out --score"
            )
    tokens = lookup(row, "model_response.output_tokens")
    tokens = tokens if isinstance(tokens, list) and len(tokens) == len(texts) else [None] * len(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{place}: field 'model_response.text.{index}' is {kind(text)}, expected text")
        yield Record(
            place,
            question_key(query) if number is None else f"{task or 'doc'}-{number}",
            sample=index,
            source=task,
            prompt=query,
            gold=reference(_gold(doc, place)),
            text=text,
            num_tokens=len(tokens[index]) if isinstance(tokens[index], list) else None,
            confidence=score,
        )


def _gold(doc: dict[str, Any], place: Place) -> str | None:
    """Return the choice at the gold index; of several, the first."""
    choices, index = doc.get("choices"), doc.get("gold_index")
    if isinstance(index, list):
        index = index[0] if index else None
    if index is None or not choices:
        return None
    if not isinstance(choices, list) or not isinstance(index, int) or not 0 <= index < len(choices):
        raise InputError(f"{place}: field 'doc.gold_index' names no entry of 'doc.choices'")
    gold = choices[index]
    return label(gold[0] if isinstance(gold, list) and gold else gold, "doc.choices", place)
