"""lighteval: ``details_TASK_DATE.parquet``, a row a document with ``doc, model_response, metric``.

``model_response.text`` has a text a sample, ``doc.choices`` at ``doc.gold_index`` is the reference answer.
``model_response.logprobs`` belongs to the choices of a log-likelihood task, not to the tokens of a text, so
there is no confidence. ``text_post_processed`` (reasoning removed) is not used: the answer is looked for
after the reasoning anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.data.row_files import fields_of, is_parquet, parquet_rows
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, label, question_key, reference

_COLUMNS = ("doc", "metric", "model_response")


def recognise(path: Path) -> bool:
    """Whether a Parquet file has the columns ``doc`` and ``model_response``."""
    return is_parquet(path) and {"doc", "model_response"} <= fields_of(path)


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the texts of each document."""
    for place, row in parquet_rows(path, _COLUMNS):
        yield from _document(Fields(place, row), options, findings)


def _document(fields: Fields, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    doc = fields.inside("doc")
    texts = fields.texts("model_response.text")
    metric = fields.get("metric")
    values = Fields(fields.place, metric if isinstance(metric, dict) else {})
    score = values.score(options, findings, count=len(texts))
    query = fields.chat("doc.query")
    task, number = fields.label("doc.task_name"), fields.label("doc.id")
    tokens = fields.get("model_response.output_tokens")
    tokens = tokens if isinstance(tokens, list) and len(tokens) == len(texts) else [None] * len(texts)
    for index, text in enumerate(texts):
        yield Record(
            fields.place,
            question_key(query) if number is None else f"{task or 'doc'}-{number}",
            sample=index,
            source=task,
            prompt=query,
            gold=reference(_gold(doc)),
            text=text,
            num_tokens=len(tokens[index]) if isinstance(tokens[index], list) else None,
            confidence=score,
        )


def _gold(doc: Fields) -> str | None:
    """Return the choice at the gold index; of several, the first."""
    choices, index = doc.get("choices"), doc.get("gold_index")
    if isinstance(index, list):
        index = index[0] if index else None
    if index is None or not choices:
        return None
    if not isinstance(choices, list) or not isinstance(index, int) or not 0 <= index < len(choices):
        raise InputError(f"{doc.place}: field 'doc.gold_index' names no entry of 'doc.choices'")
    gold = choices[index]
    return label(gold[0] if isinstance(gold, list) and gold else gold, "doc.choices", doc.place)
