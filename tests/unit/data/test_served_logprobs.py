from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data.served_logprobs import byte_offsets, text_offsets
from dttrl.interop.fields import Findings, Place, ReadOptions, Record
from dttrl.interop.openai_chat import put_tokens
from dttrl.sampling.openai_replies import read_reply, to_rollout

LOGPROB = st.one_of(st.floats(-30, 0), st.sampled_from([None, -9999.0, -math.inf, -1e5, 0]))


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


def literal(entries: list[float | None], k: int, *, drops: bool) -> tuple[float, float]:
    """The confidence and the entropy of one token as the manual says, in plain Python."""
    values = [math.nan if v is None or v <= -9999 else v for v in entries]
    if drops and len(values) == k > 1 and values[0] < min(values[1:]):
        values = values[1:]  # the sampled token in the place of the k-th
    known = sorted((v for v in values if not math.isnan(v)), reverse=True)[:k]
    if not known:
        return math.nan, math.nan
    rest = min(max(1 - math.fsum(math.exp(v) for v in known), 0), 1)
    terms = [-math.exp(v) * v for v in known] + ([-rest * math.log(rest)] if rest else [])
    return -math.fsum(known) / len(known), math.fsum(terms)


@given(st.lists(st.tuples(LOGPROB, st.lists(LOGPROB, max_size=7)), min_size=1, max_size=6), st.integers(1, 6))
def test_live_and_saved_replies_are_read_by_the_rule(
    drawn: list[tuple[float | None, list[float | None]]], k: int
) -> None:
    content: list[dict[str, Any]] = [
        {"token": "ab", "bytes": [97, 98], "logprob": own, "top_logprobs": [{"logprob": v} for v in top]}
        for own, top in drawn
    ]
    logprobs = {"content": content}
    body = {"choices": [{"message": {"content": "ab" * len(drawn)}, "logprobs": logprobs}]}
    live = to_rollout(read_reply(body), k=k, query_id="q", sample_id=0)
    saved = Record(Place(Path("r.jsonl"), 1), "q")
    assert put_tokens(saved, logprobs, "ab" * len(drawn), ReadOptions(k=k), Findings())

    expected = np.float32([literal(top, k, drops=True) for _, top in drawn])
    own_T = np.float32([math.nan if v is None or v <= -9999 else v for v, _ in drawn])
    np.testing.assert_allclose(live.token_confidence, expected[:, 0], rtol=2e-7)
    np.testing.assert_allclose(live.token_entropy, expected[:, 1], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(live.token_logprob, own_T)
    np.testing.assert_array_equal(saved.token_logprob, own_T)
    if saved.token_confidence is None:
        assert np.isnan(live.token_confidence).all()
    else:
        np.testing.assert_array_equal(saved.token_confidence, live.token_confidence)
    for offset_T in (live.token_offset, saved.token_offset):
        assert offset_T is not None
        assert offset_T.tolist() == list(range(0, 2 * len(drawn), 2))


@given(
    st.lists(st.dictionaries(st.text(max_size=2), LOGPROB, max_size=7), min_size=1, max_size=6),
    st.integers(1, 6),
)
def test_completions_are_read_by_the_rule(top: list[dict[str, float | None]], k: int) -> None:
    logprobs = {"tokens": ["a"] * len(top), "token_logprobs": [-1] * len(top), "top_logprobs": top}
    body = {"choices": [{"text": "a" * len(top), "logprobs": logprobs}]}
    live = to_rollout(read_reply(body), k=k, query_id="q", sample_id=0)
    expected = np.float32([literal(list(each.values()), k, drops=False) for each in top])
    np.testing.assert_allclose(live.token_confidence, expected[:, 0], rtol=2e-7)
    np.testing.assert_allclose(live.token_entropy, expected[:, 1], rtol=1e-6, atol=1e-6)
