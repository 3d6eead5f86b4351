"""From the replies of OpenAI-compatible servers to rollouts with token statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dttrl.data.rollouts import FinishReason, Rollout
from dttrl.data.served_logprobs import (
    ReplyError,
    ServedTokens,
    byte_offsets,
    chat_tokens,
    completion_tokens,
    text_offsets,
)
from dttrl.method.confidence import token_confidence, token_entropy


@dataclass(frozen=True, slots=True)
class Reply:
    """One completion as a server gave it."""

    text: str
    whole: bool
    """Whether the tokens begin with the text (and not with reasoning that is kept apart from it)."""
    finish_reason: FinishReason
    tokens: ServedTokens
    token_ids: NDArray[np.int32]


def read_reply(body: Any) -> Reply:
    """Read a chat completion or a completion with one choice; ReplyError where it is neither."""
    choice = _field(_field(body, "choices", list, "the reply"), 0, dict, "choices")
    reason = choice.get("finish_reason")
    finish = cast(FinishReason, reason if reason in ("stop", "length") else "abort")
    if "message" in choice:
        message = _field(choice, "message", dict, "choices.0")
        text, tokens = message.get("content") or "", chat_tokens(choice.get("logprobs"))
        whole = not (message.get("reasoning_content") or message.get("reasoning"))
    else:
        text, tokens = _field(choice, "text", str, "choices.0"), completion_tokens(choice.get("logprobs"))
        whole = True
    if not isinstance(text, str):
        raise ReplyError("choices.0.message.content is not text")
    ids = choice.get("token_ids")
    token_ids = np.array(ids if isinstance(ids, list) and len(ids) == len(tokens.names) else [], np.int32)
    return Reply(text, whole, finish, tokens, token_ids)


def to_rollout(reply: Reply, *, k: int, query_id: str, sample_id: int, step: int | None = None) -> Rollout:
    """Return the reply as a rollout with the statistics that its entries (k were asked for) allow."""
    tokens = reply.tokens
    text, offset_T = byte_offsets(tokens.pieces, reply.text, whole=reply.whole)
    if offset_T is None:
        offset_T = text_offsets(tokens.names, text)
    top_TK = tokens.largest(k)
    return Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text=text,
        finish_reason=reply.finish_reason,
        token_ids=reply.token_ids,
        token_offset=offset_T,
        token_confidence=token_confidence(top_TK, k=k),
        token_logprob=tokens.logprob_T.astype(np.float32),
        token_entropy=token_entropy(top_TK, k=k),
        step=step,
    )


def _field(value: Any, key: str | int, kind: type, where: str) -> Any:
    try:
        found = value[key]
    except (KeyError, IndexError, TypeError):
        raise ReplyError(f"{where} has no {key!r}") from None
    if not isinstance(found, kind):
        raise ReplyError(f"{where}: {key!r} is not a {kind.__name__}")
    return found
