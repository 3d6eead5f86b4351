r"""Questions: read from the files people have, and rendered as prompts.

Any JSONL, JSON list, CSV, TSV or Parquet file with a prompt column is a question file. Read as they are:

* TTRL's JSON (``prompt, answer, source, id``; ``unique_id`` stands in for a missing ``id``),
* verl's Parquet (``prompt``, ``reward_model.ground_truth``, ``data_source``, ``extra_info.index``): the
  prompt is a chat, of which the user's messages are joined by a blank line; its system messages are left out
  (give one to ``render`` instead), and a chat with an assistant's turn is refused,
* files whose prompt is called ``question`` or ``problem``.

A column called ``solution`` is never taken for the answer unasked: in many sets it is a worked solution.
A dot names a field within a field: ``reward_model.ground_truth``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from dttrl.data.row_files import NumberLiteral, Place, PlacedRow, lookup, read_rows
from dttrl.data.tables import sanitize
from dttrl.data.validation import one_line
from dttrl.errors import InputError

Template = Literal["raw", "boxed", "chat", "chat-boxed"]

BOXED_SUFFIX: str = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."

_FALLBACKS = {
    "prompt": ("question", "problem"),
    "answer": ("reward_model.ground_truth",),
    "id": ("unique_id", "extra_info.index"),
    "source": ("data_source",),
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question: id (unique in its set), prompt (before any template), reference answer, data set."""

    id: str
    prompt: str
    answer: str | None = None
    source: str | None = None


def read_questions(
    path: Path,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    id_column: str = "id",
    source_column: str = "source",
    limit: int | None = None,
) -> list[Question]:
    """Read the (first ``limit``) questions of a file.

    Ids default to ``<source or file stem>-<row>``, rows counted from 0; verl's to ``<source>-<index>``.
    Answers become text in the file's own spelling ("42", "42.0"), without outer blanks; an empty one or NaN
    is none, a list of one is its entry. Texts are sanitised. Raises InputError, with file and line or row,
    for an unreadable file, no question, an absent column, an empty prompt and a repeated id.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}, expected at least 1")
    rows = list(islice(read_rows(path), limit))
    if not rows:
        raise InputError(f"{path}: holds no question")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    prompt = _required(path, "prompt", prompt_column, names)
    asked = {"answer": answer_column, "id": id_column, "source": source_column}
    columns = {role: _resolve(path, role, column, rows, names) for role, column in asked.items()}
    questions: list[Question] = []
    seen: dict[str, Place] = {}
    for number, (where, row) in enumerate(rows):
        found = {role: _scalar(row, where, column) for role, column in columns.items()}
        stock = found["source"] or sanitize(path.stem)
        identity = found["id"]
        if identity is None or columns["id"] == "extra_info.index":
            identity = f"{stock}-{number if identity is None else identity}"
        text = _prompt(lookup(row, prompt), where, prompt)
        if identity in seen:
            raise InputError(
                f"{where}: id {identity!r} was used at {seen[identity]} already; ids must be unique"
            )
        seen[identity] = where
        questions.append(Question(identity, text, found["answer"], found["source"]))
    return questions


def _required(path: Path, role: str, column: str, names: Sequence[str]) -> str:
    """Return the prompt column: the named one, else the only one of the usual other names."""
    if column in names or column.split(".")[0] in names:
        return column
    others = [name for name in _FALLBACKS[role] if name in names]
    if column == role and len(others) == 1:
        return others[0]
    shown = one_line(", ".join(names))
    hint = f"either of {' and '.join(others)} could be it; " if len(others) > 1 else ""
    raise InputError(f"{path}: no column {column!r} (columns: {shown}); {hint}name it with --{role}-column")


def _resolve(
    path: Path, role: str, column: str, rows: Sequence[PlacedRow], names: Sequence[str]
) -> str | None:
    """Return the column of an optional role, None when there is none; one asked for must be there."""
    candidates = (column, *_FALLBACKS[role]) if column == role else (column,)
    for name in candidates:
        if name in names or any(lookup(row, name) is not None for _, row in rows):
            return name
    if column != role:
        raise InputError(
            f"{path}: no column {column!r} (columns: {one_line(', '.join(names))}); check --{role}-column"
        )
    return None


def _scalar(row: dict[str, Any], where: Place, column: str | None) -> str | None:
    """Return text or a number as text, None for what says nothing (null, blank, NaN, no column)."""
    value = None if column is None else lookup(row, column)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (str, int, float, Decimal)):
        return sanitize(str(value)).strip() or None
    raise InputError(f"{where}: {column!r} is a {type(value).__name__}, expected text or a number")


def _prompt(value: Any, where: Place, column: str) -> str:
    if isinstance(value, list):
        value = _chat_prompt(value, where, column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{where}: {column!r} is empty; give the question a text or drop the row")
    if not isinstance(value, str) or isinstance(value, NumberLiteral):
        kind = "number" if isinstance(value, NumberLiteral) else type(value).__name__
        raise InputError(f"{where}: {column!r} is a {kind}, expected text or a chat")
    return sanitize(value)


def _chat_prompt(messages: list[Any], where: Place, column: str) -> str:
    """Join the user messages of a chat; its system messages are left out."""
    texts: list[str] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "system":
            continue
        if role != "user" or not isinstance(message.get("content"), str):
            raise InputError(
                f"{where}: {column!r} is a chat with a message that is not a user's text (role {role!r});"
                " write the prompt out as text"
            )
        texts.append(message["content"])
    return "\n\n".join(texts)


def render(
    question: Question,
    template: Template,
    *,
    suffix: str = BOXED_SUFFIX,
    system: str | None = None,
    chat: Callable[[list[dict[str, str]]], str] | None = None,
) -> str:
    """Return the text that the model continues.

    ``raw``: the prompt; ``boxed``: the prompt, then ``suffix``; ``chat`` and ``chat-boxed``: the same as the
    message of a user, after the ``system`` message if there is one, through ``chat`` (the tokenizer's chat
    template). Raises InputError for an unknown template, for a chat template where the model has none, and
    for a system message without a chat template.
    """
    if template not in get_args(Template):
        raise InputError(f"template {template!r} is unknown; use one of {', '.join(get_args(Template))}")
    prompt = question.prompt.rstrip() + suffix if template.endswith("boxed") else question.prompt
    if not template.startswith("chat"):
        if system is not None:
            raise InputError(f"a system message needs a chat template, and the template is {template!r}")
        return prompt
    if chat is None:
        raise InputError(f"template {template!r} needs a model with a chat template; use raw or boxed")
    messages = [{"role": "system", "content": system}] if system is not None else []
    return chat([*messages, {"role": "user", "content": prompt}])
