"""From token ids to a rollout: its text, where in it each token starts, and where a stop string ends it.

With byte-level BPE a character may be spread over several tokens, so decoding tokens one by one gives
replacement characters and wrong offsets. Where the tokenizer's decoder is a plain concatenation
(byte-level, fused, or SentencePiece with byte fallback) the bytes of every token are looked up in a table
and everything follows from them; otherwise text is decoded in a sliding window. Both are linear in the
length.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.data.rollouts import FinishReason, Rollout

_NOTHING = np.empty(0, dtype=np.float32)
_WINDOW = 16
_REPLACEMENT = "\ufffd"


class TextDecoder:
    """Decodes rollouts of one tokenizer. Build it once: it remembers the bytes of the tokens it met."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(_special_ids(tokenizer))
        self._pieces, self._strip_first = _piece_table(tokenizer, self._special)

    def decode(self, token_ids: NDArray[np.int32]) -> tuple[str, NDArray[np.int32]]:
        """Return the text without special tokens, and the character (T,) at which each token starts in it.

        A token that starts inside a character has that character's start; a token without text of its own
        (special tokens) has the place where it stands, at the end the length of the text.
        """
        text = self.text(token_ids.tolist())
        if self._pieces is not None:
            offsets = self._table_offsets(token_ids, text)
            if offsets is not None:
                return text, offsets
        return self._window_offsets(token_ids.tolist(), text)

    def text(self, ids: list[int]) -> str:
        """Return the text of these tokens, special ones left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _table_offsets(self, token_ids: NDArray[np.int32], text: str) -> NDArray[np.int32] | None:
        """Offsets from the bytes of the tokens; None if those bytes are not the tokenizer's own text."""
        assert self._pieces is not None
        pieces = [self._pieces[token] for token in token_ids.tolist()]
        data = b"".join(pieces)
        starts = np.zeros(len(pieces), dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces[:-1]], out=starts[1:])
        if self._strip_first and data.startswith(b" "):
            data = data[1:]
            starts = np.maximum(starts - 1, 0)
        if data.decode("utf-8", "replace") != text:
            return None
        if len(data) == len(text):
            return starts.astype(np.int32)
        character = np.append(_character_of_byte(data), len(text))
        return character[starts].astype(np.int32)

    def _window_offsets(self, ids: list[int], text: str) -> tuple[str, NDArray[np.int32]]:
        """Decode in a window of a few tokens, so that a token is seen with its neighbours."""
        offsets = np.zeros(len(ids), dtype=np.int32)
        first, read, settled, reached = 0, 0, 0, 0
        for place, token in enumerate(ids):
            offsets[place] = reached
            if token in self._special:
                continue
            known = len(self.text(ids[first:read]))
            window = self.text(ids[first : place + 1])
            whole = window.rstrip(_REPLACEMENT)
            reached = settled + max(len(whole) - known, 0)
            # An unfinished character shows as U+FFFD at the end: wait for its rest, but not for ever.
            if (len(whole) == len(window) > known) or place - read >= _WINDOW:
                reached = settled = settled + len(window) - known
                first, read = read, place + 1
        return text, np.minimum(offsets, len(text), dtype=np.int32)


class StopStrings:
    """Finds the token that completes a stop string, looking only at what is new since the last look."""

    def __init__(self, decoder: TextDecoder, stops: tuple[str, ...]) -> None:
        self._decoder, self._stops = decoder, stops
        # A character is at most four tokens (bytes); one more for a tokenizer that drops a leading space.
        self._reach = 4 * max(map(len, stops)) + 1

    def find(self, token_ids: NDArray[np.int32], checked: int) -> int:
        """Return the index, from ``checked`` on, of the first token that completes a stop string, or -1."""
        ids = token_ids[max(checked - self._reach, 0) :].tolist()
        text = self._decoder.text(ids)
        # Byte fallback turns a whole run of bytes into U+FFFD while its last character is unfinished, and
        # with it a stop string in the run; so then every prefix is looked at, as after a find.
        if not self._in(text) and _REPLACEMENT not in text:
            return -1
        before = len(ids) - (len(token_ids) - checked)
        for end in range(before + 1, len(ids) + 1):
            if self._in(self._decoder.text(ids[:end])):
                return checked + end - before - 1
        return -1

    def cut(self, text: str) -> str:
        """Return the text before the first stop string."""
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text

    def _in(self, text: str) -> bool:
        return any(stop in text for stop in self._stops)


