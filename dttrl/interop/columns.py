"""Any Parquet, JSON lines, JSON list, CSV or TSV file, a row a rollout, by the names of its columns.

``--columns question=qid,answer=pred,confidence=score`` (also ``gold, id, sample, text, step, source``). The
question may be an id (one word) or the prompt itself; with ``id`` it is the prompt. Numbers keep the file's
spelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dttrl.data.row_files import read_rows
from dttrl.data.validation import one_line
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, chat_text, label, question_key

MAX_ID = 80
"""A question of at most so many characters, on one line, is its own id."""


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
    for number, (place, row) in enumerate(read_rows(path)):
        fields = Fields(place, row)
        if number == 0:
            _check(columns, fields)
        yield _rollout(fields, columns)


def _check(columns: dict[str, str], fields: Fields) -> None:
    """Refuse a column that is not in the file, so that a slip does not read as a file without answers."""
    for role, name in columns.items():
        if name not in fields.row and fields.get(name) is None:
            raise InputError(
                f"{fields.place.path}: no column {name!r} for {role}"
                f" (columns: {one_line(', '.join(fields.row))}); check --columns"
            )


def _rollout(fields: Fields, columns: dict[str, str]) -> Record:
    identity, prompt = _question(fields, columns)
    name = columns.get("text")
    record = Record(
        fields.place,
        identity,
        prompt=prompt,
        text=None if name is None else "" if fields.get(name) is None else fields.chat(name),
        answer=fields.label(columns.get("answer")),
        gold=fields.label(columns.get("gold")),
        source=fields.label(columns.get("source")),
        confidence=fields.number(columns.get("confidence")),
        sample=fields.whole(columns.get("sample")),
        step=fields.whole(columns.get("step")),
    )
    if "sample" in columns and (record.sample is None or record.sample < 0):
        raise InputError(f"{fields.place}: field {columns['sample']!r} is no number of a sample (from 0)")
    return record


def _question(fields: Fields, columns: dict[str, str]) -> tuple[str, str | None]:
    prompt, place = None, fields.place
    if "question" in columns:
        name = columns["question"]
        value = fields.need(name)
        prompt = chat_text(value, name, place) if isinstance(value, (list, dict, str)) else None
        shown = prompt if prompt is not None else label(value, name, place)
        if shown is None or not shown.strip():
            raise InputError(f"{place}: field {name!r} is empty, but it names the question")
        if "id" not in columns:
            short = shown.strip()
            if len(short.split()) == 1:
                return short, None  # an id
            # A text is a prompt; a long one would be a burden as the id in every table.
            return (short if len(short) <= MAX_ID and "\n" not in short else question_key(shown)), prompt
    identity = label(fields.need(columns["id"]), columns["id"], place)
    if identity is None:
        raise InputError(f"{place}: field {columns['id']!r} is empty, but it names the question")
    return identity, prompt
