"""Token statistics from the ``logprobs.content`` of OpenAI-compatible servers and of inspect_ai.

A token's confidence is minus the mean of its k largest log-probabilities (eq:traj_conf). What servers do
differently is undone here: -9999 and null stand for a log-probability that is not known; vLLM puts the
sampled token first and, when it is not among the k largest, either as an entry too many or in place of the
k-th; such an entry would make an unlikely token look surer, so it is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.confidence import MISSING_LOGPROB, token_confidence
from dttrl.errors import InputError
from dttrl.interop.records import Place, kind, shown
from dttrl.served_logprobs import byte_offsets


@dataclass(frozen=True)
class TokenStatistics:
    """Arrays of T tokens; None where the response has no such numbers.

    ``text`` is what the tokens spell when that holds ``content`` (reasoning before it included), else the
    content, and then ``offset`` is None.
    """

    text: str
    offset: NDArray[np.int32] | None
    logprob: NDArray[np.float32]
    confidence: NDArray[np.float32] | None


def entries_asked(tokens: list[Any]) -> int | None:
    """Return how many entries a token has, most often (of two equally often, the fewer); None without any.

    >>> entries_asked([{"top_logprobs": [{}, {}]}, {"top_logprobs": [{}, {}, {}]}])
    2
    """
    counts = Counter(
        len(token["top_logprobs"])
        for token in tokens
        if isinstance(token, dict) and isinstance(token.get("top_logprobs"), list) and token["top_logprobs"]
    )
    return min(counts, key=lambda count: (-counts[count], count)) if counts else None


def token_statistics(tokens: list[Any], content: str, *, k: int | None, place: Place) -> TokenStatistics:
    """Return the statistics of the tokens of one choice (``logprobs.content``).

    ``k`` is the number of entries that were asked for; None where there are none. Raises InputError for an
    entry that is not of this form, with the number of the token.
    """
    logprob_T = np.full(len(tokens), np.nan, np.float32)
    confidence_T = np.full(len(tokens), np.nan, np.float32)
    pieces: list[bytes] = []
    for index, token in enumerate(tokens):
        where = f"logprobs.content.{index}"
        if not isinstance(token, dict):
            raise InputError(f"{place}: field {where!r} is {kind(token)}, expected an object")
        pieces.append(_bytes(token, place, where))
        logprob_T[index] = _logprob(token, place, where)
        entries = token.get("top_logprobs")
        if entries is None or k is None:
            continue
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{place}: field '{where}.top_logprobs' is not a list of objects")
        values = [_logprob(entry, place, f"{where}.top_logprobs") for entry in entries]
        confidence_T[index] = _confidence(values, k)
    text, offset_T = byte_offsets(pieces, content)
    has_entries = k is not None and bool(np.isfinite(confidence_T).any())
    return TokenStatistics(text, offset_T, logprob_T, confidence_T if has_entries else None)


def _logprob(entry: dict[str, Any], place: Place, where: str) -> float:
    value = entry.get("logprob")
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{place}: field '{where}.logprob' is {shown(value)}, expected a number")
    return float(value) if value > MISSING_LOGPROB else float("nan")


def _confidence(values: list[float], k: int) -> float:
    """Return the confidence of a token from its entries, in the order of the server."""
    if not values:
        return float("nan")
    # Servers sort by probability; an entry before a larger one is the sampled token, put first. Last of k in
    # probability, it may be far below the k-th, so it does not count.
    if len(values) == k > 1 and values[0] < min(values[1:]):
        values = values[1:]
    return float(token_confidence([values], k=k)[0])


def _bytes(token: dict[str, Any], place: Place, where: str) -> bytes:
    raw = token.get("bytes")
    if raw is None:
        text = token.get("token")
        if not isinstance(text, str):
            raise InputError(f"{place}: field '{where}.token' is {kind(text)}, expected text")
        return text.encode("utf-8", "replace")
    try:
        if not isinstance(raw, list):
            raise TypeError
        return bytes(raw)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{place}: field '{where}.bytes' is not a list of bytes") from None
