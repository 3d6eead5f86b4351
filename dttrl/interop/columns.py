"""Any Parquet, JSON lines, JSON list, CSV or TSV file, a row a rollout, by the names of its columns.

``--columns question=qid,answer=pred,confidence=score`` (also ``gold, id, sample, text, step, source``). The
question may be an id (one word) or the prompt itself; with ``id`` it is the prompt. Numbers keep the file's
spelling.
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
    lookup,
    number_field,
    question_key,
    require,
    whole_field,
)
from dttrl.question_files import read_rows
from dttrl.validation import one_line

MAX_ID = 80
"""A question of at most so many characters, on one line, is its own id."""
_PLACE = re.compile(r"(?::|, row )(\d+)\Z")


def recognise(path: Path) -> bool:
    """Never: the names must be given."""
    return False


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the rows; a question is required, and an answer or a text."""
    columns = dict(options.columns)
    if options.score is not None:
        columns["confidence"] = options.score
    if "question" not in columns and "id" not in columns:
        raise InputError("--columns must name the question: question=FIELD (or id=FIELD)")
    if "answer" not in columns and "text" not in columns:
        raise InputError("--columns must name an answer or a text: answer=FIELD or text=FIELD")
    checked = False
    for where, row in read_rows(path):
        found = _PLACE.search(where)
        place = Place(path, int(found[1]) if found else 0, "row" if ", row " in where else "line")
        if not checked:
            _check(columns, row, place)
            checked = True
        yield _rollout(row, columns, place)


def _check(columns: dict[str, str], row: dict[str, Any], place: Place) -> None:
    """Refuse a column that is not in the file, so that a slip does not read as a file without answers."""
    for role, name in columns.items():
        if name not in row and lookup(row, name) is None:
            raise InputError(
                f"{place.path}: no column {name!r} for {role} (columns: {one_line(', '.join(row))});"
                " check --columns"
            )


def _rollout(row: dict[str, Any], columns: dict[str, str], place: Place) -> Record:
    def text_of(role: str) -> str | None:
        return label(lookup(row, columns[role]), columns[role], place) if role in columns else None

    identity, prompt = _question(row, columns, place)
    record = Record(place, identity, prompt=prompt)
    record.answer, record.gold, record.source = text_of("answer"), text_of("gold"), text_of("source")
    if "text" in columns:
        value = lookup(row, columns["text"])
        record.text = "" if value is None else chat_text(value, columns["text"], place)
    if "confidence" in columns:
        record.confidence = number_field(row, columns["confidence"], place)
    if "sample" in columns:
        record.sample = whole_field(row, columns["sample"], place)
        if record.sample is None or record.sample < 0:
            raise InputError(f"{place}: field {columns['sample']!r} is no number of a sample (from 0)")
    if "step" in columns:
        record.step = whole_field(row, columns["step"], place)
    return record


def _question(row: dict[str, Any], columns: dict[str, str], place: Place) -> tuple[str, str | None]:
    prompt = None
    if "question" in columns:
        value = require(row, columns["question"], place)
        prompt = (
            chat_text(value, columns["question"], place) if isinstance(value, (list, dict, str)) else None
        )
        shown = prompt if prompt is not None else label(value, columns["question"], place)
        if shown is None or not shown.strip():
            raise InputError(f"{place}: field {columns['question']!r} is empty, but it names the question")
        if "id" not in columns:
            short = shown.strip()
            if len(short.split()) == 1:
                return short, None  # an id
            # A text is a prompt; a long one would be a burden as the id in every table.
            return (short if len(short) <= MAX_ID and "\n" not in short else question_key(shown)), prompt
    identity = label(require(row, columns["id"], place), columns["id"], place)
    if identity is None:
        raise InputError(f"{place}: field {columns['id']!r} is empty, but it names the question")
    return identity, prompt
