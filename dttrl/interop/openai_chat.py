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

from dttrl.errors import InputError
from dttrl.interop.logprobs import TokenStatistics, entries_asked, token_statistics
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
    statistics = statistics_of(choice.get("logprobs"), text, place, options, findings)
    apply(record, text, statistics)
    if statistics is None:
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            record.text = f"<think>\n{reasoning}\n</think>\n\n{text}"
    return record


def statistics_of(
    logprobs: Any, text: str, place: Place, options: ReadOptions, findings: Findings
) -> TokenStatistics | None:
    """Return the statistics of a choice's ``logprobs`` object, None where it has none.

    The number of entries is taken from ``options``, else from the first rollout that has any, for all files.
    """
    if logprobs is None:
        return None
    if not isinstance(logprobs, dict):
        raise InputError(f"{place}: field 'logprobs' is not an object")
    tokens = logprobs.get("content")
    if not tokens:
        return None
    if not isinstance(tokens, list):
        raise InputError(f"{place}: field 'logprobs.content' is not a list")
    k = options.k or findings.facts.get("k") or entries_asked(tokens)
    if k is not None:
        findings.facts.setdefault("k", k)
    return token_statistics(tokens, text, k=k, place=place)


def apply(record: Record, text: str, statistics: TokenStatistics | None) -> None:
    """Put the text and the token arrays into a record."""
    record.text = text
    if statistics is not None:
        record.text = statistics.text
        record.num_tokens = len(statistics.logprob)
        record.token_offset = statistics.offset
        record.token_logprob = statistics.logprob
        record.token_confidence = statistics.confidence


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