def finished_rollout(
    query_id: str,
    sample_id: int,
    token_ids: NDArray[np.int32],
    statistics_ST: NDArray[np.float32],
    finish_reason: FinishReason,
    *,
    decoder: TextDecoder,
    eos_ids: Collection[int],
    stops: StopStrings | None = None,
    step: int | None = None,
) -> Rollout:
    """Return the rollout of ``token_ids``, which reach up to and with the end token.

    Its text is without special tokens and without the stop string; the end token begins where the text ends.
    The statistics are confidence, log-probability, entropy and, where it is known, self-certainty: four rows
    or three.
    """
    ended = finish_reason == "stop" and len(token_ids) > 0 and int(token_ids[-1]) in eos_ids
    text, offsets = decoder.decode(token_ids[:-1] if ended else token_ids)
    if stops is not None:
        text = stops.cut(text)
    if ended:
        offsets = np.append(offsets, np.int32(len(text)))
    confidence, logprob, entropy, *known = statistics_ST
    return Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text=text,
        finish_reason=finish_reason,
        token_ids=token_ids,
        token_offset=np.minimum(offsets, np.int32(len(text))),
        token_confidence=confidence,
        token_logprob=logprob,
        token_entropy=entropy,
        token_self_certainty=known[0] if known else _NOTHING,
        step=step,
    )


def _character_of_byte(data: bytes) -> NDArray[np.int64]:
    """Return the character that each byte belongs to in ``data.decode("utf-8", "replace")``."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _character_of_byte_invalid(data)
    lead = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
    return np.cumsum(lead) - 1


def _character_of_byte_invalid(data: bytes) -> NDArray[np.int64]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    index = np.zeros(len(data), dtype=np.int64)
    characters = 0
    for place in range(len(data)):
        characters += len(decoder.decode(data[place : place + 1]))
        pending = bool(decoder.getstate()[0])
        index[place] = characters if pending else characters - 1
    return index


class _Pieces(dict[int, bytes]):
    """The bytes that each token stands for, looked up when first met."""

    def __init__(self, backend: Any, special: frozenset[int], steps: list[dict[str, Any]]) -> None:
        super().__init__()
        self._backend, self._special = backend, special
        kinds = {step["type"] for step in steps}
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        self._replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._special:
            piece = b""
        elif self._byte_level:
            # A token with any character outside the byte alphabet (an added one) stands for itself.
            known = [_BYTE_OF.get(character) for character in token]
            piece = bytes(b for b in known if b is not None) if None not in known else token.encode()
        elif self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            piece = bytes.fromhex(token[3:5])
        else:
            for old, new in self._replacements:
                token = token.replace(old, new)
            piece = token.encode()
        self[token_id] = piece
        return piece


def _piece_table(tokenizer: Any, special: frozenset[int]) -> tuple[_Pieces | None, bool]:
    """Return the table of bytes where the decoder only concatenates, and whether it drops a leading space."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return None, False
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    for step in steps:
        plain = step["type"] in {"ByteLevel", "ByteFallback", "Fuse", "Metaspace"}
        plain |= step["type"] == "Replace" and "String" in step["pattern"]
        plain |= step["type"] == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
        if not plain:
            return None, False
    strips = any(step["type"] in {"Strip", "Metaspace"} for step in steps)
    return _Pieces(backend, special, steps), strips


def _special_ids(tokenizer: Any) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet: printable bytes as such, the rest moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(moved)
    }


_BYTE_OF = _byte_alphabet()
