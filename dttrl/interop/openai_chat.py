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

from dttrl.data.row_files import first_object, json_lines, lookup
from dttrl.data.served_logprobs import ReplyError, byte_offsets, chat_tokens
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, chat_text, finish, question_key
from dttrl.method.confidence import token_confidence

_BODIES = ("response.body", "response", "body", "completion")
_IDS = ("custom_id", "query_id", "question_id", "metadata.query_id", "metadata.custom_id")
_MESSAGES = ("messages", "request.messages", "request.body.messages", "input", "prompt")


def recognise(path: Path) -> bool:
    """Whether the first line is, or holds, an object with ``choices`` that have a ``message``."""
    body = _body(first_object(path) or {})
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
        response = Fields(place, body)
        model = response.label("model")
        for choice in response.objects("choices"):
            yield _rollout(Fields(place, row), model, choice, options, findings)


def _body(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the chat completion of a line, None where there is none."""
    for candidate in (row, *(lookup(row, name) for name in _BODIES)):
        if isinstance(candidate, dict) and isinstance(candidate.get("choices"), list):
            return candidate
    return None


def _rollout(
    fields: Fields, model: str | None, choice: Fields, options: ReadOptions, findings: Findings
) -> Record:
    message = choice.inside("message")
    text = "" if message.get("content") is None else message.chat("content")
    columns = options.columns
    query_id, prompt = _question(fields, columns.get("question") or columns.get("id"))
    record = Record(
        fields.place,
        query_id,
        prompt=prompt,
        sample=fields.whole(columns.get("sample")),
        source=fields.label(columns.get("source")),
        gold=fields.label(columns.get("gold")),
        answer=fields.label(columns.get("answer")),
        model=model,
        finish_reason=finish(choice.get("finish_reason")),
        confidence=fields.number(options.score or columns.get("confidence")),
    )
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


def _question(fields: Fields, named: str | None) -> tuple[str, str | None]:
    """Return id and prompt of the question that a line answers; ``named`` is the field that holds the id."""
    messages = next((value for name in _MESSAGES if (value := fields.get(name)) is not None), None)
    prompt = None if messages is None else chat_text(messages, "messages", fields.place)
    for name in (named,) if named else _IDS:
        found = fields.label(name)
        if found is not None:
            return found, prompt
    if named:
        raise InputError(f"{fields.place}: no field {named!r}, which --columns question= names")
    if messages is None:
        raise InputError(
            f"{fields.place}: nothing says which question this answers (no custom_id, no messages);"
            " name a field with --columns question=FIELD"
        )
    return question_key(messages), prompt
