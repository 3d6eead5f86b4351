from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dttrl.served_logprobs import byte_offsets, text_offsets


def pieces_of(text: str, data: st.DataObject, *, characters: bool) -> list[bytes]:
    raw = text.encode()
    places = (
        list(np.cumsum([0, *(len(c.encode()) for c in text)])) if characters else list(range(len(raw) + 1))
    )
    cuts = sorted(data.draw(st.sets(st.sampled_from(places)))) if places else []
    edges = [0, *cuts, len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


@given(st.text("ab é🍰\n", max_size=30), st.data())
def test_texts_of_whole_characters_give_the_offsets_of_the_bytes(text: str, data: st.DataObject) -> None:
    pieces = pieces_of(text, data, characters=True)
    spelled, expected = byte_offsets(pieces, text, whole=True)
    assert spelled == text
    assert expected is not None
    assert text_offsets([piece.decode() for piece in pieces], text).tolist() == expected.tolist()


@given(st.text("xyz é🍰", max_size=30), st.data())
def test_texts_of_parts_of_characters_never_go_back_and_find_their_way(
    text: str, data: st.DataObject
) -> None:
    pieces = pieces_of(text, data, characters=False)
    offset_T = text_offsets([*(piece.decode("utf-8", "replace") for piece in pieces), "|"], text + "|")
    assert np.all(np.diff(offset_T) >= 0)
    assert offset_T[-1] == len(text)


def test_a_content_that_the_tokens_begin_with_or_end_with() -> None:
    pieces = [b"a", b"b", b"a", b"<end>"]
    text, offset_T = byte_offsets(pieces, "a", whole=True)
    assert (text, None if offset_T is None else offset_T.tolist()) == ("a", [0, 1, 1, 1])
    text, offset_T = byte_offsets(pieces, "a")
    assert (text, None if offset_T is None else offset_T.tolist()) == ("aba", [0, 1, 2, 3])
    assert byte_offsets([b"x"], "y", whole=True) == ("y", None)
