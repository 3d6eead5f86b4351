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

from dttrl.data.row_files import fields_of, is_parquet, json_lines, parsed
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, chat_text, label, reference, texts

_NAME = re.compile(r"^samples_(?P<task>.+?)_\d{4}-\d\d-\d\dT.*$")
_INVALID = "[invalid]"


def recognise(path: Path) -> bool:
    """Whether the first line has ``doc_id, resps`` and ``filtered_resps``."""
    return not is_parquet(path) and {"doc_id", "resps", "filtered_resps"} <= fields_of(path)


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
        yield from _document(Fields(place, row), task, options, findings)


def _document(fields: Fields, task: str, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    hint = "; only tasks that generate text have rollouts"
    given = texts(_flat(fields.items("resps")), "resps", fields.place, hint)
    answers = _answers(fields.row, len(given))
    score = fields.score(options, findings, ("doc_id",), count=len(given))
    prompt = _prompt(fields)
    identity = f"{task}-{label(fields.need('doc_id'), 'doc_id', fields.place)}"
    gold = reference(fields.label(options.columns.get("gold") or "target"))
    for number, text in enumerate(given):
        yield Record(
            fields.place,
            identity,
            sample=number,
            source=task,
            prompt=prompt,
            gold=gold,
            text=text,
            answer=answers[number],
            confidence=score,
        )


def _flat(groups: list[Any]) -> list[Any]:
    """Return the entries of all requests of a document."""
    return [text for group in groups for text in (group if isinstance(group, list) else [group])]


def _answers(row: dict[str, Any], count: int) -> list[str | None]:
    """Return what the filter extracted, where that is one text a response; else nothing."""
    given = row.get("filtered_resps")
    flat = _flat(given) if isinstance(given, list) and row.get("filter") not in (None, "none") else []
    if len(flat) != count or not all(isinstance(text, str) for text in flat):
        return [None] * count
    return [None if text.strip() in ("", _INVALID) else text.strip() for text in flat]


def _prompt(fields: Fields) -> str | None:
    """Return what was asked: the first argument of the first request, a text or a chat as JSON."""
    for name in ("arguments.gen_args_0.arg_0", "arguments.0.0"):
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
            if value.startswith("[{"):
                try:
                    value = parsed(value, fields.place)
                except InputError:
                    return str(value)
        return chat_text(value, name, fields.place)
    return None
