"""lm-evaluation-harness: ``samples_TASK_DATE.jsonl``, a line a document and filter.

Read are ``doc_id, target, arguments, resps, filtered_resps, filter``. Only generated text is a rollout;
log-likelihood tasks are refused. A task with several filters has a line for each: those of the first filter
are read. What the filter extracted is the answer where it left one text a response; ``[invalid]`` is none.
Metric values belong to a document, so they are a score only where it has one response.
"""

from __future__ import annotations

import re
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
    reference,
    require,
)
from dttrl.interop.sources import first_object, json_lines, parse_object
from dttrl.validation import kind

_NAME = re.compile(r"^samples_(?P<task>.+?)_\d{4}-\d\d-\d\dT.*$")
_INVALID = "[invalid]"


def recognise(path: Path) -> bool:
    """Whether the first line has ``doc_id, resps`` and ``filtered_resps``."""
    row = first_object(path)
    return row is not None and {"doc_id", "resps", "filtered_resps"} <= set(row)


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the responses of each document; the task's name comes from the file's."""
    named = _NAME.match(path.stem)
    task = named["task"] if named else path.stem
    chosen: Any = None
    for number, (place, row) in enumerate(json_lines(path)):
        if number == 0:
            chosen = row.get("filter")
        if row.get("filter") != chosen:
            findings.remarks[f"{path.name}: rows of filters other than {chosen!r} were passed over"] += 1
            continue
        yield from _document(row, task, place, options, findings)


def _document(
    row: dict[str, Any], task: str, place: Place, options: ReadOptions, findings: Findings
) -> Iterator[Record]:
    texts = _responses(list_field(row, "resps", place), place)
    answers = _answers(row, len(texts))
    findings.scores.update(dict.fromkeys(numbers(row, ("doc_id",))))
    gold = options.columns.get("gold")
    prompt = _prompt(row, place)
    score = None
    if options.score is not None:
        if lookup(row, options.score) is None:
            raise no_score(options.score, place, numbers(row, ("doc_id",)))
        if len(texts) > 1:
            raise InputError(
                f"{place}: field {options.score!r} is one value for {len(texts)} responses, so it cannot be"
                " the score of each; leave out --score"
            )
        score = number_field(row, options.score, place)
    for number, text in enumerate(texts):
        yield Record(
            place,
            f"{task}-{label(require(row, 'doc_id', place), 'doc_id', place)}",
            sample=number,
            source=task,
            prompt=prompt,
            gold=reference(label_field(row, gold or "target", place)),
            text=text,
            answer=answers[number],
            confidence=score,
        )


def _responses(resps: list[Any], place: Place) -> list[str]:
    """Return the texts of all requests of a document; refuses log-likelihoods."""
    flat = [text for group in resps for text in (group if isinstance(group, list) else [group])]
    for number, text in enumerate(flat):
        if not isinstance(text, str):
            raise InputError(
                f"{place}: field 'resps.{number}' is {kind(text)}, expected text;"
                " only tasks that generate text have rollouts"
            )
    return flat


def _answers(row: dict[str, Any], count: int) -> list[str | None]:
    """Return what the filter extracted, where that is one text a response; else nothing."""
    given = row.get("filtered_resps")
    if row.get("filter") in (None, "none") or not isinstance(given, list):
        return [None] * count
    flat = [text for group in given for text in (group if isinstance(group, list) else [group])]
    if len(flat) != count or not all(isinstance(text, str) for text in flat):
        return [None] * count
    return [None if text.strip() in ("", _INVALID) else text.strip() for text in flat]


def _prompt(row: dict[str, Any], place: Place) -> str | None:
    """Return what was asked: the first argument of the first request, a text or a chat as JSON."""
    for name in ("arguments.gen_args_0.arg_0", "arguments.0.0"):
        value = lookup(row, name)
        if value is None:
            continue
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
            if value.startswith("[{"):
                try:
                    value = parse_object(f'{{"chat": {value}}}', place)["chat"]
                except InputError:
                    return str(value)
        return chat_text(value, name, place)
    return None
