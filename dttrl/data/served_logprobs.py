"""The log-probabilities in replies of OpenAI-compatible servers: one reader for live and for saved replies.

Two forms: chat completions (``logprobs.content``, a list of tokens with ``top_logprobs``; inspect_ai saves
the same) and completions (``logprobs.tokens``, ``token_logprobs`` and ``top_logprobs``, parallel lists). What
servers do differently is undone here: -9999 and null stand for a log-probability that is not known; vLLM puts
the sampled token first and, when it is not among the k largest, either as an entry too many or in place of
the k-th; such an entry would make an unlikely token look surer, so it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.data.validation import kind, shown

MISSING_LOGPROB = -9999.0
"""What servers write for a log-probability that they do not know (as they cannot write -inf in JSON)."""

_REPLACEMENT = "\ufffd"
_REACH = 16
"""Characters within which a token is looked for behind tokens that are parts of characters."""


class ReplyError(ValueError):
    """The reply is not of the form that the interface promises; the message names the field."""


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """T tokens as a server gave them: texts, bytes, log-probabilities in nats (float64, NaN: not known).

    ``entries`` are the top log-probabilities of each token in the server's order; with ``sampled_first`` the
    first may be the sampled token's.
    """

    names: list[str]
    pieces: list[bytes]
    logprob_T: NDArray[np.float64]
    entries: list[list[float]]
    sampled_first: bool

    def entries_asked(self) -> int | None:
        """Return how many entries a token has, most often (of two equally often, the fewer), if any."""
        counts = Counter(len(values) for values in self.entries if values)
        return min(counts, key=lambda count: (-counts[count], count)) if counts else None

    def largest(self, k: int) -> NDArray[np.float64]:
        """Return the k largest entries of each token, (T, k), where k were asked for; NaN where one lacks.

        Servers sort by probability, so of k entries a first one below all others is the sampled token in the
        place of the k-th, and may lie far below that: it does not count.
        """
        top_TK = np.full((len(self.entries), k), np.nan)
        for row_K, values in zip(top_TK, self.entries, strict=True):
            if self.sampled_first and len(values) == k > 1 and values[0] < min(values[1:]):
                values = values[1:]
            known = sorted((value for value in values if value == value), reverse=True)[:k]
            row_K[: len(known)] = known
        return top_TK


def chat_tokens(logprobs: Any) -> ServedTokens:
    """Read the ``logprobs`` of a choice of a chat completion; no tokens where it has none. ReplyError."""
    tokens = [] if logprobs is None else _checked(logprobs, dict, "logprobs").get("content") or []
    names: list[str] = []
    pieces: list[bytes] = []
    values: list[float] = []
    entries: list[list[float]] = []
    for index, token in enumerate(_checked(tokens, list, "logprobs.content")):
        where = f"logprobs.content.{index}"
        name, raw = _checked(token, dict, where).get("token"), token.get("bytes")
        pieces.append(_encoded(name, f"{where}.token") if raw is None else _bytes(raw, f"{where}.bytes"))
        names.append(name if isinstance(name, str) else pieces[-1].decode("utf-8", "replace"))
        values.append(_logprob(token.get("logprob"), f"{where}.logprob"))
        place = f"{where}.top_logprobs"
        top = _checked(token.get("top_logprobs") or [], list, place)
        entries.append([_logprob(_checked(entry, dict, place).get("logprob"), place) for entry in top])
    return ServedTokens(names, pieces, np.array(values, np.float64), entries, True)


def completion_tokens(logprobs: Any) -> ServedTokens:
    """Read the ``logprobs`` of a choice of a completion; no tokens where it has none. ReplyError."""
    if logprobs is None:
        return chat_tokens(None)
    given = _checked(logprobs, dict, "logprobs")
    names = _checked(given.get("tokens"), list, "logprobs.tokens")
    own = _checked(given.get("token_logprobs"), list, "logprobs.token_logprobs")
    place = "logprobs.top_logprobs"
    top = _checked(given.get("top_logprobs") or [{}] * len(names), list, place)
    if not len(names) == len(own) == len(top):
        raise ReplyError("logprobs: tokens, token_logprobs and top_logprobs are of different lengths")
    entries = [[_logprob(v, place) for v in _checked(entry or {}, dict, place).values()] for entry in top]
    values = [_logprob(value, "logprobs.token_logprobs") for value in own]
    pieces = [_encoded(name, "logprobs.tokens") for name in names]
    return ServedTokens(names, pieces, np.array(values, np.float64), entries, False)


def _checked(value: Any, expected: type, where: str) -> Any:
    if not isinstance(value, expected):
        raise ReplyError(f"field {where!r} is {kind(value)}, expected {kind(expected())}")
    return value


def _logprob(value: Any, where: str) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReplyError(f"field {where!r} is {shown(value)}, expected a number")
    return float(value) if value > MISSING_LOGPROB else float("nan")


def _encoded(name: Any, where: str) -> bytes:
    encoded: bytes = _checked(name, str, where).encode("utf-8", "replace")
    return encoded


def _bytes(value: Any, where: str) -> bytes:
    try:
        return bytes(_checked(value, list, where))
    except (TypeError, ValueError, OverflowError):
        raise ReplyError(f"field {where!r} is not a list of bytes") from None


def byte_offsets(
    pieces: Sequence[bytes], content: str, *, whole: bool = False
) -> tuple[str, NDArray[np.int32] | None]:
    """Return the text and the character (T,) at which each token starts; None if the bytes are another text.

    The text is what the tokens spell up to the end of ``content`` (reasoning before it included); with
    ``whole`` a content that the tokens begin with is all there is. A token may begin within a character: it
    then starts at that character. Tokens after the content (an end token that is spelled out) start at the
    end of the text.
    """
    data = b"".join(pieces)
    spelled = data.decode("utf-8", "replace")
    at = 0 if whole and spelled.startswith(content) else spelled.rfind(content)
    if at < 0 or not pieces or len(spelled.encode("utf-8", "replace")) != len(data):
        return content, None
    text = spelled[: at + len(content)]
    starts = np.cumsum([0, *(len(piece) for piece in pieces)])[:-1]
    byte_N = np.frombuffer(data, np.uint8)
    first_N = (byte_N & 0xC0) != 0x80  # the first byte of a character
    before = np.concatenate(([0], np.cumsum(first_N)))[starts]
    within = np.zeros(len(starts), np.int64)
    inside = starts < len(byte_N)
    within[inside] = ~first_N[starts[inside]]
    return text, np.minimum(before - within, len(text)).astype(np.int32)


def text_offsets(pieces: Sequence[str], content: str) -> NDArray[np.int32]:
    r"""Return the character (T,) of ``content`` at which each token starts, from the texts of the tokens.

    For servers that give no bytes and write U+FFFD for a part of a character: such tokens start at that
    character, and the next whole token is looked for behind it. Tokens that are not in the content (special
    ones) start where they stand, after its end at its end.

    >>> text_offsets(["a", "\ufffd", "\ufffd", "b", "<end>"], "a\u00e9b").tolist()
    [0, 1, 1, 2, 3]
    """
    offset_T = np.zeros(len(pieces), np.int32)
    place, lost = 0, 0
    for index, piece in enumerate(pieces):
        whole = piece.strip(_REPLACEMENT)
        if lost and whole:
            found = content.find(whole, place, place + lost + _REACH + len(whole))
            if found >= 0:
                place, lost = found, 0
            elif index == len(pieces) - 1:
                place = len(content)
        offset_T[index] = place
        if not lost and content.startswith(piece, place):
            place += len(piece)
        else:
            lost += 1
    return offset_T
