"""From the replies of OpenAI-compatible servers to rollouts with token statistics.

Two forms: chat completions (``logprobs.content``, a list of tokens with ``top_logprobs``) and completions
(``logprobs.tokens``, ``token_logprobs`` and ``top_logprobs``, parallel lists). Only the k largest entries
count: that of a sampled token outside of them is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dttrl.confidence import MISSING_LOGPROB, token_confidence, token_entropy
from dttrl.rollouts import FinishReason, Rollout
from dttrl.served_logprobs import byte_offsets, text_offsets


class ReplyError(ValueError):
    """The reply is not of the form that the interface promises; the message says where."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion as a server gave it: T tokens with at most k + 1 entries each.

    ``logprob_T`` and ``top_TK`` are float64 in nats, NaN where there is nothing; ``count_T`` is the number of
    entries that the server gave. ``pieces`` are the bytes of the tokens, ``names`` their texts.
    """

    text: str
    whole: bool
    """Whether the tokens begin with the text (and not with reasoning that is kept apart from it)."""
    finish_reason: FinishReason
    names: list[str]
    pieces: list[bytes]
    logprob_T: NDArray[np.float64]
    top_TK: NDArray[np.float64]
    count_T: NDArray[np.int64]
    token_ids: NDArray[np.int32]


def read_reply(body: Any, *, k: int) -> Reply:
    """Read a chat completion or a completion with one choice; ReplyError where it is neither."""
    choice = _field(_field(body, "choices", list, "the reply"), 0, dict, "choices")
    reason = choice.get("finish_reason")
    finish = cast(FinishReason, reason if reason in ("stop", "length") else "abort")
    ids = choice.get("token_ids")
    token_ids = np.array(ids if isinstance(ids, list) else [], np.int32)
    if "message" in choice:
        message = _field(choice, "message", dict, "choices.0")
        text, whole = message.get("content") or "", not _reasoning(message)
        names, pieces, logprobs, entries = _chat_tokens(choice.get("logprobs"), k)
    else:
        text, whole = _field(choice, "text", str, "choices.0"), True
        names, pieces, logprobs, entries = _completion_tokens(choice.get("logprobs"))
    if not isinstance(text, str):
        raise ReplyError("choices.0.message.content is not text")
    top_TK = np.full((len(entries), k + 1), np.nan)
    for row, values in zip(top_TK, entries, strict=True):
        values = sorted(values, reverse=True)[: k + 1] if len(values) > k + 1 else values
        row[: len(values)] = values
    return Reply(
        text, whole, finish, names, pieces, np.array(logprobs, np.float64), top_TK,
        np.array([len(values) for values in entries], np.int64),
        token_ids if len(token_ids) == len(names) else np.empty(0, np.int32),
    )  # fmt: skip


def to_rollout(reply: Reply, *, k: int, query_id: str, sample_id: int, step: int | None = None) -> Rollout:
    """Return the reply as a rollout with the statistics that its entries allow."""
    text, offset_T = byte_offsets(reply.pieces, reply.text, whole=reply.whole)
    if offset_T is None:
        offset_T = text_offsets(reply.names, text)
    return Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text=text,
        finish_reason=reply.finish_reason,
        token_ids=reply.token_ids,
        token_offset=offset_T,
        token_confidence=token_confidence(reply.top_TK, k=k) if len(reply.names) else _empty(),
        token_logprob=reply.logprob_T.astype(np.float32),
        token_entropy=token_entropy(reply.top_TK, k=k) if len(reply.names) else _empty(),
        step=step,
    )


def _empty() -> NDArray[np.float32]:
    return np.empty(0, np.float32)


_Tokens = tuple[list[str], list[bytes], list[float], list[list[float]]]


def _chat_tokens(logprobs: Any, k: int) -> _Tokens:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    names: list[str] = []
    pieces: list[bytes] = []
    values: list[float] = []
    entries: list[list[float]] = []
    for index, token in enumerate(content or ()):
        where = f"choices.0.logprobs.content.{index}"
        name = _field(token, "token", str, where)
        names.append(name)
        pieces.append(_bytes(token.get("bytes"), name, where))
        values.append(_logprob(token.get("logprob"), where))
        top = token.get("top_logprobs") or []
        found = [_logprob(_field(top, i, dict, where).get("logprob"), where) for i in range(len(top))]
        # Servers sort by probability; vLLM puts the sampled token first. Of k entries, a first one below all
        # others is the sampled token in the place of the k-th.
        if len(found) == k > 1 and found[0] < min(found[1:]):
            found = found[1:]
        entries.append(found)
    return names, pieces, values, entries


def _completion_tokens(logprobs: Any) -> _Tokens:
    if not isinstance(logprobs, dict):
        return [], [], [], []
    where = "choices.0.logprobs"
    names = _field(logprobs, "tokens", list, where)
    if not all(isinstance(name, str) for name in names):
        raise ReplyError(f"{where}.tokens is not a list of texts")
    values = [_logprob(value, where) for value in _field(logprobs, "token_logprobs", list, where)]
    top: Sequence[Any] = logprobs.get("top_logprobs") or [{}] * len(names)
    if not len(names) == len(values) == len(top):
        raise ReplyError(f"{where}: tokens, token_logprobs and top_logprobs are of different lengths")
    entries = [
        [_logprob(value, where) for value in (entry if isinstance(entry, dict) else {}).values()]
        for entry in top
    ]
    return names, [name.encode("utf-8", "replace") for name in names], values, entries


def _reasoning(message: dict[str, Any]) -> bool:
    return bool(message.get("reasoning_content") or message.get("reasoning"))


def _logprob(value: Any, where: str) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReplyError(f"{where}: a log-probability is not a number")
    return float(value) if value > MISSING_LOGPROB else float("nan")


def _bytes(value: Any, name: str, where: str) -> bytes:
    if value is None:
        return name.encode("utf-8", "replace")
    try:
        return bytes(value)
    except (TypeError, ValueError):
        raise ReplyError(f"{where}.bytes is not a list of bytes") from None


def _field(value: Any, key: str | int, kind: type, where: str) -> Any:
    try:
        found = value[key]
    except (KeyError, IndexError, TypeError):
        raise ReplyError(f"{where} has no {key!r}") from None
    if not isinstance(found, kind):
        raise ReplyError(f"{where}: {key!r} is not a {kind.__name__}")
    return found
