"""OpenAI chat responses as JSON lines, with or without log-probabilities: also what vLLM and others serve.

A line is a chat completion, or a line of a batch's output (``custom_id, response.body``), or any object that
holds the completion as ``response``. A response has no reference answer and names no question: the id is what
``--columns question=…`` names, else ``custom_id`` or ``metadata.query_id``, else a digest of the messages
where the line has them. With ``logprobs`` the tokens get confidence, log-probability and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dttrl.confidence import token_confidence
from dttrl.errors import InputError
from dttrl.interop.records import (
    Findings,
    Place,
    ReadOptions,
    Record,
    chat_text,
    finish,
    label_field,
    list_field,
    lookup,
    number_field,
    object_field,
    question_key,
    whole_field,
)
from dttrl.interop.sources import first_object, json_lines
from dttrl.served_logprobs import ReplyError, byte_offsets, chat_tokens

_BODIES = ("response.body", "response", "body", "completion")
_IDS = ("custom_id", "query_id", "question_id", "metadata.query_id", "metadata.custom_id")
_MESSAGES = ("messages", "request.messages", "request.body.messages", "input", "prompt")


def recognise(path: Path) -> bool:
    """Whether the first line is, or holds, an object with ``choices`` that have a ``message``."""
    row = first_object(path)
    body = None if row is None else _body(row)
    return body is not None and isinstance(lookup(body, "choices.0.message"), dict)


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the choices of each response; lines of requests that failed are counted and passed over."""
    for place, row in json_lines(path):
        body = _body(row)
        if body is None:
            if row.get("error") or lookup(row, "response.body.error") or lookup(row, "response.error"):
                findings.remarks[f"{path.name}: responses that are errors were passed over"] += 1
                continue
            raise InputError(f"{place}: no field 'choices', here or in {', '.join(_BODIES)}")
        for index, choice in enumerate(list_field(body, "choices", place)):
            if not isinstance(choice, dict):
                raise InputError(f"{place}: field 'choices.{index}' is not an object")
            yield _rollout(row, body, choice, place, options, findings)


def _body(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line, None where there is none."""
    for candidate in (row, *(lookup(row, name) for name in _BODIES)):
        if isinstance(candidate, dict) and isinstance(candidate.get("choices"), list):
            return candidate
    return None


def _rollout(
    row: dict[str, Any],
    body: dict[str, Any],
    choice: dict[str, Any],
    place: Place,
    options: ReadOptions,
    findings: Findings,
) -> Record:
    message = object_field(choice, "message", place)
    content = message.get("content")
    text = "" if content is None else chat_text(content, "choices.message.content", place)
    record = Record(place, "", source=_column(row, "source", options, place))
    record.query_id, record.prompt = _question(row, place, options)
    if "sample" in options.columns:
        record.sample = whole_field(row, options.columns["sample"], place)
    record.gold = _column(row, "gold", options, place)
    record.answer = _column(row, "answer", options, place)
    record.model = label_field(body, "model", place)
    record.finish_reason = finish(choice.get("finish_reason"))
    score = options.score or options.columns.get("confidence")
    if score is not None:
        record.confidence = number_field(row, score, place)
    if not put_tokens(record, choice.get("logprobs"), text, options, findings):
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            record.text = f"<think>\n{reasoning}\n</think>\n\n{text}"
    return record


def put_tokens(record: Record, logprobs: Any, text: str, options: ReadOptions, findings: Findings) -> bool:
    """Put the text and the statistics of a choice's ``logprobs`` into a record; False where it has none.

    The text is what the tokens spell when that holds ``text`` (reasoning before it included). The number of
    entries is taken from ``options``, else from the first rollout that has any, for all files.
    """
    record.text = text
    try:
        tokens = chat_tokens(logprobs)
    except ReplyError as error:
        raise InputError(f"{record.place}: {error}") from error
    if not tokens.names:
        return False
    record.text, record.token_offset = byte_offsets(tokens.pieces, text)
    record.num_tokens = len(tokens.names)
    record.token_logprob = tokens.logprob_T.astype(np.float32)
    k = options.k or findings.facts.get("k") or tokens.entries_asked()
    if k is not None:
        findings.facts.setdefault("k", k)
        confidence_T = token_confidence(tokens.largest(k), k=k)
        record.token_confidence = confidence_T if np.isfinite(confidence_T).any() else None
    return True


def _question(row: dict[str, Any], place: Place, options: ReadOptions) -> tuple[str, str | None]:
    """Return id and prompt of the question that a line answers."""
    messages = next((value for name in _MESSAGES if (value := lookup(row, name)) is not None), None)
    prompt = None if messages is None else chat_text(messages, "messages", place)
    named = options.columns.get("question") or options.columns.get("id")
    for name in (named,) if named else _IDS:
        found = label_field(row, name, place)
        if found is not None:
            return found, prompt
    if named:
        raise InputError(f"{place}: no field {named!r}, which --columns question= names")
    if messages is None:
        raise InputError(
            f"{place}: nothing says which question this answers (no custom_id, no messages);"
            " name a field with --columns question=FIELD"
        )
    return question_key(messages), prompt


def _column(row: dict[str, Any], role: str, options: ReadOptions, place: Place) -> str | None:
    name = options.columns.get(role)
    return None if name is None else label_field(row, name, place)
