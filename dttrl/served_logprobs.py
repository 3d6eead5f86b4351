"""What servers do to log-probabilities and tokens, undone: offsets from the bytes of the tokens.

Shared by what reads saved responses and by what asks a server for new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_REPLACEMENT = "\ufffd"
_REACH = 16
"""Characters within which a token is looked for behind tokens that are parts of characters."""


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
